"""Checkpointer: what the loop calls. Collectives only here, on the main thread; the rest goes on in the background."""

import queue
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import msgspec
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, EvaluationProbe, Trigger
from trimtab_contract.config_record import ConfigRecord
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference, LearningRateOverride

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.coordination import Board, CoordinationStore
from trimtab_trainer.checkpointing.events import CheckpointBehind, CheckpointEvent
from trimtab_trainer.checkpointing.measurement import ShareMeasurement
from trimtab_trainer.checkpointing.random_state import rank_state, restore_rank_state
from trimtab_trainer.checkpointing.reasons import RestoreFailure
from trimtab_trainer.checkpointing.restoring import Fetched, Fit, Restoration, fits_by_structure
from trimtab_trainer.checkpointing.saving import SaveJob, SaveRequest, SaveThread
from trimtab_trainer.checkpointing.shards import METADATA_NAME, ShardLayout
from trimtab_trainer.checkpointing.staging import StagingRoom
from trimtab_trainer.checkpointing.state import FlatState, TrainingState
from trimtab_trainer.checkpointing.uploading import Pace
from trimtab_trainer.checkpointing.verification import VerificationThread
from trimtab_trainer.errors import RestoreFailed, TrainerError
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.optim import whole_checksum
from trimtab_trainer.read_back import BYTES_PER_SECOND, PATIENCE_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointLimits:
    """Bounds on what goes on in the background."""

    max_pending: int = 1
    """Saves that may wait for the store; each holds a copy of the state in host memory."""

    upload_bytes_per_second: float | None = None
    """What all uploads of a rank share; None is no bound."""

    save_deadline_seconds: float = 600.0
    restore_patience_seconds: float = 120.0
    verify_patience_seconds: float = PATIENCE_SECONDS
    verify_bytes_per_second: float = BYTES_PER_SECOND


class _Verdict(msgspec.Struct, frozen=True):
    """One rank's part in the agreement on a restore; an empty reason means it is ready."""

    reason: str = ""
    object_name: str = ""
    detail: str = ""
    checksum: str = "0"
    sharded: str = "0"


class Checkpointer:
    """Saves, verifies and restores the state of one world.

    `exchange` returns the texts of all ranks in rank order (a collective, called on main threads only);
    `coordination` is the world's `torch.distributed.Store`, polled by background threads.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        root: str,
        run: keys.RunId,
        rank: int,
        world_size: int,
        processes_per_node: int,
        host: str,
        exchange: Callable[[str], list[str]],
        coordination: CoordinationStore,
        staging: Path,
        on_progress: Callable[[], None],
        prove: Callable[[], None] = lambda: None,
        limits: CheckpointLimits = CheckpointLimits(),
        source: keys.RunId | None = None,
    ) -> None:
        """Start the background threads. Only a restore of schema 1 writes to `staging`, a folder on local disk.

        `source` is the run that this one continues, whose checkpoints may be restored beside its own.

        `prove` stores what shows how this rank came to its state; no checkpoint is committed before it succeeded on
        every rank. It runs in the background and may raise StoreError.
        """
        self._root, self._run = root, run
        self._exchange, self._limits = exchange, limits
        self._staging = staging / f"rank-{rank:06d}"
        self._rank = rank
        self._stopped = threading.Event()
        self._events: deque[CheckpointEvent] = deque()
        self._jobs: list[SaveJob] = []
        self._layout: ShardLayout | None = None
        self._room = StagingRoom()
        self._saved: queue.SimpleQueue[tuple[str, CheckpointReference] | None] = queue.SimpleQueue()
        board = Board(coordination, self._stopped)
        self._saving = SaveThread(
            store,
            board,
            run=run,
            rank=rank,
            world_size=world_size,
            events=self._events,
            saved=self._saved,
            stopped=self._stopped,
            prove=prove,
            room=self._room,
            pace=Pace(limits.upload_bytes_per_second, self._stopped),
        )
        self._verifying = VerificationThread(
            store,
            board,
            rank=rank,
            world_size=world_size,
            processes_per_node=processes_per_node,
            host=host,
            patience_seconds=limits.verify_patience_seconds,
            bytes_per_second=limits.verify_bytes_per_second,
            events=self._events,
            saved=self._saved,
            stopped=self._stopped,
        )
        runs = (run,) if source is None else (run, source)
        self._restoration = Restoration(
            store, root, runs, rank, limits.restore_patience_seconds, self._stopped, on_progress
        )
        self._saving.start()
        self._verifying.start()

    def save(
        self,
        state: TrainingState,
        *,
        step: int,
        attempt: int,
        trigger: Trigger,
        next_window: int,
        skip: SkipLedger,
        lr: LearningRateOverride | None,
        learning_rate: float,
        evaluation: EvaluationProbe,
        config_sha256: str,
        code_sha256: str,
        config: ConfigRecord | None = None,
        measured: Future[ShareMeasurement] | None = None,
    ) -> bool:
        """Copy the state after `step` and let the background make it durable; every rank calls it at one boundary.

        `measured` will be this rank's part of the evaluation: the save waits for it, and so does `flush`. Returns
        whether the state is saved: a periodic or suspect save is left out, on all ranks, while rank 0 has as many
        pending as allowed. Raises what the exchange raises when a rank is lost.
        """
        pending, random = self._agreed_start()
        if trigger in {"Periodic", "Suspect"} and pending >= self._limits.max_pending:
            self._events.append(CheckpointBehind(step, pending, trigger))
            return False
        flat = self._room.copy(state.flat())
        prefix = keys.checkpoint_prefix(self._root, self._run, step, attempt, random)
        if self._layout is None:
            self._layout = ShardLayout(flat, rank=self._rank, exchange=self._exchange)
        request = SaveRequest(
            step=step,
            attempt=attempt,
            trigger=trigger,
            next_window=next_window,
            skip=skip.ranges,
            lr=lr,
            learning_rate=learning_rate,
            optimizer_steps=state.optimizer.count,
            evaluation=evaluation,
            config_sha256=config_sha256,
            code_sha256=code_sha256,
            saved_at=time.time(),
            config=config,
        )
        deadline = time.monotonic() + self._limits.save_deadline_seconds
        job = SaveJob(request, prefix, flat, rank_state(), self._layout, deadline, measured)
        self._jobs.append(job)
        self._saving.submit(job)
        return True

    def events(self) -> list[CheckpointEvent]:
        """What happened since the last call; never blocks. Raises TrainerError when a background thread died."""
        found: list[CheckpointEvent] = []
        while self._events:
            found.append(self._events.popleft())
        for thread in (self._saving, self._verifying):
            if not thread.is_alive() and not self._stopped.is_set():
                raise TrainerError(f"the thread {thread.name} died; its last words are in the log")
        return found

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until no save is pending.

        Returns whether the last one, and those before it that were still on their way then, are durable.
        """
        deadline = time.monotonic() + timeout_seconds
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.done.wait(max(deadline - time.monotonic(), 0.0))
        self._jobs = [job for job in jobs if not job.done.is_set()]
        return all(job.reference is not None for job in jobs)

    def restore(
        self, reference: CheckpointReference, state: TrainingState, skip: SkipLedger, fit: Fit = fits_by_structure
    ) -> CheckpointManifest:
        """Replace the live state by a checkpoint's, on every rank or on none.

        `skip` is the ledger in force, `fit` says why a checkpoint is none of this run's. Raises RestoreFailed on all
        ranks alike, with the live state untouched.
        """
        folder = self._staging / f"restore-{uuid.uuid4().hex}"
        with self._room.beside(state.flat()) as flat:
            try:
                fetched = self._fetched_everywhere(reference, flat, skip, folder, fit)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            try:
                state.replace(fetched.flat)
            except InvalidFields as error:
                raise RestoreFailed(RestoreFailure.STRUCTURE_MISMATCH, "optimizer", str(error)) from error
        if fetched.rank_state is not None:
            restore_rank_state(fetched.rank_state)
        return fetched.manifest

    def close(self) -> None:
        """End the background threads; saves still pending are given up."""
        self._stopped.set()
        self._saving.submit(None)
        self._saved.put(None)

    def _agreed_start(self) -> tuple[int, str]:
        """Rank 0's count of pending saves and a fresh random name, the same on every rank."""
        self._jobs = [job for job in self._jobs if not job.done.is_set()]
        first = self._exchange(f"{len(self._jobs)} {uuid.uuid4().hex}")[0].split()
        return int(first[0]), first[1]

    def _fetched_everywhere(
        self, reference: CheckpointReference, into: FlatState, skip: SkipLedger, folder: Path, fit: Fit
    ) -> Fetched:
        fetched, own = None, _Verdict()
        try:
            fetched = self._restoration.fetch(reference, into, skip, folder, fit)
            own = _Verdict(checksum=f"{fetched.checksum.total:x}", sharded=f"{fetched.checksum.sharded:x}")
        except RestoreFailed as error:
            own = _Verdict(error.reason, error.object_name, error.detail)
        except OSError as error:
            own = _Verdict(RestoreFailure.UNREADABLE, str(folder), str(error))
        texts = self._exchange(msgspec.json.encode(own).decode())
        verdicts = [msgspec.json.decode(text, type=_Verdict) for text in texts]
        failed = next((verdict for verdict in verdicts if verdict.reason), None)
        if failed is not None:
            raise RestoreFailed(failed.reason, failed.object_name, failed.detail)
        if fetched is None:
            raise RestoreFailed(RestoreFailure.UNREADABLE, METADATA_NAME, "nothing was loaded")
        _check_content(verdicts, fetched.manifest)
        return fetched


def _check_content(verdicts: Sequence[_Verdict], manifest: CheckpointManifest) -> None:
    """Raise RestoreFailed, on every rank alike, unless what all ranks loaded is the state that was saved."""
    parts = [int(one.sharded, 16) for one in verdicts]
    # What is not sharded, each rank has read by itself: its total must be right with the parts of all.
    for rank, one in enumerate(verdicts):
        found = f"{whole_checksum(int(one.checksum, 16), parts[rank], parts):016x}"
        if found != manifest.replica_checksum:
            detail = f"the state loaded on rank {rank} has checksum {found}, the saved one {manifest.replica_checksum}"
            raise RestoreFailed(RestoreFailure.CONTENT_MISMATCH, METADATA_NAME, detail)
