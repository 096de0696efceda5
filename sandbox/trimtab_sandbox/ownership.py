"""One sandbox per machine: who holds it, and one `up` or `down` at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trimtab_sandbox.commands import Progress
from trimtab_sandbox.errors import SandboxHeldError
from trimtab_sandbox.processes import read_records
from trimtab_sandbox.settings import HOME_VARIABLE, RUNTIME_DIRECTORY, Layout


@contextmanager
def exclusive(progress: Progress, runtime: Path = RUNTIME_DIRECTORY) -> Generator[None]:
    """Hold the machine's sandbox lock; wait, and say for whom, while another process holds it."""
    runtime.mkdir(parents=True, exist_ok=True)
    with (runtime / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            progress(f"waiting for process {lock.read().strip() or 'unknown'}, which starts or stops the sandbox")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder(runtime: Path = RUNTIME_DIRECTORY) -> Path | None:
    """The state directory of the sandbox that was last started in this boot and not taken down."""
    record = runtime / "home"
    return Path(record.read_text()) if record.exists() else None


def claim(home: Path, runtime: Path = RUNTIME_DIRECTORY) -> None:
    """Note that the sandbox of this state directory has the machine."""
    (runtime / "home").write_text(str(home))


def release(runtime: Path = RUNTIME_DIRECTORY) -> None:
    """Note that no sandbox has the machine."""
    (runtime / "home").unlink(missing_ok=True)


def refuse_second(home: Path, runtime: Path = RUNTIME_DIRECTORY) -> None:
    """Refuse when another state directory's sandbox runs.

    Raises:
        SandboxHeldError: says which, and how to take it down.
    """
    other = holder(runtime)
    if other is None or other == home:
        return
    running = [managed for managed in read_records(Layout(other).processes).values() if managed.is_running()]
    if running:
        names = ", ".join(f"{managed.name} (process {managed.identity.pid})" for managed in running if managed.identity)
        raise SandboxHeldError(
            f"A sandbox kept in {other} runs on this machine ({names}), and there can be only one, since its addresses "
            f"are fixed. Use it, or take it down with `{HOME_VARIABLE}={other} python -m trimtab_sandbox down`."
        )
