"""The processes of pods on the sandbox's node: found by their pod's control group; killed, frozen and woken by id."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_fixture import Cluster

SYSTEM = "trimtab-system"
LEASE = "trimtab-operator"
OPERATOR, TRAINER, TORCHRUN = "trimtab_operator", "trimtab_trainer", "trimtab_trainer.launcher"
SLICE_NANOSECONDS, IDLE_SECONDS = 1_500_000, 0.008
"""In slow motion: less work, and less waiting for a store, than lies between two of the operator's journal records."""

Json = dict[str, Any]


def processes_of_pod(uid: str, program: str) -> tuple[int, ...]:
    """The node's ids of a pod's processes that run a Python program, the oldest first."""
    found: list[tuple[int, int]] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            group = (folder / "cgroup").read_text()
            words = (folder / "cmdline").read_text().split("\0")
            started = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[19])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if f"pod{uid}" in group and _program(words) == program:
            found.append((started, int(folder.name)))
    return tuple(pid for _, pid in sorted(found))


def _program(words: list[str]) -> str:
    """The script or module that an interpreter runs."""
    named = (Path(word).name for word in words[1:] if word and not word.startswith("-"))
    return next(named, "")


@dataclass(frozen=True)
class PodProcess:
    """The processes of one program in one pod."""

    pod: str
    uid: str
    program: str

    @classmethod
    def of(cls, pod: Json, program: str) -> "PodProcess":
        """A program of a pod object."""
        return cls(pod["metadata"]["name"], pod["metadata"]["uid"], program)

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes now."""
        return processes_of_pod(self.uid, self.program)

    def send(self, number: signal.Signals) -> tuple[int, ...]:
        """Send a signal to all its processes and return their ids; at least one must be there."""
        pids = self.pids
        assert pids, f"pod {self.pod} runs no {self.program}"
        for pid in pids:
            os.kill(pid, number)
        return pids

    def kill(self) -> tuple[int, ...]:
        """End it as a crash does."""
        return self.send(signal.SIGKILL)

    def freeze(self) -> tuple[int, ...]:
        """Stop it where it stands."""
        return self.send(signal.SIGSTOP)

    def wake(self) -> tuple[int, ...]:
        """Let it go on."""
        return self.send(signal.SIGCONT)

    @property
    def only_pid(self) -> int:
        """Its process now, where there is one."""
        (pid,) = self.pids
        return pid


def step_until(pid: int, reached: Callable[[], bool], seconds: float = 90) -> None:
    """Run a process in slow motion until `reached` says so, and leave it frozen then."""
    end = time.monotonic() + seconds
    while True:
        os.kill(pid, signal.SIGSTOP)
        if reached():
            return
        os.kill(pid, signal.SIGCONT)
        assert time.monotonic() < end, f"process {pid} did not get there in {seconds:.0f} s"
        _let_work(pid)


def _let_work(pid: int) -> None:
    """Wait until a process has worked for a slice of CPU time, or found nothing to do for longer."""
    started, end = _nanoseconds_worked(pid), time.monotonic() + IDLE_SECONDS
    while _nanoseconds_worked(pid) - started < SLICE_NANOSECONDS and time.monotonic() < end:
        time.sleep(0.001)


def _nanoseconds_worked(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def operators(cluster: Cluster) -> list[PodProcess]:
    """The operator's pods that are not on their way out."""
    system = Cluster(cluster.environment, SYSTEM)
    found: list[Json] = json.loads(system.kubectl("get", "pods", "-l=app.kubernetes.io/name=trimtab", "-o=json"))[
        "items"
    ]
    return [PodProcess.of(pod, OPERATOR) for pod in found if "deletionTimestamp" not in pod["metadata"]]


def leader(cluster: Cluster) -> PodProcess:
    """The operator whose pod holds the Lease."""
    system = Cluster(cluster.environment, SYSTEM)
    holder = system.kubectl("get", "lease", LEASE, "-o=jsonpath={.spec.holderIdentity}")
    return next(one for one in operators(cluster) if holder.startswith(f"{one.pod}_"))


def world_pod(pods: list[Json], attempt: int, index: int) -> Json:
    """The pod of one index of one world."""
    wanted = {"trimtab.dev/attempt": str(attempt), "batch.kubernetes.io/job-completion-index": str(index)}
    return next(pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items())
