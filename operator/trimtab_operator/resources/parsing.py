"""Between the API server's JSON and the models."""

from typing import Any, cast

from pydantic import ValidationError

from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources.training_job import TrainingJobSpec
from trimtab_operator.resources.values import Resource

DEEPEST = 64
"""How deep a spec may be nested; what no trainer needs would only exhaust somebody's stack."""


def parse_training_job_spec(spec: object) -> TrainingJobSpec:
    """Read a TrainingJob's `spec`; raises InvalidResource with one sentence per wrong field.

    The API server has refused most errors already; what is left comes from an older or newer schema in the cluster.
    """
    deep = _deepest(spec)
    if deep:
        raise InvalidResource(f"{deep}: is nested deeper than {DEEPEST} levels; make it flatter")
    try:
        return TrainingJobSpec.model_validate(spec)
    except ValidationError as error:
        # The values stay out of the text: they may be secrets put into the wrong field.
        details = error.errors(include_url=False, include_input=False, include_context=False)
        message = "; ".join(sorted({_sentence(detail["loc"], detail["msg"]) for detail in details}))
        raise InvalidResource(message) from None


def to_wire(resource: Resource) -> dict[str, Any]:
    """The JSON form, camelCase, without what is absent."""
    return resource.model_dump(mode="json", by_alias=True, exclude_none=True)


def _deepest(spec: object) -> str:
    """The top-level path of the first value that lies too deep; empty when none does."""
    level: list[tuple[str, object]] = [("spec", spec)]
    for depth in range(DEEPEST + 1):
        below: list[tuple[str, object]] = []
        for path, value in level:
            if isinstance(value, dict):
                items = cast("dict[str, object]", value).items()
                below += [(f"{path}.{name}" if depth < 3 else path, one) for name, one in items]
            elif isinstance(value, list):
                below += [(path, one) for one in cast("list[object]", value)]
        level = below
    return level[0][0] if level else ""


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    path = "spec"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"{path}: {message[:1].lower()}{message[1:]}"
