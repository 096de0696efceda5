"""Field types that several custom resources share, with the bounds the API server enforces too."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

DURATION_PATTERN = r"^([0-9]{1,5}(h|m|s))+$"
_DURATION_PART = re.compile(r"([0-9]+)([hms])")
_SECONDS = {"h": 3600, "m": 60, "s": 1}


class Resource(BaseModel):
    """Base of every model here: frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        use_enum_values=False,
    )


def parse_duration(text: str) -> int:
    """Seconds in a duration such as `1h30m`; raises ValueError.

    Digits per part are bounded, so that the API server's CEL, which counts nanoseconds in 64 bits, never overflows.
    """
    if len(text) > 18 or not re.fullmatch(DURATION_PATTERN, text):
        message = f"{text!r} is not a duration such as 10m, 24h or 1h30m"
        raise ValueError(message)
    return sum(int(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def validation(rule: str, message: str, **more: str) -> dict[str, Any]:
    """One CEL rule for `x-kubernetes-validations`."""
    return {"rule": rule, "message": message, **more}


def _positive_duration(value: str) -> str:
    if parse_duration(value) == 0:
        message = "must be longer than zero"
        raise ValueError(message)
    return value


def _as_text(value: Any) -> Any:
    return format(value, ".6g") if isinstance(value, float) else str(value) if isinstance(value, int) else value


Duration = Annotated[
    str,
    Field(
        max_length=18,
        pattern=DURATION_PATTERN,
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("duration(self) > duration('0s')", "must be longer than zero"),
            ]
        },
    ),
    AfterValidator(_positive_duration),
]
"""Wall time as hours, minutes and seconds; longer than zero. `parse_duration` reads it."""

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""The name of a Kubernetes object in the same namespace."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
"""SHA-256 in hexadecimal."""

Uid = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=1024)]
LongText = Annotated[str, Field(max_length=4096)]
Word = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0)]
Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]

NumberText = Annotated[str, BeforeValidator(_as_text), Field(max_length=64)]
"""A number as text: custom resources should hold no floats, and NaN has no JSON form."""

Quantity = Annotated[
    int | Annotated[str, Field(max_length=64)], Field(json_schema_extra={"x-kubernetes-int-or-string": True})
]
"""A resource quantity such as 8, 500m or 16Gi."""

Opaque = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object whose fields are checked by whoever reads it, not here."""

LabelMap = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]
AnnotationMap = Annotated[dict[str, Annotated[str, Field(max_length=16384)]], Field(max_length=64)]


def list_map(*keys: str) -> dict[str, Any]:
    """Schema keywords of a list whose items are identified by the given fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


class ObjectReference(Resource):
    """The name of an object in the same namespace."""

    name: Name


class Condition(Resource):
    """A metav1.Condition."""

    type: Word
    status: Annotated[str, Field(max_length=7, json_schema_extra={"enum": ["True", "False", "Unknown"]})]
    observed_generation: Count | None = None
    last_transition_time: Timestamp
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    message: Annotated[str, Field(max_length=32768)]


Conditions = Annotated[tuple[Condition, ...], Field(max_length=32, json_schema_extra=list_map("type"))]
