"""Real work that ends by SIGKILL at one of its points: `python -m killed_worker`, told by lines of JSON what to do.

The process loads torch once and forks a child for every task. A point is a moment before or after a request to a
store; a save writes nothing to a local disk. A child says the name of each point on a pipe before it passes it, and
kills itself at the one it was told. Nothing is played: trainer, remover, journal, S3 server and the signal are the real
ones.
"""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch
from checkpoint_ranks import EVALUATION, FAST, new_state
from torch.distributed import TCPStore
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.bucket import _make_client as make_operators_client
from trimtab_operator.adapters.ports import Appended, Upload
from trimtab_operator.adapters.s3 import (
    S3CheckpointStore,
    S3CheckpointStores,
    S3Credentials,
    S3JournalStore,
    S3Location,
)
from trimtab_operator.checkpoint_remover import CheckpointRemover
from trimtab_operator.deletion import being_deleted, next_command
from trimtab_operator.journal import Identity, RunJournal
from trimtab_operator.observation import Limits, Observation, RetentionSettings
from trimtab_trainer.adapters.s3 import Bytes, ObjectStore, Part
from trimtab_trainer.checkpointing import Checkpointer, Verified, uploading
from trimtab_trainer.model import TransformerConfig

NOBODY = -1
SMALLEST_PART = 5 * 1024 * 1024
"""S3 takes no smaller one but the last; so the shard of `MODEL` leaves in two."""
MODEL = TransformerConfig(width=160, layers=2, heads=4, sequence=8)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a child does: `save` a checkpoint of a step and verify it, or `retire` what nothing needs any more.

    `kill` is the number of the point at which it ends, `NOBODY` for none.
    """

    work: str
    run: str
    endpoint: str
    bucket: str
    audit: str
    root: str
    access_key: str
    secret_key: str
    folder: str
    step: int = 0
    kill: int = NOBODY


class Points:
    """Counts the points that are passed; the process ends at one of them."""

    def __init__(self, kill: int, tell: IO[str]) -> None:
        self._kill, self._tell = kill, tell
        self._passed = 0
        self._lock = threading.Lock()

    def pass_by(self, name: str) -> None:
        """Say the point's name, and end the process if it is the one."""
        with self._lock:
            self._tell.write(f"{name}\n")
            self._tell.flush()
            if self._passed == self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self._passed += 1

    @contextmanager
    def around(self, name: str) -> Generator[None]:
        """A point before, and one after."""
        self.pass_by(f"before {name}")
        yield
        self.pass_by(f"after {name}")


def _name(key: str) -> str:
    return key.rpartition("/")[2]


@cache
def trainers_store(endpoint: str, bucket: str, access_key: str, secret_key: str) -> "WatchedStore":
    """The store of a bucket; the process makes it before it forks."""
    return WatchedStore(bucket, endpoint=endpoint, access_key=access_key, secret_key=secret_key)


class WatchedStore(ObjectStore):
    """The trainer's store, with points around every request. Made once for all children, since that takes long."""

    points: Points

    def put(self, key: str, body: bytes | Path) -> None:
        with self.points.around(f"put {_name(key)}"):
            super().put(key, body)

    def get(self, key: str) -> bytes:
        with self.points.around(f"get {_name(key)}"):
            return super().get(key)

    def chunks(self, key: str) -> Iterator[bytes]:
        with self.points.around(f"read {_name(key)}"):
            yield from super().chunks(key)

    def begin_parts(self, key: str) -> str:
        with self.points.around(f"begin {_name(key)}"):
            return super().begin_parts(key)

    def put_part(self, key: str, upload: str, number: int, body: Bytes) -> Part:
        # Parts leave side by side: which comes first is up to the threads.
        with self.points.around(f"part of {_name(key)}"):
            return super().put_part(key, upload, number, body)

    def complete_parts(self, key: str, upload: str, parts: Sequence[Part]) -> None:
        with self.points.around(f"complete {_name(key)}"):
            super().complete_parts(key, upload, parts)


def save(task: Task, points: Points) -> None:
    """What a rank of a world of one does for one checkpoint, from the copy to the end of its verification."""
    store = trainers_store(task.endpoint, task.bucket, task.access_key, task.secret_key)
    store.points = points
    uploading.PART_BYTES = SMALLEST_PART
    checkpointer = Checkpointer(
        store,
        root=task.root,
        run=RunId.parse(task.run),
        rank=0,
        world_size=1,
        processes_per_node=1,
        host="host",
        exchange=lambda text: [text],
        coordination=TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        staging=Path(task.folder),
        on_progress=lambda: None,
        limits=FAST,
    )
    checkpointer.save(
        new_state(task.step + 1, MODEL),
        step=task.step,
        attempt=1,
        trigger="Periodic",
        next_window=task.step,
        skip=SkipLedger(),
        lr=None,
        learning_rate=0.01,
        evaluation=EVALUATION,
        config_sha256="c" * 64,
        code_sha256="d" * 64,
    )
    assert checkpointer.flush(120), checkpointer.events()
    while not any(isinstance(event, Verified) for event in checkpointer.events()):
        time.sleep(0.005)


class WatchedJournal(S3JournalStore):
    """The operator's journal, with points around every record."""

    points: Points

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        record = json.loads(body)
        with self.points.around(f"append {record['action']} {record.get('phase') or ''}".rstrip()):
            return await super().append(run, seq, body)


class WatchedCheckpoints:
    """`CheckpointStore` in the job's bucket, with points around every request; objects are deleted one by one."""

    def __init__(self, store: S3CheckpointStore, points: Points) -> None:
        self._store, self._points = store, points

    @property
    def root(self) -> str:
        return self._store.root

    async def check(self) -> None:
        await self._store.check()

    async def get(self, key: str, limit: int = 1 << 20) -> bytes:
        with self._points.around(f"get {_name(key)}"):
            return await self._store.get(key, limit)

    async def sizes(self, prefix: str) -> Any:
        with self._points.around("list"):
            return await self._store.sizes(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with self._points.around(f"delete {_name(key)}"):
                await self._store.delete([key])

    async def times(self, prefix: str) -> Any:
        return await self._store.times(prefix)

    async def uploads(self, prefix: str) -> Any:
        with self._points.around("list uploads"):
            return await self._store.uploads(prefix)

    async def abort(self, uploads: Sequence[Upload]) -> None:
        await self._store.abort(uploads)


class OwnLease:
    """A Lease that this process holds, and whose former holder cannot have had it for long."""

    epoch, duration_seconds = 1, 0.0

    def valid(self) -> bool:
        return True


KEEP_ONE = RetentionSettings(keep_last=2, keep_every=None, certify_steps=10, near=5, reach=10)


async def _retire(task: Task, points: Points) -> None:
    """What an operator does until a run that trains keeps no checkpoint that nothing needs."""
    run, secret = (
        RunId.parse(task.run),
        {"AWS_ACCESS_KEY_ID": task.access_key, "AWS_SECRET_ACCESS_KEY": task.secret_key},
    )
    audit = WatchedJournal(S3Location(task.audit, task.endpoint), S3Credentials(task.access_key, task.secret_key))
    audit.points = points
    store = WatchedCheckpoints(
        S3CheckpointStores().open(f"s3://{task.bucket}/{task.root}", task.endpoint, secret), points
    )
    woken = asyncio.Event()
    journal = RunJournal(audit, run, Identity("operator", "pod", "uid", "image"))
    remover = CheckpointRemover(run, audit, OwnLease(), woken.set)
    await journal.take_over(OwnLease.epoch)
    limits = Limits(
        max_rollbacks=3,
        max_restarts=3,
        window_seconds=60,
        certify_steps=10,
        generation=1,
        suspend=False,
        retention=KEEP_ONE,
    )
    while True:
        observation = Observation(
            job="demo", now="", limits=limits, judged_step=task.step, removals=remover.removals(journal.state)
        )
        command = next_command(journal.state, observation)
        if command is not None:
            await journal.append(command.draft)
        elif being_deleted(journal.state):
            due = remover.attend(time.monotonic(), journal.state, store)
            if math.isinf(due):
                await woken.wait()
                woken.clear()
            else:
                await asyncio.sleep(due - time.monotonic())
        else:
            return


def retire(task: Task, points: Points) -> None:
    """See `_retire`."""
    asyncio.run(_retire(task, points))


WORK: dict[str, Callable[[Task, Points], None]] = {"save": save, "retire": retire}


def _child(task: Task, told: int) -> None:
    """Never returns: the copy of the process ends here, whatever happens."""
    status = 1
    try:
        with os.fdopen(told, "w") as tell:
            WORK[task.work](task, Points(task.kill, tell))
        status = 0
    except Exception:  # noqa: BLE001 the copy of the process has nobody above it
        traceback.print_exc()
    finally:
        os._exit(status)


def _forked(task: Task) -> dict[str, Any]:
    """What became of a child: the signal that ended it or minus its status, and the points that it reached."""
    trainers_store(task.endpoint, task.bucket, task.access_key, task.secret_key)
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        _child(task, tell)
    os.close(tell)
    with os.fdopen(hear) as told:
        points = told.read().splitlines()
    _, status = os.waitpid(child, 0)
    return {"ended": os.waitstatus_to_exitcode(status), "points": points}


def main() -> None:
    """Serve tasks until the input ends. Nothing here starts a thread, for a child would miss it."""
    torch.set_num_threads(1)
    # It keeps what it read of the services' descriptions for all children.
    make_operators_client(S3Location("bucket"), S3Credentials("", ""))
    for line in sys.stdin:
        print(json.dumps(_forked(Task(**json.loads(line)))), flush=True)


class Workers:
    """The process above, as a test uses it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def do(self, task: Task) -> tuple[int, list[str]]:
        """The negative signal or the exit status that ended a child, and the points that it reached."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(task)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return int(answer["ended"]), list(answer["points"])


@contextmanager
def workers() -> Generator[Workers]:
    """Start the process, and end it by its id."""
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "killed_worker"],
        env={**os.environ, "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Workers(process)
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
