"""Vector -> the one number that is judged.

A reduction sees the metric's observations in order. Any non-finite element makes the result non-finite, so that no
comparison can hide it. Add one by a class here, its line in REDUCTIONS and its field in `rules.Reduce`.
"""

import math
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from trimtab_contract.metrics import MetricRecord, Vector

from trimtab_policies.errors import MetricMismatch
from trimtab_policies.rules import Reduce, Rule

Values = NDArray[np.float32]
"""A vector's finite elements in row-major order."""


class Observation(msgspec.Struct, frozen=True, gc=False):
    """One observed value and, where one element of the vector stands for it, that element's index."""

    value: float
    element: tuple[int, ...] | None = None


class Reduction(Protocol):
    """A reduction with whatever it remembers of earlier observations of the same attempt."""

    def reduce(self, values: Values) -> tuple[float, int | None]:
        """The value and the row-major offset of the element it stands for."""
        ...

    def clear(self) -> None:
        """Forget earlier observations: a new attempt begins."""
        ...

    @property
    def state(self) -> object:
        """All that later results depend on, comparable by value."""
        ...


class Stateless:
    """A reduction that remembers nothing."""

    state: None = None

    def __init__(self, function: Callable[[Values], tuple[float, int | None]]) -> None:
        self._function = function

    def reduce(self, values: Values) -> tuple[float, int | None]:
        """What the function makes of the elements."""
        return self._function(values)

    def clear(self) -> None:
        """Nothing is remembered."""


class LongestStreak:
    """For how many observations in a row the same element was beyond `limit`, the most over all elements."""

    def __init__(self, limit: float, *, above: bool) -> None:
        self._limit = np.float32(limit) if _is_single(limit) else limit
        self._above = above
        self._streaks: NDArray[np.int32] = np.zeros(0, np.int32)

    def reduce(self, values: Values) -> tuple[float, int | None]:
        """The longest streak and the first element that has it; no element when the streak is 0."""
        if len(self._streaks) != len(values):
            self._streaks = np.zeros(len(values), np.int32)
        self._streaks += 1
        self._streaks *= values > self._limit if self._above else values < self._limit
        offset = int(self._streaks.argmax())
        longest = int(self._streaks[offset])
        return float(longest), offset if longest else None

    def clear(self) -> None:
        """All streaks end."""
        self._streaks = np.zeros(0, np.int32)

    @property
    def state(self) -> object:
        """The streaks."""
        return self._streaks.tobytes()


def _largest(values: Values) -> tuple[float, int | None]:
    offset = int(values.argmax())
    return float(values[offset]), offset


def _smallest(values: Values) -> tuple[float, int | None]:
    offset = int(values.argmin())
    return float(values[offset]), offset


def _mean(values: Values) -> tuple[float, int | None]:
    return float(values.mean(dtype=np.float64)), None


def _quantile(share: float) -> Reduction:
    def reduce(values: Values) -> tuple[float, int | None]:
        # 0.29 of 100 is 29, whatever the product of floats says.
        rank = min(int(round(share * len(values), 9)), len(values) - 1)
        value = np.partition(values, rank)[rank]
        return float(value), int((values == value).argmax())

    return Stateless(reduce)


def _count(limit: float, *, above: bool) -> Callable[[Values], int]:
    # A limit that float32 cannot hold exactly is compared in float64, so that 0.1 means 0.1.
    bound = np.float32(limit) if _is_single(limit) else np.float64(limit)
    if above:
        return lambda values: int(np.count_nonzero(values > bound))
    return lambda values: int(np.count_nonzero(values < bound))


def _counted(limit: float, *, above: bool) -> Reduction:
    count = _count(limit, above=above)
    return Stateless(lambda values: (float(count(values)), None))


def _fraction(limit: float, fewest: int, *, above: bool) -> Reduction:
    count = _count(limit, above=above)

    def reduce(values: Values) -> tuple[float, int | None]:
        found = count(values)
        return (found / len(values) if found >= fewest else 0.0), None

    return Stateless(reduce)


def _is_single(limit: float) -> bool:
    return float(np.float32(limit)) == limit


REDUCTIONS: dict[str, Callable[[Reduce, float], Reduction]] = {
    "max": lambda _, __: Stateless(_largest),
    "min": lambda _, __: Stateless(_smallest),
    "mean": lambda _, __: Stateless(_mean),
    "quantile": lambda _, share: _quantile(share),
    "fraction_above": lambda reduce, limit: _fraction(limit, reduce.min_count or 0, above=True),
    "fraction_below": lambda reduce, limit: _fraction(limit, reduce.min_count or 0, above=False),
    "count_above": lambda _, limit: _counted(limit, above=True),
    "count_below": lambda _, limit: _counted(limit, above=False),
    "longest_streak_above": lambda _, limit: LongestStreak(limit, above=True),
    "longest_streak_below": lambda _, limit: LongestStreak(limit, above=False),
}


class Observer:
    """Reads a rule's metric from records, in order."""

    def __init__(self, rule: Rule) -> None:
        self._metric = rule.metric or ""
        self._reduction = reduction_of(rule.reduce) if rule.reduce else None
        self._shape: tuple[int, ...] = ()

    def observe(self, record: MetricRecord) -> Observation | None:
        """The rule's value in a record; None where the metric is absent.

        Raises MetricMismatch when the metric is a vector and the rule reduces nothing, or the reverse.
        """
        metric, vectors = self._metric, record.vectors
        scalar = record.scalars.get(metric)
        vector = vectors.get(metric) if vectors else None
        if self._reduction is None:
            if vector is not None:
                message = f"{metric} is a vector of shape {list(vector.shape)}; give the rule a `reduce`"
                raise MetricMismatch(message)
            return None if scalar is None else Observation(scalar)
        if scalar is not None:
            message = f"{metric} is a scalar; take `reduce` out of the rule"
            raise MetricMismatch(message)
        if vector is None:
            return None
        if vector.shape != self._shape:
            # What an element did while the vector had another shape belongs to another element.
            self._shape = vector.shape
            self._reduction.clear()
        return _reduced(self._reduction, vector)

    def clear(self) -> None:
        """A new attempt begins."""
        if self._reduction is not None:
            self._reduction.clear()

    @property
    def state(self) -> object:
        """All that later observations depend on."""
        return (self._shape, self._reduction.state) if self._reduction else None


def reduction_of(reduce: Reduce) -> Reduction:
    """A fresh reduction as the rule describes it."""
    for name, make in REDUCTIONS.items():
        limit = getattr(reduce, name)
        if limit is not None:
            return make(reduce, limit)
    message = "a reduce needs exactly one reduction"
    raise MetricMismatch(message)


def _reduced(reduction: Reduction, vector: Vector) -> Observation | None:
    values = np.frombuffer(vector.data, "<f4")
    if not len(values):
        return None
    # 32-bit floats cannot overflow a 64-bit sum, so the sum is finite exactly when every element is.
    if not math.isfinite(values.sum(dtype=np.float64)):
        offset = int(np.argmin(np.isfinite(values)))
        reduction.clear()
        return Observation(float(values[offset]), vector.index(offset))
    value, offset = reduction.reduce(values)
    return Observation(value, None if offset is None else vector.index(offset))
