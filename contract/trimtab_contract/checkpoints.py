"""CheckpointManifest: what a checkpoint consists of and the evidence needed to trust it."""

import hashlib
from typing import Literal

import msgspec

from trimtab_contract.directives import LearningRateOverride
from trimtab_contract.errors import UNREADABLE, MalformedManifest


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object under the checkpoint's prefix: bytes, SHA-256 of the whole, and the rank that wrote it."""

    size: int
    sha256: str
    rank: int


class TensorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor's dtype (torch's name without the module) and shape."""

    dtype: str
    shape: tuple[int, ...]


class FiniteScan(msgspec.Struct, frozen=True, kw_only=True):
    """Non-finite elements found in the very copy that was saved."""

    nonfinite: int
    tensors: tuple[str, ...] = ()


class EvaluationProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation-mode loss of one micro-batch per rank of the next window; the restoring side repeats it.

    `losses[rank]` are float64 images of the float32 losses, None where one is not finite (JSON writes it so): the
    state may be sound and the window bad. `window_sha256` hashes the bytes of the whole window.
    """

    window: int
    window_sha256: str
    losses: tuple[float | None, ...]


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to judge and to restore the state after `step` of `attempt`."""

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
    trigger: Literal["Initial", "Periodic", "Final", "Terminated"]
    saved_at: float
    schema: int = 1


def encode_manifest(manifest: CheckpointManifest) -> bytes:
    """JSON with sorted keys."""
    return msgspec.json.encode(manifest, order="sorted")


def decode_manifest(body: bytes) -> CheckpointManifest:
    """Read a manifest; raises MalformedManifest."""
    try:
        manifest = msgspec.json.decode(body, type=CheckpointManifest)
    except UNREADABLE as error:
        message = f"manifest cannot be decoded: {error}"
        raise MalformedManifest(message) from error
    if manifest.schema != 1:
        message = f"manifest schema {manifest.schema} is not supported; this version reads schema 1"
        raise MalformedManifest(message)
    return manifest


def sha256_hex(body: bytes) -> str:
    """The SHA-256 of `body` as lower-case hex."""
    return hashlib.sha256(body).hexdigest()
