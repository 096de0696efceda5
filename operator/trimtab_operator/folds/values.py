"""Values that records carry, read with care."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

Value = TypeVar("Value")


def read(kind: type[Value], after: Mapping[str, Any] | None, name: str) -> Value:
    """A value of a record; one with a field that is not known here was written by a newer operator, and is not read."""
    value = (after or {})[name]
    known = getattr(kind, "__struct_encode_fields__", None)
    if known is not None and isinstance(value, Mapping):
        unknown = sorted(set(cast("Mapping[str, Any]", value)) - set(known))
        if unknown:
            raise ValueError(f"{name} has unknown fields: {', '.join(unknown)}")
    return msgspec.convert(value, type=kind)
