"""Validation that reports every wrong field of a value at once."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from trimtab_trainer.errors import TrainerError

SEEDS: Final = (-(2**63), 2**63)
"""From the first on and below the second: what PyTorch's generators take, and tensors of keys hold."""


class InvalidFields(TrainerError, ValueError):
    """One or more fields of a configuration are wrong.

    `problems` holds one sentence per wrong field, each naming the field and what to do.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def raise_if_any(problems: Iterable[str | None]) -> None:
    """Raise `InvalidFields` with every problem that is not None, or return when there is none."""
    found = [problem for problem in problems if problem is not None]
    if found:
        raise InvalidFields(found)


def at_least(field: str, value: float, minimum: float) -> str | None:
    """Say that `field` is below `minimum` (or not a number), or return None."""
    return None if value >= minimum else f"{field}: {value} must be at least {minimum}"


def positive(field: str, value: float) -> str | None:
    """Say that `field` is not above zero, infinite or not a number, or return None."""
    if value == math.inf:
        return f"{field}: {value} must be finite"
    return None if value > 0 else f"{field}: {value} must be above 0"


def one_of(field: str, value: object, choices: Sequence[str]) -> str | None:
    """Say that `field` is none of `choices`, or return None."""
    return None if value in choices else f"{field}: {value!r} must be one of {', '.join(choices)}"


def instances(field: str, values: Iterable[object], kind: type) -> tuple[str, ...]:
    """A sentence for each of `values` that is none of `kind`, and for `values` that are not several at all."""
    if not isinstance(values, tuple | list):
        return (f"{field}: must be several {kind.__name__}, not {type(values).__name__}",)
    return tuple(
        f"{field}[{number}]: must be a {kind.__name__}, not {type(value).__name__}"
        for number, value in enumerate(values)
        if not isinstance(value, kind)
    )


def within(field: str, value: float, low: float, below: float) -> str | None:
    """Say that `field` is not in the half-open range [low, below), or return None."""
    return None if low <= value < below else f"{field}: {value} must be at least {low} and below {below}"
