"""JSON objects -> rows: nested objects by path, lists of numbers as vectors, and the contract's own metric records."""

import json
import math
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, cast

import msgspec
from trimtab_contract.errors import MalformedRecord
from trimtab_contract.metrics import Vector

from trimtab_policies.log_readers.points import NO_ARRAY, Row, Unreadable
from trimtab_policies.log_readers.quantities import NotANumber, number

_decode = msgspec.json.Decoder().decode
_DEEPEST = 8
_MEDIA = "_type"
"""W&B marks histograms, images and tables with it."""
_NONFINITE = "nonfinite"
_RECORD_FIELDS = ("attempt", "step", "scalars")


def decode_json(body: bytes) -> Any:
    """One JSON value; NaN and Infinity, which Python writes, are read too. Raises ValueError."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            content = json.loads(body)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if b"\\u" in body:
            # Half a character cannot be printed; this raises ValueError for it.
            json.dumps(content, ensure_ascii=False).encode()
        return content


def json_row(line: int, body: bytes) -> Row | Unreadable:
    """The row of one JSON object."""
    try:
        content = decode_json(body)
    except ValueError as error:
        return Unreadable(line, f"is not JSON: {_reason(error)}")
    if not isinstance(content, dict):
        return Unreadable(line, "is JSON, but no object with a step and metrics")
    return object_row(line, cast("dict[str, Any]", content))


def object_row(line: int, content: dict[str, Any]) -> Row | Unreadable:
    """The row of a decoded object."""
    if isinstance(content.get("scalars"), dict) and all(name in content for name in _RECORD_FIELDS):
        return _record_row(line, content)
    for value in content.values():
        if isinstance(value, dict | list):
            return _nested_row(line, content)
    return Row(line=line, values=content)


def _nested_row(line: int, content: Mapping[str, Any]) -> Row | Unreadable:
    values: dict[str, object] = {}
    vectors: dict[str, Vector] = {}
    for path, value in _leaves(content, "", 0):
        if not isinstance(value, list):
            values[path] = value
        elif path == _NONFINITE and (named := _nonfinite(cast("list[Any]", value))):
            values.update(named)
        elif (vector := _vector(cast("list[Any]", value))) is not None:
            vectors[path] = vector
        else:
            values[path] = NO_ARRAY
    return Row(line=line, values=values, vectors=vectors)


def _nonfinite(value: list[Any]) -> dict[str, object]:
    """JSON has no NaN: some writers put null, and a list such as `["loss=nan", "grad_norm=inf"]` beside it."""
    pairs = [item.partition("=") for item in value if isinstance(item, str)]
    return {name: number for name, equals, number in pairs if equals} if len(pairs) == len(value) else {}


def _leaves(content: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and depth < _DEEPEST and _MEDIA not in value:
            yield from _leaves(cast("dict[str, Any]", value), f"{prefix}{name}/", depth + 1)
        else:
            yield f"{prefix}{name}", "an object" if isinstance(value, dict) else value


def _vector(value: list[Any]) -> Vector | None:
    """A rectangular array of numbers; None for any other list."""
    shape: list[int] = []
    flat: list[Any] = value
    while flat and len(shape) < _DEEPEST:
        shape.append(len(flat) // math.prod(shape))
        if not isinstance(flat[0], list):
            break
        size = len(cast("list[Any]", flat[0]))
        if not all(isinstance(part, list) and len(cast("list[Any]", part)) == size for part in flat):
            return None
        flat = [item for part in flat for item in part]
    try:
        numbers = [number(item) for item in flat]
        return Vector.pack(shape, [one for one in numbers if one is not None])
    except (NotANumber, MalformedRecord, OverflowError):
        return None


def _record_row(line: int, content: dict[str, Any]) -> Row | Unreadable:
    """A metric record as the operator writes it as evidence: vectors are [shape, base64], NaN is a string."""
    attempt, window = content["attempt"], content.get("window")
    if not _counts(attempt) or attempt < 1:
        return Unreadable(line, "is a metric record whose attempt is no whole number from 1")
    vectors: dict[str, Vector] = {}
    given: object = content.get("vectors", {})
    if not isinstance(given, dict):
        return Unreadable(line, "is a metric record whose vectors are no object")
    for name, packed in cast("dict[str, Any]", given).items():
        try:
            shape, data = packed
            vector = Vector(tuple(shape), b64decode(data, validate=True))
            if not all(_counts(size) for size in vector.shape):
                return Unreadable(line, f"vector {name} has a shape of other things than whole numbers")
            vector.check(name)
        except (TypeError, ValueError, Base64Error) as error:
            return Unreadable(line, f"vector {name} is not [shape, base64 of 32-bit floats]: {error}")
        vectors[name] = vector
    time = content.get("time")
    return Row(
        line=line,
        step=content["step"],
        values=cast("dict[str, object]", content["scalars"]),
        vectors=vectors,
        time=float(time) if isinstance(time, int | float) and abs(time) < 1e300 else None,
        attempt=attempt,
        window=window if _counts(window) else None,
    )


def _counts(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _reason(error: ValueError) -> str:
    text = str(error)
    return text if len(text) <= 120 else f"{text[:117]}..."
