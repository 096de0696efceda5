"""Fixtures that several rooms share."""

from hypothesis import settings
from object_store_fixture import object_store
from redis_fixture import redis_server
from sandbox_fixture import (
    cluster,
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    replaced_sandbox,
    sandbox,
)
from task_stacks import pytest_timeout_set_timer
from training_jobs import namespace, operator

__all__ = [
    "cluster",
    "namespace",
    "object_store",
    "operator",
    "pytest_collection_modifyitems",
    "pytest_terminal_summary",
    "pytest_timeout_set_timer",
    "redis_server",
    "replaced_sandbox",
    "sandbox",
]

# How long one example takes says how busy the machine is, not whether the promise holds.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
