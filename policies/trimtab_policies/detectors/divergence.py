"""`divergence`: the recent level above the best settled one, by every margin that is set.

Levels are medians, so a lone spike moves none. The recent level is that of the last `records` finite values. With each
finite value the last `settleRecords` of them settle a level; the best is the lowest one settled within the last
`lookbackRecords`. Values count whether they breach or not: a risen level never lowers the best one.

With `sigma` the rise must also stand out of the noise, for the lowest of many levels of a noisy metric lies far below
its ordinary level. The noise is a standard deviation, estimated from how far each value lies from the middle of its two
neighbours, so that a trend is no noise: the median of the last NOISE_RECORDS such distances, scaled as for normal noise
(Gasser, Sroka and Jennen-Steinmetz, Biometrika 73, 1986, with a median in place of the mean). Where neighbours resemble
each other that is too little, and levels wander further than so much independent noise would let them. So levels
`settleRecords` apart are compared in the same way, the last LEVEL_DISTANCES of them, and the noise is at least that of
independent values whose medians would lie so far apart. Short levels are also compared over WANDER_RECORDS, for what
wanders slowly looks like a trend over fewer; there a bend of the curve is no noise either. The noise counts as it was
when the best level settled, since a metric that diverges grows noisy too; a level that settled before FEWEST_DISTANCES
distances were known has the first noise that rests on so many.

Until a level has settled, the recent one is complete and the noise (with `sigma`) is known, nothing can be compared.
After `maxFreeze` breaching values in a row the settled levels are forgotten and the recent one takes their place: a
level shift. A new attempt ends such a row, and the recent level begins anew with it, while the settled ones and the
noise stay: those of the surviving records are sound.
"""

import math
from collections import deque

import msgspec

from trimtab_policies.detectors.base import Assessment
from trimtab_policies.detectors.windows import MedianWindow
from trimtab_policies.rules import NOISE_RECORDS, Divergence

FEWEST_DISTANCES = 20
"""With fewer distances the noise is not known."""

LEVEL_DISTANCES = 200
"""How far settled levels lie apart is estimated over so many."""

WANDER_RECORDS = 20
"""Levels so far apart are compared too: noise of which 95 % last to the next record is forgotten within so many."""

STRAIGHT = (-0.5, 1.0, -0.5)
BENT = (1.0, -3.0, 3.0, -1.0)
"""Weights of levels equally far apart, whose sum is zero on a straight line, and on a parabola too."""

NORMAL_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over the median of its absolute values."""

NORMAL_NOISE = NORMAL_DEVIATION / math.sqrt(1.5)
"""Standard deviation of normal noise over the median distance of a value from the middle of its neighbours."""


MEDIAN_NOISE = math.sqrt(math.pi / 2)
"""Standard deviation of the median of n independent normal values over that of one, times the root of n."""


class Level(msgspec.Struct, frozen=True, gc=False):
    """The recent level beside the best settled one and the noise; None where there is none yet.

    `known` says whether there is anything to compare.
    """

    divergence: Divergence
    recent: float | None
    best: float | None
    noise: float | None
    known: bool

    @property
    def threshold(self) -> float | None:
        """What the recent level must exceed."""
        if self.best is None or not self.known:
            return None
        return self.best + max(self._margins)

    @property
    def summary(self) -> str:
        """The levels in words."""
        settings = self.divergence
        if self.best is None or self.recent is None:
            return f"no level of {settings.settle_records} records has settled yet"
        if not self.known:
            return f"the noise is not known yet, which takes {FEWEST_DISTANCES} records with both their neighbours"
        relative, absolute, noise = self._margins
        largest = max(relative, absolute, noise)
        margin = f"{100 * settings.relative:g} %"
        if largest == absolute:
            margin = f"{settings.absolute:g}"
        elif largest == noise:
            margin = f"{settings.sigma:g} times the noise {self.noise or 0.0:.3g}"
        return (
            f"the median of the last {settings.records} records, {self.recent:.4g}, "
            f"against the best settled level {self.best:.4g} + {margin}"
        )

    @property
    def _margins(self) -> tuple[float, float, float]:
        settings = self.divergence
        noise = (settings.sigma or 0.0) * (self.noise or 0.0)
        return settings.relative * abs(self.best or 0.0), settings.absolute, noise


class Settled(msgspec.Struct, gc=False):
    """A level, when it settled (`count` values had come), and how noisy the metric was then."""

    count: int
    level: float
    noise: float | None


class LevelDistances:
    """How far levels `apart` records from each other lie from a curve, which is where their weighted sum is zero."""

    def __init__(self, apart: int, weights: tuple[float, ...], settle_records: int) -> None:
        self._weights = tuple((place * apart, weight) for place, weight in enumerate(weights))
        """Each with its place among the levels."""
        self._levels: deque[float] = deque(maxlen=(len(weights) - 1) * apart + 1)
        self._distances = MedianWindow(LEVEL_DISTANCES)
        self._scale = NORMAL_DEVIATION / math.hypot(*weights) / MEDIAN_NOISE * math.sqrt(settle_records)

    def append(self, level: float) -> None:
        """The next level."""
        levels = self._levels
        levels.append(level)
        if len(levels) == levels.maxlen:
            distance = 0.0
            for place, weight in self._weights:
                distance += weight * levels[place]
            self._distances.append(abs(distance))

    @property
    def noise(self) -> float:
        """The standard deviation of independent values whose medians lie so far apart; 0 while that is not known."""
        distances = self._distances
        return self._scale * distances.median if len(distances.ordered) >= FEWEST_DISTANCES else 0.0

    def clear(self) -> None:
        """The levels begin anew; the distances stay."""
        self._levels.clear()

    @property
    def state(self) -> object:
        """The levels that are still to be compared, and the distances."""
        return self._levels, self._distances.state


class DivergenceDetector:
    """Follows the level of a metric."""

    def __init__(self, divergence: Divergence) -> None:
        self._divergence = divergence
        self._lookback = divergence.lookback_records
        self._longest_freeze = divergence.max_freeze
        self._absolute = divergence.absolute
        self._measures_noise = divergence.sigma is not None
        self._recent = MedianWindow(divergence.records)
        self._settling = MedianWindow(divergence.settle_records)
        self._settled: deque[Settled] = deque()
        self._distances = MedianWindow(NOISE_RECORDS)
        settling = divergence.settle_records
        self._level_distances = [LevelDistances(settling, STRAIGHT, settling)]
        if settling < WANDER_RECORDS:
            self._level_distances.append(LevelDistances(WANDER_RECORDS, BENT, settling))
        self._neighbours: tuple[float, ...] = ()
        """The one or two values before the next one."""
        self._count = 0
        self._breaching = 0

    def assess(self, value: float) -> Assessment:
        """Breached by the recent level, this value included, and by a value that is not finite."""
        if not math.isfinite(value):
            return Assessment(True, self._level())
        level_shift = self._breaching >= self._longest_freeze
        if level_shift:
            self._take_for_normal()
        self._count += 1
        self._recent.append(value)
        settled, forgotten = self._settled, self._count - self._lookback
        while settled and settled[0].count <= forgotten:
            settled.popleft()
        level = self._level()
        self._settle(value)
        breach = self._breached(level)
        if self._measures_noise:
            self._measure(value)
        self._breaching = self._breaching + 1 if breach else 0
        return Assessment(breach, level, not level.known, level_shift)

    def clear(self) -> None:
        """The recent level begins anew; the settled ones and the noise stay."""
        self._recent = MedianWindow(self._divergence.records)
        self._settling = MedianWindow(self._divergence.settle_records)
        for distances in self._level_distances:
            distances.clear()
        self._neighbours = ()
        self._breaching = 0

    @property
    def state(self) -> object:
        """Values of the windows, the settled levels with their ages, and the row of breaches."""
        ages = [(self._count - settled.count, settled.level, settled.noise) for settled in self._settled]
        windows = self._recent.state, self._settling.state, self._distances.state
        levels = tuple(distances.state for distances in self._level_distances)
        return windows, ages, levels, self._neighbours, self._breaching

    def _breached(self, level: Level) -> bool:
        recent, best = level.recent, level.best
        # Most levels lie within the absolute margin, which needs no other.
        if recent is None or best is None or recent <= best + self._absolute:
            return False
        threshold = level.threshold
        return threshold is not None and recent > threshold

    @property
    def _noise(self) -> float | None:
        """How noisy the metric is now; None while that is not known."""
        if len(self._distances.ordered) < FEWEST_DISTANCES:
            return None
        noise = NORMAL_NOISE * self._distances.median
        for levels in self._level_distances:
            noise = max(noise, levels.noise)
        return noise

    def _level(self) -> Level:
        recent = self._recent.median if self._recent.is_full else None
        if not self._settled:
            return Level(self._divergence, recent, None, None, known=False)
        best = self._settled[0]
        known = recent is not None and not (self._measures_noise and best.noise is None)
        return Level(self._divergence, recent, best.level, best.noise, known)

    def _settle(self, value: float) -> None:
        """Keeps the settled levels ascending, so that the lowest one still within the lookback comes first."""
        settling, settled = self._settling, self._settled
        settling.append(value)
        if not settling.is_full:
            return
        level = settling.median
        while settled and settled[-1].level >= level:
            settled.pop()
        settled.append(Settled(self._count, level, self._noise))
        if self._measures_noise:
            for distances in self._level_distances:
                distances.append(level)

    def _measure(self, value: float) -> None:
        neighbours, distances = self._neighbours, self._distances
        if len(neighbours) < 2:
            self._neighbours = (*neighbours, value)
            return
        before, between = neighbours
        self._neighbours = (between, value)
        distances.append(abs(between - (before / 2 + value / 2)))
        if len(distances.ordered) == FEWEST_DISTANCES:
            first = self._noise
            for settled in self._settled:
                settled.noise = first

    def _take_for_normal(self) -> None:
        self._settled.clear()
        self._settled.append(Settled(self._count, self._recent.median, self._noise))
        self._breaching = 0
