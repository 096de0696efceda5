"""What spikes a log has, whatever the policies think of them: how many, how high, and for how long.

All logs are measured with one ruler, so that their figures can be compared: a value is part of a spike while it lies
more than LEAST_SIGMA standard deviations above the mean of the last 100 values that did not, of which there must be 50.
The baseline stands still during a spike; after 100 records it is a level shift and no spike. A value that is not finite
is counted, and is no spike.
"""

import heapq
import math
from collections import Counter

import msgspec

from trimtab_policies.detectors.spike import SpikeBaseline, SpikeDetector
from trimtab_policies.rules import Spike

LEAST_SIGMA = 4.0
SIGMAS: tuple[int, ...] = (4, 6, 8, 10, 15, 20, 50)
MOST_SPIKES = 20
_RULER = Spike(sigma=LEAST_SIGMA)


class SpikeSeen(msgspec.Struct, frozen=True, order=True):
    """One spike: `height` in standard deviations above the mean before it; it was over after `records` records."""

    height: float
    step: int
    run: int
    value: float
    records: int


class SpikeStatistics(msgspec.Struct, frozen=True):
    """The spikes of one metric.

    `at_sigma` counts those at least so high, cumulatively; `records_to_recover` is the middle and the longest length.
    `highest` are the highest ones, highest first.
    """

    metric: str
    spikes: int
    at_sigma: dict[int, int]
    median_records_to_recover: int
    most_records_to_recover: int
    level_shifts: int
    non_finite: int
    highest: tuple[SpikeSeen, ...]


class SpikeSurvey:
    """Measures one metric, value by value."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._detector = SpikeDetector(_RULER)
        self._at_sigma = dict.fromkeys(SIGMAS, 0)
        self._lengths: Counter[int] = Counter()
        self._highest: list[SpikeSeen] = []
        self._level_shifts = 0
        self._non_finite = 0
        self._spike: SpikeSeen | None = None

    def take(self, value: float, step: int, run: int) -> None:
        """Measure the next value."""
        if not math.isfinite(value):
            self._non_finite += 1
            return
        assessment = self._detector.assess(value)
        if assessment.level_shift:
            self._level_shifts += 1
            self._spike = None
        if not assessment.breach:
            self._end_spike()
            return
        baseline = assessment.comparison
        height = _height(value, baseline) if isinstance(baseline, SpikeBaseline) else 0.0
        spike = self._spike
        if spike is None:
            self._spike = SpikeSeen(height, step, run, value, 1)
        elif height > spike.height:
            self._spike = SpikeSeen(height, spike.step, run, value, spike.records + 1)
        else:
            self._spike = msgspec.structs.replace(spike, records=spike.records + 1)

    def begin(self, *, anew: bool) -> None:
        """The log goes back, to a new run (`anew`) or within one. What has not recovered by then is no spike."""
        if anew:
            self._detector = SpikeDetector(_RULER)
        self._detector.clear()
        self._spike = None

    def statistics(self) -> SpikeStatistics:
        """What was measured; a spike that lasts to the end of the log is not in it."""
        spikes = self._lengths.total()
        return SpikeStatistics(
            metric=self.metric,
            spikes=spikes,
            at_sigma=dict(self._at_sigma),
            median_records_to_recover=_middle(self._lengths, spikes),
            most_records_to_recover=max(self._lengths, default=0),
            level_shifts=self._level_shifts,
            non_finite=self._non_finite,
            highest=tuple(sorted(self._highest, reverse=True)),
        )

    def _end_spike(self) -> None:
        spike, self._spike = self._spike, None
        if spike is None:
            return
        self._lengths[spike.records] += 1
        for sigma in SIGMAS:
            self._at_sigma[sigma] += spike.height >= sigma
        if len(self._highest) < MOST_SPIKES:
            heapq.heappush(self._highest, spike)
        else:
            heapq.heappushpop(self._highest, spike)


def _height(value: float, baseline: SpikeBaseline) -> float:
    deviation = baseline.deviation
    return (value - baseline.center) / deviation if deviation else math.inf


def _middle(lengths: Counter[int], total: int) -> int:
    seen = 0
    for length in sorted(lengths):
        seen += lengths[length]
        if 2 * seen >= total:
            return length
    return 0
