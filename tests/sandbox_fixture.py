"""The running sandbox that tests of every room share, and the order in which tests may use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from trimtab_sandbox.cluster import SandboxInfo, down, status, up


def _report(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[SandboxInfo]:
    """A running sandbox: started when there is none, and then taken down at the end; else left as it was."""
    was_running = status().running
    yield up(progress=_report)
    if not was_running:
        down(progress=_report)


@pytest.fixture
def replaced_sandbox(sandbox: SandboxInfo) -> Iterator[SandboxInfo]:
    """For tests that kill or restart the whole cluster: they run last, and the sandbox is up again afterwards."""
    yield sandbox
    up(progress=_report)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests that empty the cluster behind all others, whose objects they would take away."""
    items.sort(key=lambda item: "replaced_sandbox" in getattr(item, "fixturenames", ()))


@dataclass(frozen=True)
class Cluster:
    """``kubectl`` on the sandbox."""

    environment: Mapping[str, str]

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run a command that must succeed and return what it printed."""
        done = subprocess.run(
            ["kubectl", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
            env={**os.environ, **self.environment},
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def run_to_end(self, pod: Mapping[str, object], *, timeout: str = "120s") -> str:
        """Make a pod, wait until it has succeeded, return its log and remove it."""
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        name = str(metadata["name"])
        self.kubectl("create", "-f", "-", text=json.dumps(pod))
        try:
            self.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", f"--timeout={timeout}")
            return self.kubectl("logs", name)
        finally:
            self.kubectl("delete", "pod", name, "--grace-period=1")


@pytest.fixture(scope="session")
def cluster(sandbox: SandboxInfo) -> Cluster:
    """The sandbox's cluster."""
    return Cluster(sandbox.environment)
