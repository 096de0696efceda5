"""The local half of a restore: everything is fetched, verified and loaded beside the live state."""

import hashlib
import pickle
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch.distributed.checkpoint.api import CheckpointException
from trimtab_contract import keys
from trimtab_contract.checkpoints import (
    CheckpointManifest,
    StoredObject,
    TensorDescription,
    decode_manifest,
    sha256_hex,
)
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference, Reason
from trimtab_contract.errors import ContractError, MalformedManifest, NewerManifest

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.arrival import Apart
from trimtab_trainer.checkpointing.reading import Place, VerifiedReader, patiently
from trimtab_trainer.checkpointing.reasons import RestoreFailure
from trimtab_trainer.checkpointing.shards import METADATA_NAME, ShardReading, read_shards
from trimtab_trainer.checkpointing.state import FlatState, describe, tensors_of
from trimtab_trainer.errors import RestoreFailed
from trimtab_trainer.optim.checksum import GrowingChecksum, GrowingSum, ParameterChecksum, parameter_checksum

SHOWN_TENSORS = 4
"""Of those that are otherwise than this run's."""

Result = TypeVar("Result")

Fit = Callable[[CheckpointManifest, str], str]
"""Why a checkpoint cannot be restored under this run's configuration, empty where it can; asked before anything of it
is fetched. The text says which tensors are otherwise than this run's."""


def fits_by_structure(_manifest: CheckpointManifest, structure: str) -> str:
    """Only the tensors count."""
    return structure


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checkpoint beside the live state, as far as this rank reads it; `rank_state` when this rank wrote one."""

    manifest: CheckpointManifest
    flat: FlatState
    checksum: ParameterChecksum
    rank_state: bytes | None


@dataclass(frozen=True, slots=True)
class Restoration:
    """Where checkpoints of `runs` lie, and how patiently they are read: of this run, and of one that it continues."""

    store: ObjectStore
    root: str
    runs: tuple[keys.RunId, ...]
    rank: int
    patience_seconds: float
    stopped: threading.Event
    on_progress: Callable[[], None]

    def fetch(
        self, reference: CheckpointReference, into: FlatState, skip: SkipLedger, folder: Path, fit: Fit
    ) -> Fetched:
        """Read what this rank needs, each slice verified before it is deserialised; raises RestoreFailed.

        `into`, beside the live state, gives names, types and shapes, and is filled. `.metadata` is verified before it
        is unpickled, and says from which objects this rank reads; only their indexes are read. All plain values are
        verified before the first of them is unpickled. Objects of schema 1 have no slices: they are fetched into
        `folder` and verified whole before anything is loaded.
        """
        deadline = time.monotonic() + self.patience_seconds
        prefix, run = self._place(reference)
        manifest = self._manifest(reference, deadline)
        _check_manifest(manifest, reference, run, skip)
        _check_fit(manifest, reference, into, fit)
        reader = VerifiedReader(self.store, prefix, manifest.objects, deadline, self.stopped, self.on_progress)
        own = f"rank-{self.rank:06d}.json"
        apart = [reader.whole(own)] if own in manifest.objects else []
        if manifest.schema != 1:
            return _read_slices(reader, manifest, into, apart)
        folder.mkdir(parents=True, exist_ok=True)
        for name, stored in manifest.objects.items():
            self._fetch_object(f"{prefix}{name}", stored, folder / name, deadline)
        with _told():
            read_shards(folder, into)
        rank_state = (folder / own).read_bytes() if apart else None
        return Fetched(manifest, into, parameter_checksum(tensors_of(into).items()), rank_state)

    def _place(self, reference: CheckpointReference) -> tuple[str, keys.RunId]:
        """The prefix of the checkpoint's objects, and the run whose it must be."""
        prefix = reference.key.removesuffix(keys.MANIFEST_NAME)
        homes = {keys.checkpoints_prefix(self.root, run): run for run in self.runs}
        run = next((run for home, run in homes.items() if prefix.startswith(home)), None)
        if prefix == reference.key or run is None:
            own, *continued = homes
            others = f", nor under {continued[0]}, where those of the run that it continues lie" if continued else ""
            detail = f"it is no manifest under {own}, where this run's lie{others}"
            raise RestoreFailed(RestoreFailure.OTHER_RUN, reference.key, detail)
        return prefix, run

    def _manifest(self, reference: CheckpointReference, deadline: float) -> CheckpointManifest:
        body = self._patiently(lambda: self.store.get(reference.key), reference.key, deadline)
        if sha256_hex(body) != reference.sha256:
            detail = f"its SHA-256 is {sha256_hex(body)}, asked for was {reference.sha256}"
            raise RestoreFailed(RestoreFailure.MANIFEST_DAMAGED, reference.key, detail)
        try:
            return decode_manifest(body)
        except NewerManifest as error:
            raise RestoreFailed(RestoreFailure.NEWER_SCHEMA, reference.key, str(error)) from error
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
        return patiently(operation, key, deadline, self.stopped, self.on_progress)


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
    if manifest.trigger == "Suspect":
        raise RestoreFailed(RestoreFailure.STATE_NOT_VALID, name, "it is the suspect state of a run that was held")
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


def _check_fit(manifest: CheckpointManifest, reference: CheckpointReference, live: FlatState, fit: Fit) -> None:
    own, saved = describe(live), manifest.tensors
    names = [name for name in sorted(own.keys() | saved.keys()) if own.get(name) != saved.get(name)]
    told = [f"{one}: saved is {_told_tensor(saved, one)}, this run has {_told_tensor(own, one)}" for one in names]
    more = f"; and {len(names) - SHOWN_TENSORS} more" if len(names) > SHOWN_TENSORS else ""
    problem = fit(manifest, "; ".join(told[:SHOWN_TENSORS]) + more)
    if problem and names:
        raise RestoreFailed(RestoreFailure.STRUCTURE_MISMATCH, names[0], problem)
    if problem:
        raise RestoreFailed(Reason.CONFIG_MISMATCH, reference.key, problem)


def _told_tensor(tensors: Mapping[str, TensorDescription], name: str) -> str:
    found = tensors.get(name)
    return "none" if found is None else f"{found.dtype} {list(found.shape)}"


def _read_slices(reader: VerifiedReader, manifest: CheckpointManifest, into: FlatState, own: list[Place]) -> Fetched:
    """`own` is where this rank's state lies, if it wrote one."""
    metadata = reader.whole(METADATA_NAME)
    bodies: dict[Place, bytes] = {}
    growing: dict[Place, GrowingSum | None] = {}
    checksum = GrowingChecksum(tensors_of(into).items())

    def keep(place: Place, body: memoryview) -> None:
        bodies[place] = bytes(body)

    def aside(place: Place, head: memoryview) -> Apart | None:
        apart = reading.aside(place, head)
        growing[place] = found = apart and checksum.growing(reading.name(place), apart.memory)
        return apart._replace(on_filled=found.take) if apart and found else apart

    def load(place: Place, body: memoryview) -> None:
        loaded, grown = reading.load(place, body), growing.pop(place, None)
        for name in loaded.names:
            checksum.add(name, grown if loaded.as_it_arrived else None)

    # All that is pickled is verified before the first of it is unpickled, and what is no tensor is pickled.
    reader.read([metadata, *own, *reader.values(manifest.tensors)], keep)
    with _told():
        reading = ShardReading(bodies.pop(metadata), into)
    if unsaid := [place for place in reading.values if place not in bodies]:
        detail = f"{METADATA_NAME} names {len(unsaid)} plain values that the manifest does not tell of"
        raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, f"{reader.prefix}{unsaid[0].object_name}", detail)
    reader.learn_slices(place.object_name for place in reading.tensors)
    with _told():
        for place in reading.values:
            reading.load(place, memoryview(bodies[place]))
        reader.read(reading.tensors, load, aside)
    return Fetched(manifest, into, checksum.result(), bodies[own[0]] if own else None)


@contextmanager
def _told() -> Generator[None]:
    """What torch raises while it reads, as RestoreFailed."""
    try:
        yield
    except (CheckpointException, RuntimeError, ValueError, LookupError, OSError, pickle.UnpicklingError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RestoreFailed(RestoreFailure.UNREADABLE, METADATA_NAME, lines[-1]) from error
