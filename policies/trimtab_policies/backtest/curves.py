"""A rule's values, thresholds and baselines over a log of any length, as a bounded number of points to draw.

Neighbouring records share a bucket that keeps their lowest and highest value, so that no spike is lost; when there are
too many buckets, pairs of them become one. Positions number the judged records of the log from 1: steps may go back.
"""

import math
from collections.abc import Sequence

import msgspec

from trimtab_policies.detectors.divergence import Level
from trimtab_policies.detectors.spike import SpikeBaseline
from trimtab_policies.verdicts import Verdict

MOST_BUCKETS = 1_024


class Bucket(msgspec.Struct):
    """A stretch of records from `position` (of `step`) on; None where it has no finite value, baseline or threshold.

    `center` and `threshold` are those of the first judged value in it.
    """

    position: int
    step: int
    low: float | None = None
    high: float | None = None
    non_finite: int = 0
    center: float | None = None
    threshold: float | None = None


class Curve(msgspec.Struct, frozen=True):
    """What one rule saw; buckets are `width` records wide."""

    policy: str
    rule: str
    width: int
    buckets: tuple[Bucket, ...]


class CurveRecorder:
    """Follows one rule's verdicts."""

    def __init__(self) -> None:
        self._width = 1
        self._buckets: list[Bucket] = []

    def take(self, verdict: Verdict, position: int) -> None:
        """Note the verdict on record `position`, which rises."""
        index = (position - 1) // self._width
        if index >= MOST_BUCKETS:
            self._halve()
            index = (position - 1) // self._width
        if not self._buckets or (self._buckets[-1].position - 1) // self._width != index:
            self._buckets.append(Bucket(position, verdict.step))
        bucket = self._buckets[-1]
        value = verdict.observed
        if value is None:
            return
        if not math.isfinite(value):
            bucket.non_finite += 1
            return
        if bucket.low is None or bucket.high is None:
            bucket.low = bucket.high = value
            bucket.center, bucket.threshold = baseline_of(verdict), _finite(verdict.threshold)
        elif value < bucket.low:
            bucket.low = value
        elif value > bucket.high:
            bucket.high = value

    def curve(self, policy: str, rule: str) -> Curve:
        """What there is to draw."""
        return Curve(policy, rule, self._width, tuple(self._buckets))

    def _halve(self) -> None:
        self._width *= 2
        merged: list[Bucket] = []
        for bucket in self._buckets:
            if merged and (merged[-1].position - 1) // self._width == (bucket.position - 1) // self._width:
                _merge(merged[-1], bucket)
            else:
                merged.append(bucket)
        self._buckets = merged


def _merge(into: Bucket, other: Bucket) -> None:
    into.low = _least((into.low, other.low))
    highest = _least((None if into.high is None else -into.high, None if other.high is None else -other.high))
    into.high = None if highest is None else -highest
    into.non_finite += other.non_finite
    into.center = other.center if into.center is None else into.center
    into.threshold = other.threshold if into.threshold is None else into.threshold


def _least(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def baseline_of(verdict: Verdict) -> float | None:
    """The level that a value was compared with, where a detector knows one."""
    comparison = verdict.comparison
    if isinstance(comparison, SpikeBaseline):
        return _finite(comparison.center) if comparison.count else None
    return comparison.best if isinstance(comparison, Level) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
