"""What this machine's sandbox offers to the other commands, when it is installed and up."""

import importlib
from pathlib import Path
from typing import Any

from trimtab_cli.errors import CliError, ProgramFailed


def sandbox_module(name: str) -> Any:
    """A module of the sandbox package; raises CliError when it is not installed."""
    try:
        return importlib.import_module(f"trimtab_sandbox.{name}")
    except ImportError as error:
        raise CliError(
            f"The sandbox cannot be used ({error}): install it with `pip install 'trimtab[sandbox]'`."
        ) from error


def sandbox_error() -> type[Exception]:
    """The root of the sandbox's errors."""
    return sandbox_module("errors").SandboxError


def sandbox_environment() -> dict[str, str]:
    """Variables that lead to the parts of the running sandbox; empty when there is none."""
    try:
        environment = sandbox_module("environment").environment
    except CliError:
        return {}
    try:
        return environment()
    except sandbox_error():
        return {}


def sandbox_kubeconfig() -> Path | None:
    """The running sandbox's kubeconfig."""
    path = sandbox_environment().get("KUBECONFIG")
    return Path(path) if path else None


def is_sandbox(server: str) -> bool:
    """Whether an API server's address is the sandbox's."""
    try:
        address = sandbox_module("settings").BRIDGE_ADDRESS
    except CliError:
        return False
    return f"//{address}:" in server


def repository() -> Path:
    """The working tree with the chart and the examples; raises ProgramFailed when it is not there."""
    root: Path = sandbox_module("settings").repository_root()
    if not (root / "helm" / "trimtab" / "Chart.yaml").exists():
        raise ProgramFailed(f"{root} holds no chart: run this from a checkout of Trimtab's repository.")
    return root
