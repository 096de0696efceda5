"""Values over steps as a bounded number of points to draw: the lowest and the highest of each column, and marks. Pure.

A column's lowest and highest value are always kept, and so is the number of values in it that are not finite, so
that nothing that would be seen at full resolution is lost.
"""

import math
from dataclasses import dataclass, field

from trimtab_policies.backtest.curves import Bucket, Curve

MOST_COLUMNS = 500


@dataclass(frozen=True, slots=True)
class Columns:
    """Steps `first` to `last` in at most `most` columns of `width` steps."""

    first: int
    last: int
    most: int = MOST_COLUMNS
    width: int = field(init=False)
    """Steps a column."""

    def __post_init__(self) -> None:
        """The width follows from the others."""
        object.__setattr__(self, "width", max(1, math.ceil((self.last - self.first + 1) / self.most)))

    def of(self, step: int) -> int:
        """The column of a step, from 0."""
        return (step - self.first) // self.width

    def begins(self, column: int) -> int:
        """The first step of a column."""
        return self.first + column * self.width


@dataclass
class Decimator:
    """Follows one line of one metric."""

    columns: Columns
    count: int = 0
    non_finite: list[int] = field(default_factory=list[int])
    lowest: tuple[float, int] | None = None
    highest: tuple[float, int] | None = None
    _buckets: dict[int, Bucket] = field(default_factory=dict[int, Bucket])

    def take(self, step: int, value: float, center: float | None = None, threshold: float | None = None) -> None:
        """Note the value of a step, with the baseline and the threshold it was compared with, if it was."""
        self.count += 1
        column = self.columns.of(step)
        bucket = self._buckets.get(column)
        if bucket is None:
            begins = self.columns.begins(column)
            bucket = self._buckets[column] = Bucket(begins - self.columns.first + 1, begins)
        if bucket.threshold is None:
            bucket.center, bucket.threshold = center, threshold
        if not math.isfinite(value):
            bucket.non_finite += 1
            self.non_finite.append(step)
            return
        # A value that is no extreme of its bucket is none of the line's.
        if bucket.low is None or value < bucket.low:
            bucket.low = value
            if self.lowest is None or value < self.lowest[0]:
                self.lowest = (value, step)
        if bucket.high is None or value > bucket.high:
            bucket.high = value
            if self.highest is None or value > self.highest[0]:
                self.highest = (value, step)

    def curve(self, rule: str = "") -> Curve:
        """What there is to draw; columns without any value stay empty, so that the line breaks there."""
        if not self._buckets:
            return Curve("", rule, self.columns.width, ())
        empty = (
            Bucket(self.columns.begins(column) - self.columns.first + 1, self.columns.begins(column))
            for column in range(min(self._buckets), max(self._buckets) + 1)
        )
        columns = range(min(self._buckets), max(self._buckets) + 1)
        buckets = tuple(self._buckets.get(column, bare) for column, bare in zip(columns, empty, strict=True))
        return Curve("", rule, self.columns.width, buckets)

    def summary(self) -> str:
        """The line's extremes in words."""
        parts: list[str] = []
        if self.lowest is not None and self.highest is not None:
            if self.lowest[0] == self.highest[0]:
                parts.append(f"{self.lowest[0]:.6g} throughout")
            else:
                (low, at_low), (high, at_high) = self.lowest, self.highest
                parts.append(f"lowest {low:.6g} at step {at_low}, highest {high:.6g} at step {at_high}")
        if self.non_finite:
            parts.append(f"{len(self.non_finite)} not finite, the first at step {self.non_finite[0]}")
        return "; ".join(parts) or "no value"

    @property
    def constant(self) -> float | None:
        """The one value it always had, or None."""
        if self.non_finite or self.lowest is None or self.highest is None:
            return None
        return self.lowest[0] if self.lowest[0] == self.highest[0] else None
