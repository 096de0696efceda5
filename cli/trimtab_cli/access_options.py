"""The options that lead to a cluster, its audit bucket and its checkpoints: written once, and had by every command."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from trimtab_cli.access import Access, chosen_cluster
from trimtab_cli.options import (
    AuditBucketOption,
    AuditEndpointOption,
    CheckpointEndpointOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
)

_CLUSTER: dict[str, Any] = {"kubeconfig": KubeconfigOption, "context": ContextOption, "namespace": NamespaceOption}
_AUDIT: dict[str, Any] = {"audit_endpoint": AuditEndpointOption, "audit_bucket": AuditBucketOption}
_CHECKPOINTS: dict[str, Any] = {"checkpoint_endpoint": CheckpointEndpointOption}

Command = Callable[..., None]


def with_cluster(command: Command) -> Command:
    """Give a command that takes `access` the options of the cluster."""
    return _with(command, _CLUSTER)


def with_trail(command: Command) -> Command:
    """Give a command that takes `access` the options of the cluster and of the audit bucket."""
    return _with(command, _CLUSTER | _AUDIT)


def with_checkpoints(command: Command) -> Command:
    """Give a command that takes `access` the options of the cluster, the audit bucket and the checkpoints."""
    return _with(command, _CLUSTER | _AUDIT | _CHECKPOINTS)


def _with(command: Command, options: dict[str, Any]) -> Command:
    """Typer reads a command's options off its signature, so the wrapper gets one that has them."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        cluster = chosen_cluster(
            cast("Path | None", chosen["kubeconfig"]), cast("str | None", chosen["context"]), chosen["namespace"]
        )
        stores = {name: value for name, value in chosen.items() if name not in _CLUSTER}
        command(access=Access(cluster, **stores), **given)

    own = inspect.signature(command)
    kept = [parameter for name, parameter in own.parameters.items() if name != "access"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    wrapper.__signature__ = own.replace(parameters=[*kept, *added])  # pyright: ignore[reportAttributeAccessIssue] - what inspect looks at first
    wrapper.__annotations__ = {
        name: kind for name, kind in command.__annotations__.items() if name != "access"
    } | options
    return wrapper
