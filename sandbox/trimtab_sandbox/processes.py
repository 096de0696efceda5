"""The sandbox's processes: started detached, recorded on disk, and recognised again without doubt.

A process id alone is not an identity, since the kernel hands it out again. With the start time from
``/proc/PID/stat`` (field 22, clock ticks since boot) and the boot's id it is one (proc_pid_stat(5)).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimtab_sandbox.commands import wait_until
from trimtab_sandbox.errors import NotReadyError
from trimtab_sandbox.packages import SYSTEM_PATH

_STATE, _START_TIME = 0, 19
_DEAD_STATES = frozenset("ZXx")
_LOG_TAIL_BYTES = 1500


def boot_id() -> str:
    """The kernel's random name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class Identity:
    """One process for ever: its id, its start in clock ticks since boot, and the boot."""

    pid: int
    start_ticks: int
    boot: str


def _stat_fields(pid: int) -> list[str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the program's name in parentheses, may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


def _has_ended(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    finally:
        os.close(descriptor)


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this id now, or None when it is dead or a zombie.

    A process reads as a zombie as soon as its first thread has ended, while the others may still hold its sockets;
    it counts as dead when the last one is gone (pidfd_open(2)).
    """
    fields = _stat_fields(pid)
    if fields is None or (fields[_STATE] in _DEAD_STATES and _has_ended(pid)):
        return None
    return Identity(pid, int(fields[_START_TIME]), boot_id())


def is_alive(identity: Identity) -> bool:
    """Whether this very process (not a later one with the same id) still runs."""
    return identify(identity.pid) == identity


def is_frozen(identity: Identity) -> bool:
    """Whether the process is stopped by a signal."""
    fields = _stat_fields(identity.pid)
    return is_alive(identity) and fields is not None and fields[_STATE] == "T"


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone.

    A descriptor of the process is taken first and its identity compared afterwards, so the signal cannot reach a
    process that got the id in between.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Component:
    """How one process is started. ``address`` is what it listens on once it serves."""

    name: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    address: tuple[str, int] | None = None


def accepts(address: tuple[str, int]) -> bool:
    """Whether something accepts TCP connections there."""
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class ManagedProcess:
    """One named process of a sandbox: its record on disk, and what can be done to it."""

    component: Component
    identity: Identity | None
    record: Path
    log: Path

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name

    def is_running(self) -> bool:
        """Whether the recorded process lives (frozen counts as living)."""
        return self.identity is not None and is_alive(self.identity)

    def is_frozen(self) -> bool:
        """Whether it is stopped by ``freeze``."""
        return self.identity is not None and is_frozen(self.identity)

    def freeze(self) -> None:
        """Stop it in its tracks (SIGSTOP); its sockets stay open and silent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL) and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._wait_gone(seconds=30)

    def stop(self, *, seconds: float = 5) -> None:
        """End it in order (SIGTERM), by force when it has not ended after ``seconds``."""
        if not self._signal(signal.SIGTERM):
            return
        self._signal(signal.SIGCONT)
        try:
            self._wait_gone(seconds=seconds)
        except NotReadyError:
            self.kill()

    def start(self) -> ManagedProcess:
        """Start it unless it runs, wait until it listens, and return its new record."""
        if self.is_running():
            return self
        return spawn(self.component, record=self.record, log=self.log).wait_listening()

    def wait_listening(self, *, seconds: float = 60) -> ManagedProcess:
        """Wait until it accepts connections on its address, if it has one.

        Raises:
            NotReadyError: it ended, or did not listen in time; the end of its log is in the message.
        """
        address = self.component.address
        if address is None:
            return self

        def listening() -> bool:
            if not self.is_running():
                raise NotReadyError(f"{self.name} ended while starting. {self.describe_log()}")
            return accepts(address)

        wait_until(f"{self.name} listening on {address[0]}:{address[1]}", listening, seconds=seconds)
        return self

    def describe_log(self) -> str:
        """Where the log is, and how it ends."""
        tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if self.log.exists() else ""
        return f"Its log {self.log} ends with:\n{tail.strip()}"

    def _signal(self, number: signal.Signals) -> bool:
        return self.identity is not None and send(self.identity, number)

    def _wait_gone(self, *, seconds: float) -> None:
        wait_until(f"The end of {self.name}", lambda: not self.is_running(), seconds=seconds)


def spawn(component: Component, *, record: Path, log: Path) -> ManagedProcess:
    """Start a process in a session of its own and write its record.

    It gets an environment of its own too, so that proxies, kubeconfigs or keys of the caller's do not reach it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(component.arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=record.parent.parent,
            env={"PATH": SYSTEM_PATH, "HOME": str(record.parent.parent), **dict(component.environment)},
        )
    managed = ManagedProcess(component, identify(child.pid), record, log)
    write_record(managed)
    return managed


@dataclass(frozen=True)
class _Record:
    component: Component
    identity: Identity | None
    log: str


def write_record(managed: ManagedProcess) -> None:
    """Write the record so that a reader sees the old one or the new one, never half of it."""
    managed.record.parent.mkdir(parents=True, exist_ok=True)
    temporary = managed.record.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(_Record(managed.component, managed.identity, str(managed.log))))
    temporary.replace(managed.record)


def read_record(record: Path) -> ManagedProcess:
    """Read one record back."""
    stored = msgspec.json.decode(record.read_bytes(), type=_Record)
    return ManagedProcess(stored.component, stored.identity, record, Path(stored.log))


def read_records(directory: Path) -> dict[str, ManagedProcess]:
    """All records of a sandbox by name; empty when there are none."""
    return {managed.name: managed for managed in map(read_record, sorted(directory.glob("*.json")))}
