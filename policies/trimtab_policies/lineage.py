"""Records of all attempts -> the surviving history.

A rollback or restart begins a new attempt that continues its parent's history up to and including `branch_step`; the
parent's records beyond it no longer count. Step numbers therefore repeat, and only `(attempt, step)` names a record.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, Self, TypeVar, cast

from trimtab_contract.metrics import MetricRecord

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


T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Fold(Protocol[T_co]):
    """Something that is fed surviving records in order and has a result after each."""

    def step(self, record: MetricRecord) -> T_co:
        """Take the next record."""
        ...


class _Progress(Generic[T]):
    """How far a fold has come: a memo, which may be forgotten at any time without changing a result."""

    def __init__(self, origin: int, fold: Fold[T]) -> None:
        self.fold = fold
        self.next_step = origin
        self.result: T | None = None


class History:
    """The surviving records up to the newest of the current attempt: contiguous steps, bounded length.

    `retention` is the least number of records kept once so many were seen (see `evaluation.retention`); `first_step`
    says where the kept history begins when earlier records were left out on loading.
    """

    def __init__(self, lineage: Lineage, attempt: int, *, retention: int, first_step: int | None = None) -> None:
        self.retention = retention
        self._records: list[MetricRecord] = []
        self._memo: dict[Hashable, dict[int, _Progress[object]]] = {}
        self._furthest = 0
        self._enter(lineage, attempt)
        self._next_step = self._segments[0].first if first_step is None else first_step

    @property
    def records(self) -> tuple[MetricRecord, ...]:
        """The kept records, oldest first."""
        return tuple(self._records)

    @property
    def last(self) -> MetricRecord:
        """The newest record; raises EmptyHistory."""
        if not self._records:
            message = "no record has arrived yet"
            raise EmptyHistory(message)
        return self._records[-1]

    @property
    def next_step(self) -> int:
        """The step that the next accepted record will have."""
        return self._next_step

    @property
    def missing_step(self) -> int | None:
        """The first missing step while a later one has been offered, else None."""
        return self._next_step if self._furthest >= self._next_step else None

    @property
    def is_short(self) -> bool:
        """Whether records before the kept ones exist and are needed: load the history again from where they are stored.

        So it is after a rollback far back, and after `retention` was raised for a policy with a longer reach.
        """
        first_kept = self._next_step - len(self._records)
        return first_kept > max(self._segments[0].first, self._next_step - self.retention)

    def append(self, record: MetricRecord) -> Appended:
        """Offer a record, O(1) amortised; only an ACCEPTED one changes what is judged."""
        if _owner(self._segments, record.step) != record.attempt:
            return Appended.STALE
        if record.step < self._next_step:
            return Appended.DUPLICATE
        self._furthest = max(self._furthest, record.step)
        if record.step > self._next_step:
            return Appended.GAP
        self._records.append(record)
        self._next_step += 1
        if len(self._records) > 2 * self.retention:
            del self._records[: -self.retention]
            first_kept = self._records[0].step
            self._memo = {
                key: running
                for key, running in self._memo.items()
                if all(progress.next_step > first_kept for progress in running.values())
            }
        return Appended.ACCEPTED

    def rebase(self, attempt: int, parent: int, branch_step: int) -> None:
        """Enter a new attempt after a rollback or restart: records that it does not continue are dropped.

        Steps between the last kept record and `branch_step`, if any, are then missing and taken from the parent. Ask
        `is_short` afterwards. Entering the current attempt again changes nothing. Raises InvalidLineage.
        """
        entered = Attempt(attempt, parent, branch_step)
        if entered == self.lineage.attempts.get(self.attempt):
            return
        self._enter(self.lineage.including(entered), attempt)
        kept = len(self._records)
        while kept and _owner(self._segments, self._records[kept - 1].step) != self._records[kept - 1].attempt:
            kept -= 1
        if kept < len(self._records):
            self._next_step = self._records[kept].step if kept else min(self._records[0].step, branch_step + 1)
            del self._records[kept:]
        self._furthest = 0
        self._memo.clear()

    def fold(self, key: Hashable, origins: tuple[int, int], make: Callable[[], Fold[T]]) -> T:
        """The result, after the last record, of a fold begun at step `origins[0]` (or at the first record kept).

        A pure function of the records and `make`: equal keys must mean equal folds. Work already done for the same key
        and origin is not repeated, and the fold begun at `origins[1]` is kept abreast, so that its turn costs nothing.
        Raises EmptyHistory.
        """
        first = self.last.step - len(self._records) + 1
        known = self._memo.get(key, {})
        running: dict[int, _Progress[T]] = {}
        for origin in origins:
            start = max(origin, first)
            progress = cast("_Progress[T] | None", known.get(start)) or _Progress(start, make())
            for record in self._records[progress.next_step - first :]:
                progress.result = progress.fold.step(record)
            progress.next_step = max(start, self._next_step)
            running[start] = progress
        self._memo[key] = cast("dict[int, _Progress[object]]", running)
        return cast("T", running[max(origins[0], first)].result)

    def _enter(self, lineage: Lineage, attempt: int) -> None:
        self.lineage = lineage
        self.attempt = attempt
        self.attempt_start_step = lineage.attempts[attempt].branch_step if attempt in lineage.attempts else 0
        self._segments = lineage.surviving(attempt)


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
