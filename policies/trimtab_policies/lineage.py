"""Records of all attempts -> the surviving history.

A rollback or restart begins a new attempt that continues its parent's history up to and including `branch_step`; the
parent's records beyond it no longer count. Step numbers therefore repeat, and only `(attempt, step)` names a record.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

from trimtab_contract.metrics import MetricRecord, decode_record, encode_record

from trimtab_policies.errors import EmptyHistory, InvalidLineage


@dataclass(frozen=True, slots=True)
class Attempt:
    """One stretch of training: it continues `parent` after `branch_step`, or begins a run there (from scratch: 0)."""

    attempt: int
    parent: int | None = None
    branch_step: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps `first` to `last` of a surviving history come from `attempt`; `last` is None for the current attempt."""

    attempt: int
    first: int
    last: int | None


class Lineage:
    """The tree of attempts of one run."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self.attempts: Mapping[int, Attempt] = {}
        for attempt in sorted(attempts, key=lambda one: one.attempt):
            self.attempts = _with(self.attempts, attempt)

    def including(self, attempt: Attempt) -> Self:
        """This lineage with one more attempt; raises InvalidLineage."""
        return type(self)((*self.attempts.values(), attempt))

    def surviving(self, attempt: int) -> tuple[Segment, ...]:
        """The history of `attempt`, oldest segment first; segments that later branches emptied are left out.

        Raises InvalidLineage for an attempt that is not in the lineage.
        """
        if attempt not in self.attempts:
            message = f"attempt {attempt} is not in the lineage"
            raise InvalidLineage(message)
        path = [self.attempts[attempt]]
        while (parent := path[-1].parent) is not None:
            path.append(self.attempts[parent])
        last: int | None = None
        segments: list[Segment] = []
        for one in path:
            first = one.branch_step + 1
            if last is None or first <= last:
                segments.append(Segment(one.attempt, first, last))
                last = one.branch_step
        return tuple(reversed(segments))

    def owner(self, step: int, attempt: int) -> int | None:
        """The attempt whose record of `step` survives in the history of `attempt`; None before the run began."""
        return _owner(self.surviving(attempt), step)


class Appended(Enum):
    """What became of a record offered to a history."""

    ACCEPTED = auto()
    """It is the history's new last record: judge it."""
    DUPLICATE = auto()
    """Its step is already there."""
    STALE = auto()
    """Its attempt does not own its step in the current history."""
    GAP = auto()
    """Steps before it are missing (`missing_step`): judgement stops until they are found."""


class History:
    """The surviving records up to the newest of the current attempt: contiguous steps, the last `kept` of them at hand.

    They are kept in their wire form, which is a quarter of the size. `first_step` says where the history begins when
    earlier records were left out on loading.
    """

    def __init__(self, lineage: Lineage, attempt: int, *, kept: int, first_step: int | None = None) -> None:
        self.lineage = lineage
        self.attempt = attempt
        self.attempt_start_step = lineage.attempts[attempt].branch_step if attempt in lineage.attempts else 0
        self._segments = lineage.surviving(attempt)
        self._records: deque[bytes] = deque(maxlen=kept)
        self._last: MetricRecord | None = None
        self._furthest = 0
        self._next_step = self._segments[0].first if first_step is None else first_step

    @property
    def records(self) -> tuple[MetricRecord, ...]:
        """The kept records, oldest first."""
        return tuple(decode_record(wire) for wire in self._records)

    @property
    def last(self) -> MetricRecord:
        """The newest record; raises EmptyHistory."""
        if self._last is None:
            message = "no record has arrived yet"
            raise EmptyHistory(message)
        return self._last

    @property
    def next_step(self) -> int:
        """The step that the next accepted record will have."""
        return self._next_step

    @property
    def furthest_step(self) -> int:
        """The highest step of any record that was offered, behind a gap or not."""
        return max(self._furthest, self._next_step - 1)

    @property
    def missing_step(self) -> int | None:
        """The first missing step while a later one has been offered, else None."""
        return self._next_step if self._furthest >= self._next_step else None

    def append(self, record: MetricRecord) -> Appended:
        """Offer a record, O(1); only an ACCEPTED one is to be judged."""
        if _owner(self._segments, record.step) != record.attempt:
            return Appended.STALE
        if record.step < self._next_step:
            return Appended.DUPLICATE
        self._furthest = max(self._furthest, record.step)
        if record.step > self._next_step:
            return Appended.GAP
        self._records.append(encode_record(record))
        self._last = record
        self._next_step += 1
        return Appended.ACCEPTED


def _owner(segments: tuple[Segment, ...], step: int) -> int | None:
    for segment in reversed(segments):
        if step >= segment.first:
            return segment.attempt if segment.last is None or step <= segment.last else None
    return None


def _with(attempts: Mapping[int, Attempt], new: Attempt) -> Mapping[int, Attempt]:
    if new.attempt in attempts:
        message = f"attempt {new.attempt} appears twice"
        raise InvalidLineage(message)
    if new.parent is not None and new.parent not in attempts:
        message = f"attempt {new.attempt} continues attempt {new.parent}, which does not precede it"
        raise InvalidLineage(message)
    return {**attempts, new.attempt: new}
