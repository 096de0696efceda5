"""`divergence`: the recent level above the best settled one, by a relative and by an absolute margin.

Levels are medians, so a lone spike moves none. The recent level is that of the last `records` finite values. Every
`settleRecords` finite values settle one level, that of themselves; the best is the lowest one settled within the last
`lookbackRecords`. Until a first level has settled nothing can be compared. Values count whether they breach or not: a
risen level never lowers the best one. After `maxFreeze` breaching values in a row the settled levels are forgotten and
the recent one takes their place: a level shift. A new attempt ends such a row, and the recent level begins anew with
it, while the settled ones stay: those of the surviving records are sound.
"""

import math
from collections import deque

import msgspec

from trimtab_policies.detectors.base import Assessment
from trimtab_policies.detectors.windows import MedianWindow
from trimtab_policies.rules import Divergence


class Level(msgspec.Struct, frozen=True):
    """The recent level beside the best settled one; None where there is none yet."""

    divergence: Divergence
    recent: float | None
    best: float | None

    @property
    def threshold(self) -> float | None:
        """What the recent level must exceed."""
        if self.best is None:
            return None
        return self.best + max(self.divergence.relative * abs(self.best), self.divergence.absolute)

    @property
    def summary(self) -> str:
        """The levels in words."""
        if self.best is None or self.recent is None:
            return f"no level of {self.divergence.settle_records} records has settled yet"
        relative = self.divergence.relative * abs(self.best) >= self.divergence.absolute
        margin = f"{100 * self.divergence.relative:g} %" if relative else f"{self.divergence.absolute:g}"
        return (
            f"the median of the last {self.divergence.records} records, {self.recent:.4g}, "
            f"against the best settled level {self.best:.4g} + {margin}"
        )


class DivergenceDetector:
    """Follows the level of a metric."""

    def __init__(self, divergence: Divergence) -> None:
        self._divergence = divergence
        self._recent = MedianWindow(divergence.records)
        self._settling = MedianWindow(divergence.settle_records)
        self._settled: deque[tuple[int, float]] = deque()
        self._count = 0
        self._breaching = 0

    def assess(self, value: float) -> Assessment:
        """Breached by the recent level, this value included, and by a value that is not finite."""
        if not math.isfinite(value):
            return Assessment(breach=True, comparison=self._level())
        settings = self._divergence
        level_shift = self._breaching >= settings.max_freeze
        if level_shift:
            self._take_for_normal()
        self._count += 1
        self._recent.append(value)
        while self._settled and self._settled[0][0] <= self._count - settings.lookback_records:
            self._settled.popleft()
        level = self._level()
        self._settle(value)
        if level.threshold is None or level.recent is None:
            return Assessment(breach=False, comparison=level, warming_up=True, level_shift=level_shift)
        breach = level.recent > level.threshold
        self._breaching = self._breaching + 1 if breach else 0
        return Assessment(breach=breach, comparison=level, level_shift=level_shift)

    def clear(self) -> None:
        """The recent level begins anew; the settled ones stay."""
        self._recent = MedianWindow(self._divergence.records)
        self._settling = MedianWindow(self._divergence.settle_records)
        self._breaching = 0

    @property
    def state(self) -> object:
        """Values of both windows, the settled levels with their ages, and the row of breaches."""
        ages = [(self._count - count, level) for count, level in self._settled]
        return self._recent.state, self._settling.state, ages, self._breaching

    def _level(self) -> Level:
        full = len(self._recent) == self._divergence.records
        recent = self._recent.median if full else None
        return Level(self._divergence, recent, self._settled[0][1] if self._settled else None)

    def _settle(self, value: float) -> None:
        """Keeps the settled levels ascending, so that the lowest one still within the lookback comes first."""
        self._settling.append(value)
        if len(self._settling) < self._divergence.settle_records:
            return
        level = self._settling.median
        self._settling = MedianWindow(self._divergence.settle_records)
        while self._settled and self._settled[-1][1] >= level:
            self._settled.pop()
        self._settled.append((self._count, level))

    def _take_for_normal(self) -> None:
        self._settled.clear()
        self._settled.append((self._count, self._recent.median))
        self._breaching = 0
