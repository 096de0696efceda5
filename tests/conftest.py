"""Fixtures that several rooms share."""

from object_store_fixture import object_store
from redis_fixture import redis_server
from sandbox_fixture import cluster, pytest_collection_modifyitems, replaced_sandbox, sandbox
from task_stacks import pytest_timeout_set_timer
from training_jobs import namespace, operator

__all__ = [
    "cluster",
    "namespace",
    "object_store",
    "operator",
    "pytest_collection_modifyitems",
    "pytest_timeout_set_timer",
    "redis_server",
    "replaced_sandbox",
    "sandbox",
]
