"""The operator's process on the sandbox's node: how much memory it holds."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from node_processes import leader
from sandbox_fixture import Cluster

PAUSE_SECONDS = 0.5


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process, shared pages included."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024 / 1e6


@dataclass
class MemoryWatch:
    """Samples the resident memory of the leading operator while it is open."""

    cluster: Cluster
    samples: list[float] = field(default_factory=list[float])
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "MemoryWatch":
        pid = max(leader(self.cluster).pids)
        self._thread = threading.Thread(target=self._sample, args=(pid,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, pid: int) -> None:
        while not self._closing.wait(PAUSE_SECONDS):
            try:
                self.samples.append(resident_megabytes(pid))
            except FileNotFoundError:
                return
