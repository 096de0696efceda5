"""What pydantic found wrong -> FieldErrors: the path, what is allowed, and what was found instead."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from trimtab_policies.errors import FieldError

_LONGEST_SHOWN = 60
_LARGEST_SHOWN = 10**18

_ADVICE = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "int_type": "must be a whole number",
    "int_parsing_size": "must be a whole number of ordinary size",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "string_pattern_mismatch": "must match {pattern}",
    "string_unicode": "must be valid text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
    "invalid_key": "must be the name of a field",
}
"""What is allowed, for each kind of error that the models can have."""

_FOUND_IN_PASSING = frozenset({"too_short", "string_too_short"})
"""Where the advice says already what was found."""


def field_errors(error: ValidationError, model: type[BaseModel], root: str) -> Iterator[FieldError]:
    """Every error of a model that was validated from the object at path `root`; empty for the document itself."""
    for detail in error.errors(include_url=False):
        # pydantic counts the valid items only, and so calls a list of wrong ones empty.
        if detail["type"] != "too_short" or not detail["input"]:
            yield FieldError(field_path(root, detail["loc"]), _message(detail, model))


def field_path(root: str, location: Sequence[int | str]) -> str:
    """A path as people write it, such as `spec.rules[2].spike.sigma`."""
    path = root
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def shown(value: object) -> str:
    """A found value in a few words; long ones are cut."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) > _LARGEST_SHOWN:
            return f"a whole number of {value.bit_length()} bits"
        case int() | float():
            return f"{value:.15g}" if isinstance(value, float) else str(value)
        case str():
            return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…")
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def nearest(name: object, candidates: Sequence[str]) -> str:
    """`; did you mean NAME?` for the candidate most like `name`, else empty."""
    matches = get_close_matches(name, candidates, n=1) if isinstance(name, str) else []
    return f"; did you mean {matches[0]}?" if matches else ""


def _message(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, location = detail["type"], detail["loc"]
    if kind == "missing":
        return "is required; add it"
    if kind == "extra_forbidden":
        allowed = _fields_beside(model, location)
        known = f"; known are {', '.join(allowed)}" if allowed else ""
        return f"is not a field this version knows; remove it or correct its name{known}"
    advice = _ADVICE.get(kind)
    bounds = {name: _bound(value) for name, value in detail.get("ctx", {}).items()}
    allowed = detail["msg"] if advice is None else advice.format(**bounds)
    if kind in _FOUND_IN_PASSING:
        return allowed
    given = detail["input"]
    found = f"it has {len(given)}" if kind in {"too_long", "string_too_long"} else f"it is {shown(given)}"
    return f"{allowed}; {found}"


def _bound(value: object) -> str:
    text = shown(value) if isinstance(value, int | float) else str(value)
    return "true" if text == "True" else text


def _fields_beside(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The fields of the model in which the last part of `location` was looked for."""
    here: type[BaseModel] | None = model
    for part in location[:-1]:
        if here is None or isinstance(part, int):
            continue
        field = next((one for name, one in here.model_fields.items() if part in (one.alias, name)), None)
        here = _model_within(field.annotation) if field else None
    return [field.alias or name for name, field in here.model_fields.items()] if here else []


def _model_within(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_within(one))), None)
