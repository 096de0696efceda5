"""The running sandbox that tests of every room share, and the order in which tests may use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from trimtab_sandbox.cluster import SandboxInfo, down, status, up
from trimtab_sandbox.commands import wait_until


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
    """Move the tests that empty the cluster behind all others, whose objects they would take away.

    A test on the node that fails is tried once more, and the summary says so: a machine of two cores that others use
    too can stall for longer than a world waits for its peers.
    """
    for item in items:
        if item.get_closest_marker("node") is not None and item.get_closest_marker("image") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: "replaced_sandbox" in getattr(item, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test was tried once more: what fails only sometimes is a fault all the same."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@dataclass(frozen=True)
class Cluster:
    """``kubectl`` on the sandbox, in one namespace."""

    environment: Mapping[str, str]
    namespace: str = "default"

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run a command that must succeed and return what it printed."""
        done = subprocess.run(
            ["kubectl", f"--namespace={self.namespace}", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
            env={**os.environ, **self.environment},
            executable=shutil.which("kubectl", path=self.environment["PATH"]),
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def run_to_end(self, pod: Mapping[str, object]) -> str:
        """Make a pod, wait until it has succeeded, return its log and remove it."""
        name = self.kubectl("create", "-f", "-", "-o=jsonpath={.metadata.name}", text=json.dumps(pod))

        def phase() -> str:
            return self.kubectl("get", "pod", name, "-o=jsonpath={.status.phase}")

        try:
            wait_until(f"The end of pod {name}", lambda: phase() in {"Succeeded", "Failed"}, seconds=120)
            log = self.kubectl("logs", name)
            assert phase() == "Succeeded", log
            return log
        finally:
            self.kubectl("delete", "pod", name, "--grace-period=1")


@pytest.fixture(scope="session")
def cluster(sandbox: SandboxInfo) -> Cluster:
    """The sandbox's cluster."""
    return Cluster(sandbox.environment)
