"""`spike`: above the baseline of the last accepted values.

The baseline, precisely. It holds the last `records` accepted values. A finite value is accepted unless it breaches;
until `minRecords` were accepted nothing can be compared, so every finite value is accepted. After `maxFreeze` finite
breaching values in a row the baseline is replaced by those values before the next finite one is judged: a level shift.
A new attempt ends such a row but keeps the baseline, since the surviving records before it are sound.
"""

import math
from typing import Protocol

import msgspec

from trimtab_policies.detectors.base import Assessment
from trimtab_policies.detectors.windows import (
    MeanWindow,
    MedianWindow,
    absolute_deviation,
    deviation_of,
    mean_of,
    median_of_ordered,
)
from trimtab_policies.rules import Spike

RELATIVE_DEVIATION_FLOOR = 1e-6
"""A deviation below this share of the center is taken for this: rounding is no spike on a constant metric."""

NORMAL_CONSISTENCY = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""


class SpikeBaseline(msgspec.Struct, frozen=True, gc=False):
    """The accepted values that a value was compared with: how many, and what they say; each statistic has its own."""

    spike: Spike
    count: int
    center: float

    @property
    def deviation(self) -> float:
        """The spread around the center, at least RELATIVE_DEVIATION_FLOOR of its size."""
        raise AttributeError

    @property
    def threshold(self) -> float | None:
        """What a value must exceed; None while the baseline fills."""
        return None if self.count < self.spike.baseline.min_records else self.limit

    @property
    def limit(self) -> float:
        """What a value would have to exceed, were the baseline filled as far as it is."""
        center, spike = self.center, self.spike
        beyond = center + (spike.sigma or 0.0) * self.deviation if spike.ratio is None else _times(center, spike.ratio)
        return max(beyond, center + (spike.floor or 0.0))

    @property
    def summary(self) -> str:
        """The threshold's parts in words."""
        spike = self.spike
        if self.count < spike.baseline.min_records:
            return f"the baseline has {self.count} of at least {spike.baseline.min_records} records"
        center = f"{spike.baseline.statistic.lower()} {self.center:.4g}"
        over = f"over {self.count} records"
        if spike.floor is not None and self.threshold == self.center + spike.floor:
            return f"{center} + floor {spike.floor:g} {over}"
        if spike.ratio is not None:
            return f"{spike.ratio:g} times {center} {over}"
        unit = "std" if spike.baseline.statistic == "Mean" else "scaled MAD"
        return f"{center} + {spike.sigma:g} {unit} {self.deviation:.3g} {over}"


def _times(center: float, ratio: float) -> float:
    """The center times the ratio; where it is negative, as far above it as a positive one of its size would rise."""
    return center * ratio if center >= 0 else center * (2 - ratio)


class MeanBaseline(SpikeBaseline, frozen=True, gc=False):
    """Mean and sample standard deviation, from sums in fixed point."""

    total: int
    squares: int

    @property
    def deviation(self) -> float:
        """The sample standard deviation."""
        floor = RELATIVE_DEVIATION_FLOOR * abs(self.center)
        return max(deviation_of(self.total, self.squares, self.count), floor)


class MedianBaseline(SpikeBaseline, frozen=True, gc=False):
    """Median and median absolute deviation."""

    absolute_deviation: float

    @property
    def deviation(self) -> float:
        """The median absolute deviation, scaled to the standard deviation of normal noise."""
        return max(NORMAL_CONSISTENCY * self.absolute_deviation, RELATIVE_DEVIATION_FLOOR * abs(self.center))


class AcceptedValues(Protocol):
    """A window of accepted values that can say what it is."""

    def append(self, value: float) -> None:
        """Accept one more finite value."""
        ...

    def baseline(self) -> SpikeBaseline:
        """What the window says now."""
        ...

    @property
    def state(self) -> object:
        """The values."""
        ...


class _Means(MeanWindow):
    def __init__(self, spike: Spike) -> None:
        super().__init__(spike.baseline.records)
        self._spike = spike

    def baseline(self) -> SpikeBaseline:
        count, total = len(self._values), self.total
        return MeanBaseline(self._spike, count, mean_of(total, count), total, self.squares)


class _Medians(MedianWindow):
    def __init__(self, spike: Spike) -> None:
        super().__init__(spike.baseline.records)
        self._spike = spike

    def baseline(self) -> SpikeBaseline:
        median = median_of_ordered(self.ordered)
        deviation = absolute_deviation(self.ordered, median) if self.ordered else 0.0
        return MedianBaseline(self._spike, len(self.ordered), median, deviation)


_STATISTICS = {"Mean": _Means, "Median": _Medians}


class SpikeDetector:
    """Compares each value with the accepted values before it."""

    def __init__(self, spike: Spike) -> None:
        self._spike = spike
        self._fewest = spike.baseline.min_records
        self._longest_freeze = spike.baseline.max_freeze
        self._make = _STATISTICS[spike.baseline.statistic]
        self._accepted: AcceptedValues = self._make(spike)
        self._frozen_out: list[float] = []

    def assess(self, value: float) -> Assessment:
        """Breached above the baseline's threshold, and by a value that is not finite."""
        finite, frozen_out = math.isfinite(value), self._frozen_out
        level_shift = finite and len(frozen_out) >= self._longest_freeze
        if level_shift:
            self._rebuild()
        accepted = self._accepted
        baseline = accepted.baseline()
        if baseline.count < self._fewest:
            if finite:
                accepted.append(value)
            return Assessment(not finite, baseline, finite, level_shift)
        # The limit lies at or above the center, so half of all values need no deviation.
        if finite and (value <= baseline.center or value <= baseline.limit):
            accepted.append(value)
            if frozen_out:
                frozen_out.clear()
            return Assessment(False, baseline, False, level_shift)
        if finite:
            frozen_out.append(value)
        return Assessment(True, baseline, False, level_shift)

    def clear(self) -> None:
        """A row of breaching values ends; the baseline stays."""
        self._frozen_out.clear()

    @property
    def state(self) -> object:
        """The accepted values and those frozen out."""
        return self._accepted.state, self._frozen_out

    def _rebuild(self) -> None:
        self._accepted = self._make(self._spike)
        for shifted in self._frozen_out:
            self._accepted.append(shifted)
        self._frozen_out.clear()
