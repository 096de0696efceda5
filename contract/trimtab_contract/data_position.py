"""Which samples a step trains on: a pure function of the step and the skip ledger.

Position `p = window * G + i`; `sample = permutation(seed, p div N)[p mod N]`. The window of a step is the step-th
window outside the ledger's ranges, so the same samples follow for any world size, and a skip is recorded once and
applied once, however often the run is restarted or rolled back.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from trimtab_contract.errors import InvalidPosition
from trimtab_contract.permutation import MASK, mix, permute


class Order(StrEnum):
    """How positions map to samples."""

    SEQUENTIAL = "sequential"
    SHUFFLED = "shuffled"


@dataclass(frozen=True, slots=True)
class DataOrder:
    """`samples` N, `global_batch` G, `seed` and order: immutable for the life of a run."""

    order: Order
    samples: int
    global_batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes no run could train on."""
        if self.samples < 1 or self.global_batch < 1:
            message = f"samples {self.samples} and global batch {self.global_batch} must both be at least 1"
            raise InvalidPosition(message)

    def sample(self, position: int) -> int:
        """The sample at an absolute position, in any epoch."""
        epoch, offset = divmod(position, self.samples)
        if self.order is Order.SEQUENTIAL:
            return offset
        return permute(offset, self.samples, mix(mix(self.seed & MASK) ^ epoch))

    def samples_of_window(self, window: int) -> tuple[int, ...]:
        """The G samples of a window, in batch order."""
        if window < 0:
            message = f"window {window} is negative"
            raise InvalidPosition(message)
        first = window * self.global_batch
        return tuple(self.sample(first + i) for i in range(self.global_batch))


@dataclass(frozen=True, slots=True)
class SkipLedger:
    """Absolute windows never to be trained on: sorted, disjoint, inclusive ranges."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse ranges out of order; `of` sorts and merges."""
        previous = -2
        for first, last in self.ranges:
            if first < 0 or last < first or first <= previous + 1:
                message = f"skip ranges {list(self.ranges)} are not sorted, disjoint and inclusive"
                raise InvalidPosition(message)
            previous = last

    @classmethod
    def of(cls, ranges: tuple[tuple[int, int], ...]) -> Self:
        """A ledger from ranges in any order; overlapping and touching ones are merged."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    def including(self, first: int, last: int) -> Self:
        """This ledger with one more range."""
        return self.of((*self.ranges, (first, last)))

    def covers(self, first: int, last: int) -> bool:
        """Whether all of these windows (inclusive) are left out."""
        return any(begin <= first and last <= end for begin, end in self.ranges)

    def __contains__(self, window: int) -> bool:
        return any(first <= window <= last for first, last in self.ranges)

    def window_of_step(self, step: int) -> int:
        """The window that step (from 1) trains on."""
        if step < 1:
            message = f"step {step} must be at least 1"
            raise InvalidPosition(message)
        window = step - 1
        for first, last in self.ranges:
            if window < first:
                break
            window += last - first + 1
        return window

    def step_of_window(self, window: int) -> int | None:
        """The step that trains on a window, or None for a skipped one."""
        return None if window in self else self.steps_before(window) + 1

    def steps_before(self, window: int) -> int:
        """How many steps train on the windows before this one."""
        return window - sum(min(last + 1, window) - first for first, last in self.ranges if first < window)

    def agrees_up_to(self, other: "SkipLedger", step: int) -> bool:
        """Whether both ledgers map every step up to and including `step` to the same window."""
        return step < 1 or self.ranges_before(step) == other.ranges_before(step)

    def ranges_before(self, step: int) -> tuple[tuple[int, int], ...]:
        """The ranges that lie before the window of `step`: all that the steps up to it depend on."""
        window = self.window_of_step(step)
        return tuple(pair for pair in self.ranges if pair[0] < window)
