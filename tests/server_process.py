"""A server that tests start, freeze, stop and start again; ended by its process id."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"


class ServerProcess(ABC):
    """One process with its log in `folder`. A subclass says what to run and when it answers."""

    name: str
    start_seconds: float
    poll_seconds: float
    dies_with_starter = False
    """Linux ends it when the thread that started it ends, and so with a killed test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves requests now."""

    def start(self) -> None:
        """Start the process and return when it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=_die_with_parent if self.dies_with_starter else None,  # noqa: PLW1509 one call of prctl
            )
        deadline = time.monotonic() + self.start_seconds
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self._folder / "server.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{self.name} did not start: {tail}")
            time.sleep(self.poll_seconds)

    def stop(self) -> None:
        """Kill the process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def freeze(self) -> None:
        """Let requests hang: connections are accepted by the kernel and never answered."""
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        # The signal is on its way when `kill` returns, and each thread stops when it gets there.
        deadline = time.monotonic() + 10.0
        while not _is_stopped(pid):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not stop")
            time.sleep(0.001)

    def thaw(self) -> None:
        """Undo `freeze`."""
        os.kill(self._pid(), signal.SIGCONT)

    def _pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports, all held at once while they are chosen."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped."""
    states = [
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return set(states) == {"T"}


def _die_with_parent() -> None:
    """Ask Linux to end the server when its starter can no longer do so."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
