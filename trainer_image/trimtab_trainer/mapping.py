"""From plain YAML mappings in camelCase to frozen dataclasses, with every wrong field named at once."""

import dataclasses
import re
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trimtab_trainer.fields import InvalidFields

_Built = TypeVar("_Built")

UNLESS = "unless"
"""In a field's metadata: the name of another field that may be given instead; without either, this one is missing."""


class _Wrong(Exception):
    """Problems below this point were noted already."""

    def __init__(self, instead: object = None) -> None:
        """`instead` is what the fields around it are checked beside, if anything could be built."""
        super().__init__()
        self.instead = instead


def camel(name: str) -> str:
    """`warmup_steps` as YAML spells it: `warmupSteps`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def build(kind: type[_Built], given: object) -> _Built:
    """Make a `kind` from a mapping; raises InvalidFields with one sentence per wrong field."""
    problems: list[str] = []
    try:
        built = _dataclass(kind, given, "", problems)
    except _Wrong:
        raise InvalidFields(problems) from None
    return cast("_Built", built)


def _dataclass(kind: Any, given: object, path: str, problems: list[str]) -> object:
    if not isinstance(given, Mapping):
        raise _note(problems, path or "config", given, "a mapping")
    before = len(problems)
    mapping = cast("Mapping[object, object]", given)
    hints = get_type_hints(kind)
    fields = {camel(field.name): field for field in dataclasses.fields(kind) if field.init}
    prefix = f"{path}." if path else ""
    problems += [
        f"{prefix}{key}: unknown field; known are {', '.join(sorted(fields))}" for key in mapping if key not in fields
    ]
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in mapping:
            try:
                values[field.name] = _value(hints[field.name], mapping[name], prefix + name, problems)
            except _Wrong as wrong:
                if wrong.instead is not None:
                    values[field.name] = wrong.instead
        else:
            problems += _missing(field, prefix + name, mapping)
    # Also when some fields are wrong already: the others are checked all the same, beside the defaults of those.
    built, found = _built(kind, values)
    for problem in found:
        name, _, text = problem.partition(":")
        said = f"{prefix}{camel(name)}:{text}"
        problems += [] if said in problems else [said]
    if found:
        wrong_fields = {re.split(r"[.\[]", problem.partition(":")[0])[0] for problem in found}
        built, _ = _built(kind, {name: value for name, value in values.items() if name not in wrong_fields})
    if len(problems) > before:
        lost = {field.name for name, field in fields.items() if name in mapping and field.name not in values}
        # Beside one that was given and could not be read, it would be called missing.
        chosen = (field for field in fields.values() if UNLESS in field.metadata)
        unknown = any(lost & {field.name, field.metadata[UNLESS]} for field in chosen)
        raise _Wrong(None if unknown else built)
    return built


def _built(kind: Any, values: Mapping[str, object]) -> tuple[object, tuple[str, ...]]:
    """A `kind`, or None and what is wrong with its values; neither while required ones are missing."""
    if any(_required(field) and field.name not in values for field in dataclasses.fields(kind) if field.init):
        return None, ()
    try:
        return kind(**values), ()
    except InvalidFields as error:
        return None, error.problems


def _missing(field: "dataclasses.Field[Any]", path: str, mapping: Mapping[object, object]) -> list[str]:
    """What to say of a field that is not given: nothing where it has a default."""
    if _required(field):
        return [f"{path}: missing; it must be given"]
    other: str | None = field.metadata.get(UNLESS)
    return [] if other is None or other in mapping else [f"{path}: missing; it must be given, or {other}"]


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(kind: Any, given: object, path: str, problems: list[str]) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        if given is None and type(None) in arguments:
            return None
        return _value(next(part for part in arguments if part is not type(None)), given, path, problems)
    if origin is Literal:
        if given in arguments:
            return given
        raise _note(problems, path, given, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        return _items(arguments[0], given, path, problems)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, given, path, problems)
    return _plain(kind, given, path, problems)


def _items(kind: Any, given: object, path: str, problems: list[str]) -> tuple[object, ...]:
    if not isinstance(given, list):
        raise _note(problems, path, given, "a list")
    items: list[object] = []
    failed = False
    for index, item in enumerate(cast("list[object]", given)):
        try:
            items.append(_value(kind, item, f"{path}[{index}]", problems))
        except _Wrong:
            failed = True
    if failed:
        raise _Wrong
    return tuple(items)


def _plain(kind: Any, given: object, path: str, problems: list[str]) -> object:
    if isinstance(kind, type) and issubclass(kind, Enum):
        if given in {member.value for member in kind}:
            return kind(given)
        raise _note(problems, path, given, f"one of {', '.join(str(member.value) for member in kind)}")
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        try:
            return float(given)
        except OverflowError:
            raise _note(problems, path, given, "a number of float64") from None
    if isinstance(given, kind) and (kind is bool or not isinstance(given, bool)):
        return cast("object", given)
    wanted = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise _note(problems, path, given, wanted[kind])


def _note(problems: list[str], path: str, given: object, wanted: str) -> _Wrong:
    problems.append(f"{path}: {given!r} must be {wanted}")
    return _Wrong()
