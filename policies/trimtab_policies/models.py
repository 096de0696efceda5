"""What all models of a GuardPolicy share."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

DURATION = r"^([0-9]+(h|m|s))+$"
_UNITS = {"h": 3600, "m": 60, "s": 1}

Duration = Annotated[str, Field(pattern=DURATION, max_length=32)]
"""Wall time as Kubernetes users write it: `90s`, `5m`, `1h30m`."""


class Model(BaseModel):
    """Strict, frozen, camelCase on the outside, and never echoing its input into an error."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


def seconds(duration: str) -> int:
    """The seconds that a Duration stands for."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([hms])", duration))
