"""Reading checkpoints back: rank r hashes the objects of the same local rank on the next node."""

import hashlib
import queue
import threading
import time
from collections import deque

import msgspec
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, StoredObject, decode_manifest, sha256_hex
from trimtab_contract.directives import VERIFIED_BY_SELF, CheckpointReference
from trimtab_contract.errors import MalformedManifest

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.coordination import Board, retried
from trimtab_trainer.checkpointing.events import (
    CheckpointEvent,
    VerificationAbandoned,
    Verified,
    VerifyFailed,
)
from trimtab_trainer.errors import ObjectMissing, PeerLost, StoreError

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
        self._store, self._board = store, board
        self._rank, self._world_size, self._host = rank, world_size, host
        self._target = (rank + processes_per_node) % world_size
        self._alone = processes_per_node >= world_size
        self._patience, self._rate = patience_seconds, bytes_per_second
        self._events, self._saved, self._stopped = events, saved, stopped

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
        finding = self._finding(prefix, reference, deadline)
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

    def _finding(self, prefix: str, reference: CheckpointReference, deadline: float) -> _Finding:
        name = keys.MANIFEST_NAME
        try:
            for name, stored in self._objects(reference, deadline).items():
                problem = retried(lambda: self._problem(f"{prefix}{name}", stored), deadline, self._stopped)  # noqa: B023 called at once
                if problem:
                    return _Finding(host=self._host, object_name=name, detail=problem)
        except (MalformedManifest, ObjectMissing) as error:
            return _Finding(host=self._host, object_name=name, detail=str(error))
        except StoreError as error:
            return _Finding(host=self._host, unknown=str(error))
        return _Finding(host=self._host)

    def _objects(self, reference: CheckpointReference, deadline: float) -> dict[str, StoredObject]:
        """The objects this rank reads; raises MalformedManifest when the manifest itself is not what was saved."""
        body = retried(lambda: self._store.get(reference.key), deadline, self._stopped)
        if sha256_hex(body) != reference.sha256:
            raise MalformedManifest("the manifest read back does not have the SHA-256 it was saved with")
        manifest: CheckpointManifest = decode_manifest(body)
        return {name: stored for name, stored in manifest.objects.items() if stored.rank == self._target}

    def _problem(self, key: str, stored: StoredObject) -> str:
        digest, size = hashlib.sha256(), 0
        for chunk in self._store.chunks(key):
            digest.update(chunk)
            size += len(chunk)
            self._stopped.wait(len(chunk) / self._rate)
        if size != stored.size:
            return f"{size} bytes read back, {stored.size} saved"
        return "" if digest.hexdigest() == stored.sha256 else "the bytes read back have another SHA-256"
