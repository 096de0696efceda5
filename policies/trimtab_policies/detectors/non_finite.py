"""`nonFinite`: NaN or an infinity."""

import math

from trimtab_policies.detectors.base import Assessment
from trimtab_policies.detectors.range import Bound
from trimtab_policies.rules import NonFinite

_FINITE = Assessment(breach=False, comparison=Bound(None))
_NON_FINITE = Assessment(breach=True, comparison=Bound(None))


class NonFiniteDetector:
    """Looks at nothing but whether the value is a number; remembers nothing."""

    state: None = None

    def __init__(self, _: NonFinite) -> None:
        """There is nothing to set."""

    def assess(self, value: float) -> Assessment:
        """A breach is a value that is not finite."""
        return _FINITE if math.isfinite(value) else _NON_FINITE

    def clear(self) -> None:
        """Nothing is remembered."""
