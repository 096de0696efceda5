"""TensorBoard's Event message: its step, wall time and scalars. Everything else in it is passed over.

Field numbers: tensorflow/core/util/event.proto, framework/summary.proto, tensor.proto, tensor_shape.proto.
"""

import struct
from collections.abc import Iterator

import msgspec

from trimtab_policies.log_readers.protobuf import MalformedMessage, fields, signed, unpacked, varint

_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_SHAPE, _TENSOR_CONTENT, _TENSOR_HALF = 1, 2, 4, 13
_SHAPE_DIMENSION, _DIMENSION_SIZE = 2, 1
_FORMS = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}
"""TensorFlow's DataType -> how `tensor_content` packs a number."""
_BFLOAT16, _HALF = 14, 19
_TYPED_FIELDS = {1: 5, 2: 6, 3: 7, 9: 10}
"""DataType -> the repeated field that holds the numbers when `tensor_content` does not."""


class ScalarEvent(msgspec.Struct, frozen=True):
    """The scalars of one event, by tag; `time` is in seconds since the epoch."""

    step: int
    time: float
    scalars: dict[str, float]


def scalar_event(message: bytes) -> ScalarEvent:
    """Read an Event; raises MalformedMessage."""
    step, time = 0, 0.0
    scalars: dict[str, float] = {}
    for number, _, value in fields(message):
        if number == _EVENT_STEP and isinstance(value, int):
            step = signed(value)
        elif number == _EVENT_WALL_TIME:
            time = unpacked("<d", value)
        elif number == _EVENT_SUMMARY and isinstance(value, bytes):
            scalars.update(_summary(value))
    return ScalarEvent(step, time, scalars)


def _summary(message: bytes) -> Iterator[tuple[str, float]]:
    for number, _, value in fields(message):
        if number == _SUMMARY_VALUE and isinstance(value, bytes):
            tag, scalar = _value(value)
            if scalar is not None:
                yield tag, scalar


def _value(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, _, value in fields(message):
        if number == _VALUE_TAG and isinstance(value, bytes):
            tag = value.decode(errors="replace")
        elif number == _VALUE_SIMPLE:
            scalar = unpacked("<f", value)
        elif number == _VALUE_TENSOR and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(message: bytes) -> float | None:
    """The number of a tensor with one element; None for any other tensor."""
    kind, elements, content = 0, 1, b""
    typed: dict[int, tuple[int | bytes, int]] = {}
    for number, wire, value in fields(message):
        if number == _TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == _TENSOR_SHAPE and isinstance(value, bytes):
            elements = _elements(value)
        elif number == _TENSOR_CONTENT and isinstance(value, bytes):
            content = value
        else:
            typed[number] = (value, wire)
    if elements != 1:
        return None
    if kind in {_BFLOAT16, _HALF}:
        return _half(kind, content, typed.get(_TENSOR_HALF))
    form = _FORMS.get(kind)
    if form is None:
        return None
    if content:
        return float(unpacked(form, content))
    return _typed(form, typed.get(_TYPED_FIELDS[kind]))


def _typed(form: str, found: tuple[int | bytes, int] | None) -> float | None:
    """A repeated field with one number, packed or not; a field that is absent stands for no number at all."""
    if found is None:
        return None
    value, _ = found
    if isinstance(value, int):
        return float(signed(value))
    if form in {"<i", "<q"}:
        return float(signed(varint(value, 0)[0]))
    return float(unpacked(form, value))


def _half(kind: int, content: bytes, found: tuple[int | bytes, int] | None) -> float | None:
    if content:
        if len(content) != 2:
            raise MalformedMessage("a 16-bit number has another width")
        bits = int.from_bytes(content, "little")
    elif found is not None:
        bits = found[0] if isinstance(found[0], int) else varint(found[0], 0)[0]
    else:
        return None
    bits &= 0xFFFF
    packed = struct.pack("<I", bits << 16) if kind == _BFLOAT16 else struct.pack("<H", bits)
    return struct.unpack("<f" if kind == _BFLOAT16 else "<e", packed)[0]


def _elements(shape: bytes) -> int:
    elements = 1
    for number, _, value in fields(shape):
        if number == _SHAPE_DIMENSION and isinstance(value, bytes):
            sizes = [
                signed(size) for field, _, size in fields(value) if field == _DIMENSION_SIZE and isinstance(size, int)
            ]
            elements *= sizes[-1] if sizes else 0
    return elements
