"""`range`: below `min` or above `max`."""

import math

import msgspec

from trimtab_policies.detectors.base import Assessment
from trimtab_policies.rules import Range


class Bound(msgspec.Struct, frozen=True, gc=False):
    """A fixed threshold."""

    threshold: float | None
    summary: str = ""


class RangeDetector:
    """Compares with fixed bounds; remembers nothing."""

    state: None = None

    def __init__(self, bounds: Range) -> None:
        self._low = -math.inf if bounds.min is None else bounds.min
        self._high = math.inf if bounds.max is None else bounds.max
        upper = bounds.min if bounds.max is None else bounds.max
        self._within = Assessment(breach=False, comparison=Bound(upper))
        self._beyond = Assessment(breach=True, comparison=Bound(upper))
        self._below = Assessment(breach=True, comparison=Bound(bounds.min))

    def assess(self, value: float) -> Assessment:
        """The threshold is the bound that was crossed, else the upper one if there is one."""
        if self._low <= value <= self._high and math.isfinite(value):
            return self._within
        return self._below if value < self._low else self._beyond

    def clear(self) -> None:
        """Nothing is remembered."""
