"""CheckpointManifest: what a checkpoint consists of and the evidence needed to trust it."""

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from trimtab_contract.config_record import ConfigRecord
from trimtab_contract.data_description import DataDescription
from trimtab_contract.directives import LearningRateOverride
from trimtab_contract.errors import UNREADABLE, MalformedManifest, NewerManifest

MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
"""What whoever judges a checkpoint keeps in memory of it at most."""
SCHEMA = 3
"""Of the manifests that are written. Schema 1, which knew no slices, and 2, which had them itself, are still read."""
_FIRST_WITH_INDEXES = 3


Trigger = Literal["Initial", "Periodic", "Final", "Terminated", "Suspect"]
"""Why a state was saved. A suspect one is that of a run which was held: evidence, and never restored."""


class StoredSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of an object that is deserialised by itself: a chunk of the tensor `name`, or a plain value."""

    name: str
    offset: int
    length: int
    sha256: str


class StoredObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object under the checkpoint's prefix: bytes, SHA-256 of the whole, and the rank that wrote it.

    `index` names the object that lists its slices (`slice_index.SliceIndex`); in schema 2 they are here. They cover the
    object from its first byte to its last, in order. There are none where only the whole can be read: in `.metadata`,
    in what belongs to one rank alone, in indexes, and in all objects of schema 1. `values` says how many of the slices
    in the index are no tensor: they are pickled, so a reader wants to know them before it unpickles anything.
    """

    size: int
    sha256: str
    rank: int
    index: str = ""
    values: int = 0
    slices: tuple[StoredSlice, ...] = ()


class TensorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor's dtype (torch's name without the module) and shape."""

    dtype: str
    shape: tuple[int, ...]


class FiniteScan(msgspec.Struct, frozen=True, kw_only=True):
    """Non-finite elements found in the very copy that was saved."""

    nonfinite: int
    tensors: tuple[str, ...] = ()


class EvaluationProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of every rank's share of the next window; the restoring side measures it again.

    `losses[rank]` are float64 images of the float32 losses, None where one is not finite (JSON writes it so): the
    state may be sound and the window bad. In `mode` Training they are those of the step that came next, with `dropout`,
    which cost nothing; in mode Evaluation a forward pass without dropout measured them. `samples_sha256` is
    `samples_sha256` of the window's samples, `window_sha256` the hash of its bytes in manifests of older versions;
    each is empty where there is none. `data` is what the run trains on, `micro_batch` how many samples were computed at
    once, `seed` the key of dropout, `processors[rank]` what computed the losses: only the same gives the same bits.
    None in manifests of versions that did not say.
    """

    window: int
    losses: tuple[float | None, ...]
    window_sha256: str = ""
    samples_sha256: str = ""
    mode: Literal["Evaluation", "Training"] = "Evaluation"
    dropout: float = 0.0
    data: DataDescription | None = None
    micro_batch: int | None = None
    seed: int | None = None
    processors: tuple[str, ...] | None = None


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to judge and to restore the state after `step` of `attempt`.

    `config` is None in manifests of versions that did not record it, and of trainers of one's own.
    """

    run: str
    attempt: int
    step: int
    world_size: int
    next_window: int
    skip: tuple[tuple[int, int], ...]
    lr: LearningRateOverride | None
    learning_rate: float
    optimizer_steps: int
    objects: dict[str, StoredObject]
    tensors: dict[str, TensorDescription]
    replica_checksum: str
    replicas_agree: bool
    finite: FiniteScan
    evaluation: EvaluationProbe
    config_sha256: str
    code_sha256: str
    versions: dict[str, str]
    trigger: Trigger
    saved_at: float
    config: ConfigRecord | None = None
    schema: int = SCHEMA


class _Version(msgspec.Struct, frozen=True):
    """The one field that manifests of every schema have."""

    schema: int


def encode_manifest(manifest: CheckpointManifest) -> bytes:
    """JSON with sorted keys."""
    return msgspec.json.encode(manifest, order="sorted")


def decode_manifest(body: bytes) -> CheckpointManifest:
    """Read a manifest; raises MalformedManifest, NewerManifest where a newer version wrote it."""
    try:
        schema = msgspec.json.decode(body, type=_Version).schema
        if not 1 <= schema <= SCHEMA:
            message = f"the manifest has schema {schema}, this version reads schemas 1 to {SCHEMA}: {_advice(schema)}"
            raise NewerManifest(message) if schema > SCHEMA else MalformedManifest(message)
        manifest = msgspec.json.decode(body, type=CheckpointManifest)
    except UNREADABLE as error:
        message = f"manifest cannot be decoded: {error}"
        raise MalformedManifest(message) from error
    problem = _index_problem(manifest)
    if problem:
        raise MalformedManifest(problem)
    return manifest


def _index_problem(manifest: CheckpointManifest) -> str:
    """What is wrong with where the slices of an object are listed; empty where nothing is."""
    owners: dict[str, str] = {}
    for name, stored in manifest.objects.items():
        if stored.slices and manifest.schema >= _FIRST_WITH_INDEXES:
            return f"object {name} lists slices in the manifest, which schema {manifest.schema} does in an index"
        if not stored.index:
            continue
        if manifest.schema < _FIRST_WITH_INDEXES:
            return f"object {name} has an index, which schema {manifest.schema} does not know"
        index = manifest.objects.get(stored.index)
        if index is None or index.index or index.rank != stored.rank:
            return f"object {name} has the index {stored.index}, which is no index that rank {stored.rank} stored"
        if stored.index in owners:
            return f"objects {owners[stored.index]} and {name} have the same index {stored.index}"
        owners[stored.index] = name
    return ""


def _advice(schema: int) -> str:
    return "use a Trimtab as new as the one that saved it" if schema > SCHEMA else "it was not written by Trimtab"


def sha256_hex(body: bytes) -> str:
    """The SHA-256 of `body` as lower-case hex."""
    return hashlib.sha256(body).hexdigest()


def samples_sha256(digests: Iterable[str]) -> str:
    """The SHA-256, as hex, of the SHA-256 (hex) of every sample of a window in order.

    Each rank hashes what it trains on anyway, and any number of ranks comes to the same.
    """
    return sha256_hex(b"".join(bytes.fromhex(digest) for digest in digests))
