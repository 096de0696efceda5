"""MetricRecord: one optimizer step of one attempt, and its wire form (msgpack, so that NaN survives)."""

import math
import re
import struct
from collections.abc import Iterable, Sequence

import msgspec

from trimtab_contract.errors import UNREADABLE, MalformedRecord

MAX_RECORD_BYTES = 4 * 1024 * 1024
METRIC_NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
STREAM_FIELD = b"r"
"""The one field of a Redis stream entry that carries the record."""

KNOWN_SCALARS = (
    "loss",
    "loss_max",
    "grad_norm",
    "clip_ratio",
    "lr",
    "update_rms",
    "tokens_per_second",
    "step_seconds",
    "nonfinite",
    "skipped_update",
    "loss_scale",
    "replica_mismatch",
    "z_loss",
    "router_entropy",
    "dead_experts",
    "memory_allocated",
    "nonfinite_gradients",
    "nonfinite_weights",
    "nonfinite_state",
    "weight_norm",
    "momentum_norm",
    "spectral_norm",
    "qk_clip_share",
)
KNOWN_VECTORS = (
    "qk_max_logit",
    "qk_max_logit_bound",
    "qk_clip_gamma",
    "qk_clip_rate",
    "qk_clip_smallest",
    "layer_weight_norm",
    "layer_momentum_norm",
    "layer_spectral_norm",
    "layer_update_rms",
    "layer_router_entropy",
    "expert_load",
    "dropped_tokens",
    "group_grad_norm",
    "group_clip_ratio",
)


class Vector(msgspec.Struct, frozen=True, array_like=True):
    """A dense array of 32-bit floats: `shape`, and the values packed little-endian in row-major order."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def pack(cls, shape: Sequence[int], values: Iterable[float]) -> "Vector":
        """Pack `values` (row-major); raises MalformedRecord when their number is not the product of `shape`."""
        flat = tuple(values)
        vector = cls(tuple(shape), struct.pack(f"<{len(flat)}f", *flat))
        vector.check("vector")
        return vector

    def values(self) -> tuple[float, ...]:
        """The values in row-major order."""
        return struct.unpack(f"<{len(self.data) // 4}f", self.data)

    def index(self, flat: int) -> tuple[int, ...]:
        """The element's index, such as (layer, head), from its row-major offset."""
        index: list[int] = []
        for size in reversed(self.shape):
            flat, rest = divmod(flat, size)
            index.append(rest)
        return tuple(reversed(index))

    def check(self, name: str) -> None:
        """Raise MalformedRecord when shape and length disagree."""
        if any(size < 1 for size in self.shape) or math.prod(self.shape) * 4 != len(self.data):
            message = f"{name}: shape {list(self.shape)} does not fit {len(self.data)} bytes of 32-bit floats"
            raise MalformedRecord(message)


class MetricRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one optimizer step looked like after reduction over all ranks.

    `(attempt, step)` is the identity within a run: step numbers repeat after a rollback. `step` counts from 1;
    `window` is the absolute data window (0-based) the step trained on; `time` is seconds since the epoch.
    """

    attempt: int
    step: int
    window: int
    samples_seen: int
    tokens_seen: int
    time: float
    scalars: dict[str, float]
    vectors: dict[str, Vector] = {}
    schema: int = 1

    def check(self) -> None:
        """Raise MalformedRecord naming the first field that cannot be right."""
        if self.schema != 1:
            message = f"schema {self.schema} is not supported; this version reads schema 1"
            raise MalformedRecord(message)
        if self.attempt < 1 or self.step < 1 or self.window < 0:
            message = f"attempt {self.attempt}, step {self.step}, window {self.window} are out of range"
            raise MalformedRecord(message)
        for name in (*self.scalars, *self.vectors):
            if not METRIC_NAME.fullmatch(name):
                message = f"metric name {name!r} does not match {METRIC_NAME.pattern}"
                raise MalformedRecord(message)
        for name, vector in self.vectors.items():
            vector.check(name)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MetricRecord)
_archive_decoder = msgspec.msgpack.Decoder(tuple[MetricRecord, ...])


def encode_record(record: MetricRecord) -> bytes:
    """Check and encode; raises MalformedRecord, also over 4 MiB."""
    record.check()
    wire = _encoder.encode(record)
    if len(wire) > MAX_RECORD_BYTES:
        message = f"record of step {record.step} has {len(wire)} bytes; at most {MAX_RECORD_BYTES} are allowed"
        raise MalformedRecord(message)
    return wire


def decode_record(wire: bytes) -> MetricRecord:
    """Decode and check; raises MalformedRecord."""
    if len(wire) > MAX_RECORD_BYTES:
        message = f"record has {len(wire)} bytes; at most {MAX_RECORD_BYTES} are allowed"
        raise MalformedRecord(message)
    try:
        record = _decoder.decode(wire)
    except UNREADABLE as error:
        message = f"record cannot be decoded: {error}"
        raise MalformedRecord(message) from error
    record.check()
    return record


def encode_archive(records: Sequence[MetricRecord]) -> bytes:
    """The body of one archived stretch, records in step order."""
    return _encoder.encode(tuple(records))


def decode_archive(body: bytes) -> tuple[MetricRecord, ...]:
    """Read an archived stretch; raises MalformedRecord."""
    try:
        records = _archive_decoder.decode(body)
    except UNREADABLE as error:
        message = f"archived records cannot be decoded: {error}"
        raise MalformedRecord(message) from error
    for record in records:
        record.check()
    return records
