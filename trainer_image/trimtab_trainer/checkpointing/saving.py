"""The background half of a save: inspect the copy while its shards leave, and store the manifest last of all."""

import platform
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import torch
from trimtab_contract import keys
from trimtab_contract.checkpoints import (
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    EvaluationProbe,
    FiniteScan,
    StoredObject,
    Trigger,
    encode_manifest,
    sha256_hex,
)
from trimtab_contract.config_record import ConfigRecord
from trimtab_contract.directives import CheckpointReference, LearningRateOverride
from trimtab_contract.slice_index import SliceIndex, encode_index, index_name

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.coordination import Board
from trimtab_trainer.checkpointing.events import CheckpointEvent, Saved, SaveFailed, SaveRefused
from trimtab_trainer.checkpointing.inspection import Inspection, checksum_of_all, inspect, refusal
from trimtab_trainer.checkpointing.measurement import ShareMeasurement, awaited, put_together
from trimtab_trainer.checkpointing.reasons import SaveRefusal
from trimtab_trainer.checkpointing.shards import METADATA_NAME, ShardLayout
from trimtab_trainer.checkpointing.staging import StagingRoom
from trimtab_trainer.checkpointing.state import FlatState, describe, tensors_of
from trimtab_trainer.checkpointing.uploading import ObjectUpload, Pace
from trimtab_trainer.errors import PeerLost, SaveBroken, StoreError
from trimtab_trainer.retries import retried

PEER_GRACE_SECONDS = 30.0
"""How much longer than its own deadline a rank waits for another's word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveRequest:
    """What the manifest says beside what the background finds out."""

    step: int
    attempt: int
    trigger: Trigger
    next_window: int
    skip: tuple[tuple[int, int], ...]
    lr: LearningRateOverride | None
    learning_rate: float
    optimizer_steps: int
    evaluation: EvaluationProbe
    config_sha256: str
    code_sha256: str
    saved_at: float
    config: ConfigRecord | None


@dataclass(slots=True)
class SaveJob:
    """One save on its way; `reference` is set when it became durable, `done` in any case at the end."""

    request: SaveRequest
    prefix: str
    flat: FlatState
    rank_state: bytes
    layout: ShardLayout
    deadline: float
    measured: Future[ShareMeasurement] | None = None
    """This rank's part of the request's evaluation; None where that is whole as it stands."""

    reference: CheckpointReference | None = None
    done: threading.Event = field(default_factory=threading.Event)


class _Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank stored, or why it could not; `lengths` of the slices in its shard."""

    objects: dict[str, StoredObject] = {}
    lengths: tuple[int, ...] = ()
    measured: ShareMeasurement | None = None
    failed: str = ""


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 made of the shares."""

    reference: CheckpointReference | None = None
    failed: str = ""


class _NotCommitted(Exception):
    """The copy must not be committed."""

    def __init__(self, reason: SaveRefusal, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(detail)


class SaveThread(threading.Thread):
    """Makes one save after another durable; `saved` receives each that succeeded."""

    def __init__(
        self,
        store: ObjectStore,
        board: Board,
        *,
        run: keys.RunId,
        rank: int,
        world_size: int,
        events: deque[CheckpointEvent],
        saved: "queue.SimpleQueue[tuple[str, CheckpointReference] | None]",
        stopped: threading.Event,
        prove: Callable[[], None],
        room: StagingRoom,
        pace: Pace,
    ) -> None:
        super().__init__(name="checkpoint-save", daemon=True)
        self._prove, self._room, self._pace = prove, room, pace
        self._store, self._board, self._run_id = store, board, run
        self._rank, self._world_size = rank, world_size
        self._events, self._saved, self._stopped = events, saved, stopped
        self._jobs: queue.SimpleQueue[SaveJob | None] = queue.SimpleQueue()

    def submit(self, job: SaveJob | None) -> None:
        """Queue a save; None ends the thread after those queued before."""
        self._jobs.put(job)

    def run(self) -> None:
        """Work until told to end."""
        while (job := self._jobs.get()) is not None:
            try:
                self._save(job)
            finally:
                self._room.give_back(job.flat)
                job.flat = {}
                job.done.set()

    def _save(self, job: SaveJob) -> None:
        step = job.request.step
        try:
            reference = self._committed(job)
        except _NotCommitted as refused:
            self._events.append(SaveRefused(step, refused.reason, refused.detail, job.request.trigger))
        except (StoreError, SaveBroken, PeerLost, OSError) as error:
            self._events.append(SaveFailed(step, str(error), job.request.trigger))
        else:
            job.reference = reference
            self._events.append(Saved(reference, job.request.trigger))
            self._saved.put((job.prefix, reference))

    def _committed(self, job: SaveJob) -> CheckpointReference:
        # The copy is inspected while it leaves; no object of it is complete before all ranks agree that it may be.
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-inspect") as pool:
            inspecting = pool.submit(self._inspected, job)
            try:
                share = self._stored(job, inspecting)
            except (StoreError, SaveBroken, OSError) as error:
                self._tell(f"{job.prefix}objects/{self._rank}", _Share(failed=f"rank {self._rank}: {error}"))
                if self._rank == 0:
                    self._tell(f"{job.prefix}outcome", _Outcome(failed=f"rank 0: {error}"))
                raise
            own = inspecting.result()
        self._tell(f"{job.prefix}objects/{self._rank}", share)
        if self._rank == 0:
            return self._finished(job, own)
        body = self._board.wait([f"{job.prefix}outcome"], job.deadline + 2 * PEER_GRACE_SECONDS)[0]
        outcome = msgspec.json.decode(body, type=_Outcome)
        if outcome.reference is None:
            raise PeerLost(outcome.failed)
        return outcome.reference

    def _inspected(self, job: SaveJob) -> Inspection:
        """Compare the copies of all ranks; every rank comes to the same conclusion."""
        own = inspect(job.flat)
        self._tell(f"{job.prefix}inspection/{self._rank}", own)
        bodies = self._board.wait(self._of_all(job, "inspection"), job.deadline + PEER_GRACE_SECONDS)
        found = [msgspec.json.decode(body, type=Inspection) for body in bodies]
        refused = refusal(found, list(tensors_of(job.flat)))
        if refused is not None:
            raise _NotCommitted(*refused)
        return msgspec.structs.replace(own, checksum=checksum_of_all(found))

    def _stored(self, job: SaveJob, inspecting: Future[Inspection]) -> _Share:
        # A run that goes on from here after a crash must still be able to show how it got here.
        retried(self._prove, job.deadline, self._stopped)
        with self._uploading(job, job.layout.object_name) as shard:
            job.layout.write(job.flat, shard)
            inspecting.result()
        objects = self._put_index(job, job.layout.object_name, shard)
        objects |= self._put(job, f"rank-{self._rank:06d}.json", job.rank_state)
        lengths = tuple(part.length for part in shard.slices)
        return _Share(objects=objects, lengths=lengths, measured=self._measured(job))

    def _put_index(self, job: SaveJob, name: str, shard: ObjectUpload) -> dict[str, StoredObject]:
        """Store which slices the shard has: rank 0, and the manifest, could not hold those of all ranks."""
        tensors = tensors_of(job.flat)
        values = sum(part.name not in tensors for part in shard.slices)
        stored = shard.stored(self._rank, index_name(name), values)
        index = SliceIndex(name=name, sha256=stored.sha256, slices=shard.slices)
        return {name: stored, **self._put(job, stored.index, encode_index(index))}

    def _measured(self, job: SaveJob) -> ShareMeasurement | None:
        found = None if job.measured is None else awaited(job.measured, self._stopped)
        # How long a step takes is not held against the save: what is left to store is small, and gets its time.
        job.deadline = max(job.deadline, time.monotonic() + PEER_GRACE_SECONDS)
        return found

    def _uploading(self, job: SaveJob, name: str) -> ObjectUpload:
        return ObjectUpload(
            self._store, f"{job.prefix}{name}", pace=self._pace, deadline=job.deadline, stopped=self._stopped
        )

    def _put(self, job: SaveJob, name: str, body: bytes) -> dict[str, StoredObject]:
        with self._uploading(job, name) as upload:
            upload.write(body)
        return {name: upload.stored(self._rank)}

    def _finished(self, job: SaveJob, own: Inspection) -> CheckpointReference:
        """On rank 0: when all shares are there, `.metadata`, and the manifest last."""
        try:
            bodies = self._board.wait(self._of_all(job, "objects"), job.deadline + PEER_GRACE_SECONDS)
            shares = _complete([msgspec.json.decode(body, type=_Share) for body in bodies])
            metadata = job.layout.metadata([share.lengths for share in shares])
            objects = {name: stored for share in shares for name, stored in share.objects.items()}
            objects |= self._put(job, METADATA_NAME, metadata)
            measured = [share.measured for share in shares if share.measured is not None]
            body = _readable(encode_manifest(self._manifest(job, own, objects, measured)))
            self._put(job, keys.MANIFEST_NAME, body)
        except (StoreError, SaveBroken, PeerLost, OSError) as error:
            self._tell(f"{job.prefix}outcome", _Outcome(failed=str(error)))
            raise
        reference = CheckpointReference(
            key=f"{job.prefix}{keys.MANIFEST_NAME}", sha256=sha256_hex(body), step=job.request.step
        )
        self._tell(f"{job.prefix}outcome", _Outcome(reference=reference))
        return reference

    def _manifest(
        self, job: SaveJob, own: Inspection, objects: dict[str, StoredObject], measured: list[ShareMeasurement]
    ) -> CheckpointManifest:
        request = job.request
        return CheckpointManifest(
            run=str(self._run_id),
            attempt=request.attempt,
            step=request.step,
            world_size=self._world_size,
            next_window=request.next_window,
            skip=request.skip,
            lr=request.lr,
            learning_rate=request.learning_rate,
            optimizer_steps=request.optimizer_steps,
            objects=objects,
            tensors=describe(job.flat),
            replica_checksum=own.checksum,
            replicas_agree=True,
            finite=FiniteScan(nonfinite=0),
            evaluation=put_together(request.evaluation, measured) if measured else request.evaluation,
            config_sha256=request.config_sha256,
            code_sha256=request.code_sha256,
            versions={"python": platform.python_version(), "torch": str(torch.__version__)},
            trigger=request.trigger,
            saved_at=request.saved_at,
            config=request.config,
        )

    def _tell(self, key: str, value: msgspec.Struct) -> None:
        self._board.announce(key, msgspec.json.encode(value))

    def _of_all(self, job: SaveJob, kind: str) -> list[str]:
        return [f"{job.prefix}{kind}/{rank}" for rank in range(self._world_size)]


def _readable(manifest: bytes) -> bytes:
    """Raises SaveBroken where nobody would read it: a checkpoint that is stored and never counts is worse than none."""
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise SaveBroken(
            f"the manifest would have {len(manifest)} bytes, and more than {MAX_MANIFEST_BYTES} are not read: it names "
            "every object of every rank, and every tensor; share the state among fewer ranks"
        )
    return manifest


def _complete(shares: list[_Share]) -> list[_Share]:
    failed = [share.failed for share in shares if share.failed]
    if failed:
        raise SaveBroken("; ".join(failed))
    return shares
