"""Which samples a step trains on: a pure function of the step and the skip ledger.

Position `p = window * G + i`. The mixture says which source is read at p, as its k-th sample, and of the source's N
samples that is `permutation(seed, k div N)[k mod N]`. The window of a step is the step-th window outside the ledger's
ranges, so the same samples follow for any world size, and a skip is recorded once and applied once, however often the
run is restarted or rolled back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from trimtab_contract.errors import InvalidPosition
from trimtab_contract.mixture import Mixture
from trimtab_contract.permutation import MASK, mix, permute


class Order(StrEnum):
    """How positions map to samples."""

    SEQUENTIAL = "sequential"
    SHUFFLED = "shuffled"


@dataclass(frozen=True, slots=True, order=True)
class SampleId:
    """A sample: the number of its source, from 0, and its index in the source."""

    source: int
    sample: int


@dataclass(frozen=True, slots=True)
class SourceOrder:
    """In which order one source's `samples` are read, epoch after epoch."""

    order: Order
    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a source that nothing can be read from."""
        if self.samples < 1:
            message = f"samples {self.samples} must be at least 1"
            raise InvalidPosition(message)

    def sample(self, index: int) -> int:
        """The sample read after `index` others of this source."""
        epoch, offset = divmod(index, self.samples)
        if self.order is Order.SEQUENTIAL:
            return offset
        return permute(offset, self.samples, self.key(epoch))

    def key(self, epoch: int) -> int:
        """The key of an epoch's permutation."""
        return mix(mix(self.seed & MASK) ^ epoch)


@dataclass(frozen=True, slots=True)
class DataOrder:
    """Which sample lies at every position: G samples a window, of sources mixed by weight.

    Immutable for the life of a run.
    """

    sources: tuple[SourceOrder, ...]
    global_batch: int
    mixture: Mixture

    def __post_init__(self) -> None:
        """Refuse what no run could train on."""
        if self.global_batch < 1:
            message = f"global batch {self.global_batch} must be at least 1"
            raise InvalidPosition(message)
        if len(self.sources) != len(self.mixture.shares):
            message = f"{len(self.sources)} sources have {len(self.mixture.shares)} shares"
            raise InvalidPosition(message)

    @classmethod
    def of(
        cls,
        samples: Sequence[int],
        *,
        global_batch: int,
        order: Order = Order.SEQUENTIAL,
        seed: int = 0,
        weights: Sequence[float] = (1.0,),
    ) -> Self:
        """The order over sources of so many `samples` each; every source has a seed of its own."""
        sources = [SourceOrder(order, count, source_seed(seed, number)) for number, count in enumerate(samples)]
        return cls(tuple(sources), global_batch, Mixture.of(weights))

    def sample(self, position: int) -> SampleId:
        """The sample at an absolute position, in any epoch of its source."""
        source, index = self.mixture.place(position)
        return SampleId(source, self.sources[source].sample(index))

    def samples_of_window(self, window: int) -> tuple[SampleId, ...]:
        """The G samples of a window, in batch order."""
        first, last = self.positions_of_window(window)
        return tuple(self.sample(position) for position in range(first, last + 1))

    def positions_of_window(self, window: int) -> tuple[int, int]:
        """The first and the last position of a window."""
        if window < 0:
            message = f"window {window} is negative"
            raise InvalidPosition(message)
        first = window * self.global_batch
        return first, first + self.global_batch - 1


def source_seed(seed: int, number: int) -> int:
    """The seed of source `number`, from 0; the first source has the seed itself."""
    return seed if number == 0 else mix(mix(seed & MASK) ^ (number << 32))


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
