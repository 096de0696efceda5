"""What `-o json` prints: values that JSON has, and every name of ours in camelCase. Pure."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec


def camel_case(name: str) -> str:
    """A field's name as it is printed: `known_since` becomes `knownSince`."""
    first, *others = name.split("_")
    return first + "".join(other[:1].upper() + other[1:] for other in others)


def json_value(value: object) -> Any:
    """The value as JSON has it.

    Fields of structures are named in camelCase; the keys of mappings are data and stay. Numbers that are not finite
    are the texts `nan`, `inf` and `-inf`.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, msgspec.Struct):
        return {camel_case(name): json_value(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {camel_case(field.name): json_value(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(msgspec.to_builtins(key)): json_value(item) for key, item in items}
    if isinstance(value, tuple | list | set | frozenset):
        return [json_value(item) for item in cast("tuple[object, ...]", value)]
    return msgspec.to_builtins(value)


def renamed(content: object) -> Any:
    """JSON content of ours whose names are still spelt as in the journal, with every one of them in camelCase."""
    if isinstance(content, Mapping):
        items = cast("Mapping[str, object]", content).items()
        return {camel_case(name): renamed(item) for name, item in items}
    if isinstance(content, list | tuple):
        return [renamed(item) for item in cast("list[object]", content)]
    return content
