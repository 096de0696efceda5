"""The local half of a restore: everything is fetched, verified and loaded beside the live state."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch.distributed.checkpoint.api import CheckpointException
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, StoredObject, decode_manifest, sha256_hex
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError, MalformedManifest

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.coordination import retried
from trimtab_trainer.checkpointing.inspection import inspect
from trimtab_trainer.checkpointing.reasons import RestoreFailure
from trimtab_trainer.checkpointing.shards import METADATA_NAME, read_shards
from trimtab_trainer.checkpointing.state import FlatState, describe, empty_on_host
from trimtab_trainer.errors import ObjectMissing, RestoreFailed, StoreRefused, StoreUnavailable

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checkpoint beside the live state, proved to be what was saved; `rank_state` when this rank wrote one."""

    manifest: CheckpointManifest
    flat: FlatState
    rank_state: bytes | None


@dataclass(frozen=True, slots=True)
class Restoration:
    """Where checkpoints of a run lie, and how patiently they are read."""

    store: ObjectStore
    root: str
    run: keys.RunId
    rank: int
    patience_seconds: float
    stopped: threading.Event
    on_progress: Callable[[], None]

    def fetch(self, reference: CheckpointReference, live: FlatState, skip: SkipLedger, folder: Path) -> Fetched:
        """Fetch into `folder`, verify every object whole, then load; raises RestoreFailed.

        `live` gives names, types and shapes and is not touched; nothing is unpickled before all is verified.
        """
        deadline = time.monotonic() + self.patience_seconds
        prefix = self._prefix(reference)
        manifest = self._manifest(reference, deadline)
        _check_manifest(manifest, reference, self.run, skip)
        _check_structure(manifest, live)
        for name, stored in manifest.objects.items():
            self._fetch_object(f"{prefix}{name}", stored, folder / name, deadline)
        flat = empty_on_host(live)
        _load(folder, flat)
        found = inspect(flat).checksum
        if found != manifest.replica_checksum:
            detail = f"the loaded state has checksum {found}, the saved one {manifest.replica_checksum}"
            raise RestoreFailed(RestoreFailure.CONTENT_MISMATCH, METADATA_NAME, detail)
        own = folder / f"rank-{self.rank:06d}.json"
        return Fetched(manifest, flat, own.read_bytes() if own.name in manifest.objects else None)

    def _prefix(self, reference: CheckpointReference) -> str:
        prefix = reference.key.removesuffix(keys.MANIFEST_NAME)
        home = keys.checkpoints_prefix(self.root, self.run)
        if prefix == reference.key or not prefix.startswith(home):
            raise RestoreFailed(
                RestoreFailure.OTHER_RUN, reference.key, f"it is no manifest under {home}, where this run's lie"
            )
        return prefix

    def _manifest(self, reference: CheckpointReference, deadline: float) -> CheckpointManifest:
        body = self._patiently(lambda: self.store.get(reference.key), reference.key, deadline)
        if sha256_hex(body) != reference.sha256:
            detail = f"its SHA-256 is {sha256_hex(body)}, asked for was {reference.sha256}"
            raise RestoreFailed(RestoreFailure.MANIFEST_DAMAGED, reference.key, detail)
        try:
            return decode_manifest(body)
        except MalformedManifest as error:
            raise RestoreFailed(RestoreFailure.MANIFEST_DAMAGED, reference.key, str(error)) from error

    def _fetch_object(self, key: str, stored: StoredObject, path: Path, deadline: float) -> None:
        def attempt() -> tuple[int, str]:
            digest, size = hashlib.sha256(), 0
            with path.open("wb") as file:
                for chunk in self.store.chunks(key):
                    digest.update(chunk)
                    size += file.write(chunk)
                    self.on_progress()
            return size, digest.hexdigest()

        size, sha256 = self._patiently(attempt, key, deadline)
        if (size, sha256) != (stored.size, stored.sha256):
            detail = f"{size} bytes of SHA-256 {sha256}; saved were {stored.size} of {stored.sha256}"
            raise RestoreFailed(RestoreFailure.OBJECT_DAMAGED, key, detail)

    def _patiently(self, operation: Callable[[], Result], key: str, deadline: float) -> Result:
        try:
            return retried(operation, deadline, self.stopped, self.on_progress)
        except ObjectMissing as error:
            raise RestoreFailed(RestoreFailure.OBJECT_MISSING, key, str(error)) from error
        except StoreRefused as error:
            raise RestoreFailed(RestoreFailure.STORE_REFUSED, key, str(error)) from error
        except StoreUnavailable as error:
            raise RestoreFailed(RestoreFailure.STORE_UNAVAILABLE, key, str(error)) from error


def _check_manifest(
    manifest: CheckpointManifest, reference: CheckpointReference, run: keys.RunId, skip: SkipLedger
) -> None:
    """Raise RestoreFailed unless the manifest is of this run and step, valid, and fits the ledger in force."""
    name = reference.key
    if manifest.run != str(run):
        raise RestoreFailed(RestoreFailure.OTHER_RUN, name, f"it belongs to run {manifest.run}")
    if any("/" in part or part in {"", ".", "..", keys.MANIFEST_NAME} for part in manifest.objects):
        raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, name, "an object's name is no plain file name")
    if METADATA_NAME not in manifest.objects:
        raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, name, f"it lists no {METADATA_NAME}")
    if not manifest.replicas_agree or manifest.finite.nonfinite:
        raise RestoreFailed(RestoreFailure.STATE_NOT_VALID, name, "its replicas differ or its state is not finite")
    try:
        saved = SkipLedger(manifest.skip)
        expected = saved.window_of_step(manifest.step + 1)
    except ContractError as error:
        raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, name, str(error)) from error
    if (manifest.step, manifest.next_window) != (reference.step, expected):
        detail = f"step {manifest.step} and next window {manifest.next_window}; expected {reference.step}, {expected}"
        raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, name, detail)
    if not saved.agrees_up_to(skip, manifest.step):
        detail = f"up to step {manifest.step} it skipped {list(manifest.skip)}, in force is {list(skip.ranges)}"
        raise RestoreFailed(RestoreFailure.SKIP_LEDGER_MISMATCH, name, detail)


def _check_structure(manifest: CheckpointManifest, live: FlatState) -> None:
    own = describe(live)
    for name in sorted(own.keys() | manifest.tensors.keys()):
        mine, saved = own.get(name), manifest.tensors.get(name)
        if mine != saved:
            raise RestoreFailed(RestoreFailure.STRUCTURE_MISMATCH, name, f"saved is {saved}, this run has {mine}")


def _load(folder: Path, flat: FlatState) -> None:
    try:
        read_shards(folder, flat)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RestoreFailed(RestoreFailure.UNREADABLE, METADATA_NAME, lines[-1]) from error
