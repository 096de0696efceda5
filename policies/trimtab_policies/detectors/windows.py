"""Statistics over the last values of a metric, kept up to date value by value and free of rounding drift."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

FRACTION_BITS = 128
_SCALE = float(1 << FRACTION_BITS)
_LARGEST_SCALED = 2.0 ** (1023 - FRACTION_BITS)


class MeanWindow:
    """Sum and sum of squares of the last `size` values, in O(1) and exact.

    Sums of floats that values enter and leave drift, and one huge value would spoil them for good. These are integers
    in units of 2^-128, so they depend on the values alone.
    """

    def __init__(self, size: int) -> None:
        self.total = 0
        self.squares = 0
        self._values: deque[int] = deque()
        self._size = size

    def append(self, value: float) -> None:
        """Add a finite value; the oldest leaves a full window."""
        fixed, values = fixed_point(value), self._values
        if len(values) == self._size:
            oldest = values.popleft()
            change = fixed - oldest
            self.total += change
            self.squares += (fixed + oldest) * change
        else:
            self.total += fixed
            self.squares += fixed * fixed
        values.append(fixed)

    @property
    def state(self) -> object:
        """The values, in order."""
        return self._values


class MedianWindow:
    """Median and median absolute deviation of the last `size` values, in O(log size) and a short move of memory."""

    def __init__(self, size: int) -> None:
        self.ordered: list[float] = []
        self.is_full = False
        self._values: deque[float] = deque()
        self._size = size

    def append(self, value: float) -> None:
        """Add a finite value; the oldest leaves a full window."""
        ordered, values = self.ordered, self._values
        if self.is_full:
            del ordered[bisect_left(ordered, values.popleft())]
            insort(ordered, value)
            values.append(value)
            return
        insort(ordered, value)
        values.append(value)
        self.is_full = len(values) == self._size

    @property
    def median(self) -> float:
        """0 for an empty window."""
        return median_of_ordered(self.ordered)

    @property
    def state(self) -> object:
        """The values, in order."""
        return self._values


def fixed_point(value: float) -> int:
    """A finite value in units of 2^-128, what lies below cut off."""
    if -_LARGEST_SCALED < value < _LARGEST_SCALED:
        return int(value * _SCALE)
    mantissa, exponent = math.frexp(value)
    return int(mantissa * (1 << 53)) << (exponent - 53 + FRACTION_BITS)


def mean_of(total: int, count: int) -> float:
    """The mean of `count` fixed-point values; 0 for none."""
    return total / (count << FRACTION_BITS) if count else 0.0


def deviation_of(total: int, squares: int, count: int) -> float:
    """The sample standard deviation of `count` fixed-point values; 0 for fewer than two."""
    if count < 2:
        return 0.0
    above, below = count * squares - total * total, count * (count - 1)
    try:
        # The quotient of two integers is rounded once, so the deviation depends on the values alone.
        return math.sqrt(above / (below << 2 * FRACTION_BITS))
    except OverflowError:
        return _large_root(above // below)


def _large_root(variance: int) -> float:
    """The root of a variance in fixed point that is no float itself."""
    try:
        return math.isqrt(variance) / (1 << FRACTION_BITS)
    except OverflowError:
        # Values of both signs near the largest float deviate by more than it.
        return math.inf


def median_of_ordered(values: Sequence[float]) -> float:
    """The median of ascending values; 0 for none. Halved before adding, so that two huge ones do not overflow."""
    count = len(values)
    high = values[count // 2] if count else 0.0
    if count % 2 or not count:
        return high
    low = values[count // 2 - 1]
    return low if low == high else low / 2 + high / 2


def absolute_deviation(values: Sequence[float], center: float) -> float:
    """The median of the distances of ascending values from `center`, which lies between the two middle ones.

    The `k` nearest values are a stretch of the list, so its end is found by bisection.
    """
    count = len(values)
    low = _nearest(values, center, (count + 1) // 2)
    if count % 2:
        return low
    return low / 2 + _nearest(values, center, count // 2 + 1) / 2


def _nearest(values: Sequence[float], center: float, k: int) -> float:
    """The k-th smallest distance (from 1) of ascending values from `center`."""
    first, last = 0, len(values) - k
    while first < last:
        middle = (first + last) // 2
        if center - values[middle] > values[middle + k] - center:
            first = middle + 1
        else:
            last = middle
    return max(center - values[first], values[first + k - 1] - center)
