"""Evidence the trainer writes beside its checkpoints: probe losses and the log of batches read."""

from collections.abc import Sequence

import msgspec

from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import UNREADABLE, ContractError


class ProbeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Forward-only mean losses per window on one state; `None` stands for a non-finite loss.

    `windows` and `control` hold (window, loss over the global batch) in window order.
    """

    attempt: int
    state: CheckpointReference | None
    windows: tuple[tuple[int, float | None], ...]
    control: tuple[tuple[int, float | None], ...]


class BatchLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One window a rank read for training: SHA-256 of the bytes of this rank's share."""

    attempt: int
    step: int
    window: int
    sha256: str


def encode_probe(evidence: ProbeEvidence) -> bytes:
    """JSON with sorted keys."""
    return msgspec.json.encode(evidence, order="sorted")


def decode_probe(body: bytes) -> ProbeEvidence:
    """Read a probe's evidence; raises ContractError."""
    try:
        return msgspec.json.decode(body, type=ProbeEvidence)
    except UNREADABLE as error:
        message = f"probe evidence cannot be decoded: {error}"
        raise ContractError(message) from error


def encode_batch_log(entries: Sequence[BatchLogEntry]) -> bytes:
    """JSON Lines, one entry a line."""
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def decode_batch_log(body: bytes) -> tuple[BatchLogEntry, ...]:
    """Read a stretch of a batch log; raises ContractError."""
    try:
        return tuple(msgspec.json.decode(line, type=BatchLogEntry) for line in body.splitlines() if line)
    except UNREADABLE as error:
        message = f"batch log cannot be decoded: {error}"
        raise ContractError(message) from error
