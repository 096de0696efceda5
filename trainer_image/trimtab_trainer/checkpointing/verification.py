"""Reading checkpoints back: rank r hashes the objects of the same local rank on the next node."""

import queue
import threading
import time
from collections import deque

import msgspec
from trimtab_contract.directives import VERIFIED_BY_SELF, CheckpointReference
from trimtab_contract.errors import NewerManifest

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.coordination import Board
from trimtab_trainer.checkpointing.events import (
    CheckpointEvent,
    VerificationAbandoned,
    Verified,
    VerifyFailed,
)
from trimtab_trainer.errors import PeerLost, StoreError
from trimtab_trainer.read_back import Reader

PEER_GRACE_SECONDS = 30.0


class _Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank read: `object_name` is set when an object is not what was saved."""

    host: str
    object_name: str = ""
    detail: str = ""
    unknown: str = ""


class VerificationThread(threading.Thread):
    """Verifies one checkpoint after another, at a bounded rate."""

    def __init__(
        self,
        store: ObjectStore,
        board: Board,
        *,
        rank: int,
        world_size: int,
        processes_per_node: int,
        host: str,
        patience_seconds: float,
        bytes_per_second: float,
        events: deque[CheckpointEvent],
        saved: "queue.SimpleQueue[tuple[str, CheckpointReference] | None]",
        stopped: threading.Event,
    ) -> None:
        super().__init__(name="checkpoint-verify", daemon=True)
        self._board = board
        self._reader = Reader(store, stopped, bytes_per_second)
        self._rank, self._world_size, self._host = rank, world_size, host
        self._target = (rank + processes_per_node) % world_size
        self._alone = processes_per_node >= world_size
        self._patience = patience_seconds
        self._events, self._saved = events, saved

    def run(self) -> None:
        """Work until told to end."""
        while (item := self._saved.get()) is not None:
            prefix, reference = item
            try:
                self._verify(prefix, reference)
            except PeerLost as error:
                if self._rank == 0:
                    self._events.append(VerificationAbandoned(reference, str(error)))

    def _verify(self, prefix: str, reference: CheckpointReference) -> None:
        deadline = time.monotonic() + self._patience
        finding = self._finding(reference, deadline)
        self._board.announce(f"{prefix}verified/{self._rank}", msgspec.json.encode(finding))
        if self._rank != 0:
            return
        ranks = range(self._world_size)
        bodies = self._board.wait([f"{prefix}verified/{rank}" for rank in ranks], deadline + PEER_GRACE_SECONDS)
        self._events.append(self._verdict(reference, [msgspec.json.decode(body, type=_Finding) for body in bodies]))
        spent = [f"{prefix}{kind}/{rank}" for kind in ("inspection", "objects", "verified") for rank in ranks]
        self._board.forget([*spent, f"{prefix}outcome"])

    def _verdict(self, reference: CheckpointReference, findings: list[_Finding]) -> CheckpointEvent:
        by = VERIFIED_BY_SELF if self._alone else ",".join(sorted({finding.host for finding in findings}))
        for finding in findings:
            if finding.object_name:
                return VerifyFailed(reference, by, finding.object_name, finding.detail)
        for finding in findings:
            if finding.unknown:
                return VerificationAbandoned(reference, finding.unknown)
        return Verified(reference, by)

    def _finding(self, reference: CheckpointReference, deadline: float) -> _Finding:
        try:
            damage = self._reader.damage(reference, deadline, lambda stored: stored.rank == self._target)
        except (StoreError, NewerManifest) as error:
            return _Finding(host=self._host, unknown=str(error))
        if damage is None:
            return _Finding(host=self._host)
        return _Finding(host=self._host, object_name=damage.object_name, detail=damage.detail)
