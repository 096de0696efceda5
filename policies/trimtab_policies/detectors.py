"""Is one observed value bad? One class per detector; each sees a metric's observations in order.

A non-finite value breaches every detector and enters no baseline. Add a detector by a class here, its line in
DETECTORS, its field in `policy.Rule` and its name in `checks.DETECTOR_FIELDS`.

The spike's baseline, precisely. It holds the last `records` accepted values. A finite value is accepted unless it
breaches; until `minRecords` were accepted nothing can be compared, so every finite value is accepted. After `maxFreeze`
finite breaching values in a row the baseline is replaced by those values before the next finite one is judged: a level
shift. A new attempt ends such a row but keeps the baseline, since the surviving records before it are sound.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab_policies.errors import PolicyError
from trimtab_policies.policy import Range, Rule, Spike

RELATIVE_STD_FLOOR = 1e-6
"""A standard deviation below this share of the mean is taken for this: rounding is no spike on a constant metric."""

_FRACTION_BITS = 128


@dataclass(frozen=True, slots=True)
class BaselineStatistics:
    """Mean and sample standard deviation over `count` accepted values."""

    mean: float
    std: float
    count: int


@dataclass(frozen=True, slots=True)
class Assessment:
    """One detector's word on one value. `threshold` is None while there is nothing to compare with."""

    breach: bool
    warming_up: bool = False
    threshold: float | None = None
    baseline: BaselineStatistics | None = None
    level_shift: bool = False


class Detector(Protocol):
    """A detector with whatever it remembers of earlier values."""

    def assess(self, value: float) -> Assessment:
        """Judge the next value."""
        ...

    def clear(self) -> None:
        """A new attempt begins."""
        ...


class RangeDetector:
    """`range`: below `min` or above `max`."""

    def __init__(self, bounds: Range) -> None:
        self._low = bounds.min
        self._high = bounds.max

    def assess(self, value: float) -> Assessment:
        """The threshold is the bound that was crossed, else the upper one if there is one."""
        if self._low is not None and value < self._low:
            return Assessment(breach=True, threshold=self._low)
        threshold = self._low if self._high is None else self._high
        above = self._high is not None and value > self._high
        return Assessment(breach=above or not math.isfinite(value), threshold=threshold)

    def clear(self) -> None:
        """Nothing is remembered."""


class SpikeDetector:
    """`spike`: above the mean of the baseline by `sigma` standard deviations, and by `floor` where that is given."""

    def __init__(self, spike: Spike) -> None:
        self._spike = spike
        self._accepted = _Window(spike.baseline.records)
        self._frozen_out: list[float] = []

    def assess(self, value: float) -> Assessment:
        """Compare with the accepted values before this one."""
        rules = self._spike.baseline
        finite = math.isfinite(value)
        level_shift = finite and len(self._frozen_out) >= rules.max_freeze
        if level_shift:
            self._accepted = _Window(rules.records)
            for shifted in self._frozen_out:
                self._accepted.append(shifted)
            self._frozen_out = []
        if len(self._accepted) < rules.min_records:
            baseline = BaselineStatistics(*self._accepted.mean_and_std(), len(self._accepted))
            if finite:
                self._accepted.append(value)
            return Assessment(not finite, warming_up=finite, baseline=baseline, level_shift=level_shift)
        mean, std = self._accepted.mean_and_std()
        threshold = mean + max(self._spike.sigma * std, self._spike.floor or 0.0)
        breach = not finite or value > threshold
        if not breach:
            self._accepted.append(value)
            self._frozen_out = []
        elif finite:
            self._frozen_out.append(value)
        baseline = BaselineStatistics(mean, std, len(self._accepted))
        return Assessment(breach, threshold=threshold, baseline=baseline, level_shift=level_shift)

    def clear(self) -> None:
        """A row of breaching values ends; the baseline stays."""
        self._frozen_out = []


class _Window:
    """Mean and standard deviation of the last `size` values, in O(1) and exact.

    Sums of floats that values enter and leave drift, and one huge value would spoil them for good. These are integers
    in units of 2^-128, so the result depends on the values alone.
    """

    def __init__(self, size: int) -> None:
        self._values: deque[int] = deque()
        self._size = size
        self._sum = 0
        self._squares = 0

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        """Add a finite value; the oldest leaves a full window."""
        if len(self._values) == self._size:
            oldest = self._values.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest
        fixed = _fixed_point(value)
        self._values.append(fixed)
        self._sum += fixed
        self._squares += fixed * fixed

    def mean_and_std(self) -> tuple[float, float]:
        """Mean and sample standard deviation, the latter at least RELATIVE_STD_FLOOR of the mean's size."""
        count = len(self._values)
        if count == 0:
            return 0.0, 0.0
        mean = self._sum / (count << _FRACTION_BITS)
        spread = count * self._squares - self._sum * self._sum
        variance = spread // (count * (count - 1)) if count > 1 else 0
        std = math.isqrt(variance) / (1 << _FRACTION_BITS)
        return mean, max(std, RELATIVE_STD_FLOOR * abs(mean))


DETECTORS: dict[str, Callable[[Any], Detector]] = {"range": RangeDetector, "spike": SpikeDetector}


def detector_of(rule: Rule) -> Detector:
    """A fresh detector as the rule describes it."""
    for name, make in DETECTORS.items():
        settings = getattr(rule, name)
        if settings is not None:
            return make(settings)
    message = f"rule {rule.name} has no detector"
    raise PolicyError(message)


def _fixed_point(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    whole, shift = int(mantissa * (1 << 53)), exponent - 53 + _FRACTION_BITS
    return whole << shift if shift >= 0 else whole >> -shift
