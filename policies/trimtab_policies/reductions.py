"""Vector -> the one number that is judged.

A reduction sees the metric's observations in order. Any non-finite element makes the result non-finite, so that no
comparison can hide it. Add one by a class here, its line in REDUCTIONS and its field in `policy.Reduce`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab_contract.metrics import MetricRecord, Vector

from trimtab_policies.errors import MetricMismatch
from trimtab_policies.policy import Reduce, Rule


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed value and, where one element of the vector stands for it, that element's index."""

    value: float
    element: tuple[int, ...] | None = None


class Reduction(Protocol):
    """A reduction with whatever it remembers of earlier observations of the same attempt."""

    def reduce(self, values: Sequence[float]) -> tuple[float, int | None]:
        """The value and the row-major offset of the element it stands for; `values` are finite."""
        ...

    def clear(self) -> None:
        """Forget earlier observations: a new attempt begins."""
        ...


class Largest:
    """`max`: the largest element."""

    def reduce(self, values: Sequence[float]) -> tuple[float, int | None]:
        """The first of the largest elements."""
        largest = max(values)
        return largest, values.index(largest)

    def clear(self) -> None:
        """Nothing is remembered."""


class FractionBelow:
    """`fractionBelow`: the share of elements below `limit`, 0 where fewer than `min_count` are."""

    def __init__(self, limit: float, min_count: int) -> None:
        self._limit = limit
        self._min_count = min_count

    def reduce(self, values: Sequence[float]) -> tuple[float, int | None]:
        """The share; no element stands for it."""
        limit = self._limit
        count = sum(1 for value in values if value < limit)
        return (count / len(values) if count >= self._min_count else 0.0), None

    def clear(self) -> None:
        """Nothing is remembered."""


class LongestStreakBelow:
    """`longestStreakBelow`: for how many observations in a row the same element was below `limit`, at most."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._streaks: list[int] = []

    def reduce(self, values: Sequence[float]) -> tuple[float, int | None]:
        """The longest streak and the first element that has it; no element when the streak is 0."""
        limit = self._limit
        if len(self._streaks) != len(values):
            self._streaks = [0] * len(values)
        self._streaks = [
            streak + 1 if value < limit else 0 for streak, value in zip(self._streaks, values, strict=True)
        ]
        longest = max(self._streaks)
        return float(longest), self._streaks.index(longest) if longest else None

    def clear(self) -> None:
        """All streaks end."""
        self._streaks = []


def _largest(_: Reduce, __: float) -> Reduction:
    return Largest()


def _fraction_below(reduce: Reduce, limit: float) -> Reduction:
    return FractionBelow(limit, reduce.min_count or 0)


def _longest_streak_below(_: Reduce, limit: float) -> Reduction:
    return LongestStreakBelow(limit)


REDUCTIONS: dict[str, Callable[[Reduce, float], Reduction]] = {
    "max": _largest,
    "fraction_below": _fraction_below,
    "longest_streak_below": _longest_streak_below,
}


class Observer:
    """Reads a rule's metric from records, in order."""

    def __init__(self, rule: Rule) -> None:
        self._metric = rule.metric
        self._reduction = reduction_of(rule.reduce) if rule.reduce else None

    def observe(self, record: MetricRecord) -> Observation | None:
        """The rule's value in a record; None where the metric is absent.

        Raises MetricMismatch when the metric is a vector and the rule reduces nothing, or the reverse.
        """
        scalar, vector = record.scalars.get(self._metric), record.vectors.get(self._metric)
        if self._reduction is None:
            if vector is not None:
                message = f"{self._metric} is a vector of shape {list(vector.shape)}; give the rule a `reduce`"
                raise MetricMismatch(message)
            return None if scalar is None else Observation(scalar)
        if scalar is not None:
            message = f"{self._metric} is a scalar; take `reduce` out of the rule"
            raise MetricMismatch(message)
        return None if vector is None else _reduced(self._reduction, vector)

    def clear(self) -> None:
        """A new attempt begins."""
        if self._reduction is not None:
            self._reduction.clear()


def reduction_of(reduce: Reduce) -> Reduction:
    """A fresh reduction as the rule describes it."""
    for name, make in REDUCTIONS.items():
        limit = getattr(reduce, name)
        if limit is not None:
            return make(reduce, limit)
    message = "a reduce needs exactly one reduction"
    raise MetricMismatch(message)


def _reduced(reduction: Reduction, vector: Vector) -> Observation | None:
    values = vector.values()
    if not values:
        return None
    # 32-bit floats cannot overflow a 64-bit sum, so the sum is finite exactly when every element is.
    if not math.isfinite(sum(values)):
        offset = next(offset for offset, value in enumerate(values) if not math.isfinite(value))
        reduction.clear()
        return Observation(values[offset], vector.index(offset))
    value, offset = reduction.reduce(values)
    return Observation(value, None if offset is None else vector.index(offset))
