"""What every detector is and says."""

from typing import Protocol

import msgspec


class Comparison(Protocol):
    """What a value was compared with; worked out only when somebody asks."""

    @property
    def threshold(self) -> float | None:
        """Above (or, for a lower bound, below) this a value breaches; None while there is nothing to compare with."""
        ...

    @property
    def summary(self) -> str:
        """Where the threshold comes from, such as `mean 2 + 4 std 0.1 over 100 records`; empty for a fixed bound."""
        ...


class Assessment(msgspec.Struct, frozen=True, gc=False):
    """One detector's word on one value."""

    breach: bool
    comparison: Comparison
    warming_up: bool = False
    level_shift: bool = False


class Detector(Protocol):
    """A detector with whatever it remembers of earlier values.

    `state` is all it remembers, comparable by value: two detectors with equal states stay equal.
    """

    def assess(self, value: float) -> Assessment:
        """Judge the next value."""
        ...

    def clear(self) -> None:
        """A new attempt begins."""
        ...

    @property
    def state(self) -> object:
        """All that later assessments depend on."""
        ...
