"""A log's points in file order -> records as the operator would have judged them.

What the order of a log says, precisely:

* **Ordinals** count the log's records, so on a log written every 5 steps 3 records are 15 steps. Where the log states
  attempts (our own records do) the step is the ordinal, as it is for the operator.
* **The same step again**: with equal content a duplicate, which is left out; with other content a conflict, of which
  the first counts (several ranks printed, or a resumed run began with the step that was printed last).
* **A step that goes back** to the first step of the run or before it begins a new run, with nothing remembered. To a
  later one that is known with equal content, it is a duplicate. To one that is missing among the last LATE_RECORDS, it
  is late and left out. Otherwise a new attempt begins: it continues the records before that step, as after a rollback
  or a restart.
* **Stated attempts**: a higher one begins a new attempt at its first step; a record of a lower one is superseded and
  left out.
* **A gap** is a jump in the step of more than GAP_FACTOR times the usual (the median of the last jumps): a sparse but
  regular log has none. Where attempts are stated every step has a record, and any missing step is a gap. What was
  judged "in a row" is in a row no longer, so streaks end; baselines stay. The operator would wait for the missing
  records, for ever if need be; a log has no more to give.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from itertools import islice
from typing import TypeVar

import msgspec
from trimtab_contract.metrics import MetricRecord

from trimtab_policies.log_readers.points import LogPoint

GAP_FACTOR = 5
LATE_RECORDS = 8
_JUMPS = 5
_FEWEST_JUMPS = 3
_encode = msgspec.msgpack.Encoder().encode
_Value = TypeVar("_Value")


class Beginning(Enum):
    """What begins with a record."""

    RUN = auto()
    ATTEMPT = auto()
    STRETCH = auto()
    """Behind a gap."""


class LeftOut(Enum):
    """Why a point is not judged."""

    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    LATE = "late"
    SUPERSEDED = "superseded"


class Entry(msgspec.Struct, frozen=True):
    """A record with its ordinal, and a hash of all that its point said.

    `record.attempt` numbers the stretches in which streaks may run; `attempt` is what people call the attempt.
    """

    record: MetricRecord
    ordinal: int
    time: float | None
    content: int
    run: int
    attempt: int
    line: int


class Arrival(msgspec.Struct, frozen=True):
    """A record to be judged. `survivors` is what came before it and still counts; empty unless an attempt begins."""

    entry: Entry
    beginning: Beginning | None = None
    survivors: tuple[Entry, ...] = ()


class LogHistory:
    """Follows one log; keeps the last `kept` records, of the `metrics` that somebody judges."""

    def __init__(self, metrics: Iterable[str], kept: int) -> None:
        self.runs = 0
        self.attempts = 0
        self._metrics = frozenset(metrics)
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._kept = kept
        self._jumps: deque[int] = deque(maxlen=_JUMPS)
        self._stretch = 0
        self._attempt = 0
        self._first_step = 0
        self._last: Entry | None = None

    def take(self, point: LogPoint) -> Arrival | LeftOut:
        """Place the next point of the log."""
        last = self._last
        if last is None:
            return self._begin_run(point)
        if point.attempt is not None and point.attempt != self._attempt:
            return LeftOut.SUPERSEDED if point.attempt < self._attempt else self._begin_attempt(point)
        step, last_step = point.step, last.record.step
        if step > last_step:
            gap = self._is_gap(step - last_step, stated=point.attempt is not None)
            if gap:
                self._stretch += 1
            return Arrival(self._append(point, last.ordinal + 1), Beginning.STRETCH if gap else None)
        return self._behind(point, last_step)

    def _behind(self, point: LogPoint, last_step: int) -> Arrival | LeftOut:
        if point.attempt is None and point.step < min(last_step, self._first_step + 1):
            return self._begin_run(point)
        known = self._entries.get(point.step)
        if known is not None and known.content == content_of(point):
            return LeftOut.DUPLICATE
        if point.attempt is not None or point.step == last_step:
            return LeftOut.CONFLICT if known is not None else LeftOut.LATE
        if known is None and self._is_recent(point.step):
            return LeftOut.LATE
        return self._begin_attempt(point)

    def _begin_run(self, point: LogPoint) -> Arrival:
        self.runs += 1
        self._entries.clear()
        self._first_step = point.step
        return self._begin(point, Beginning.RUN, 1)

    def _begin_attempt(self, point: LogPoint) -> Arrival:
        while self._entries and next(reversed(self._entries)) >= point.step:
            self._entries.popitem()
        ordinal = next(reversed(self._entries.values())).ordinal + 1 if self._entries else 1
        return self._begin(point, Beginning.ATTEMPT, ordinal)

    def _begin(self, point: LogPoint, beginning: Beginning, ordinal: int) -> Arrival:
        self.attempts += 1
        self._stretch += 1
        self._attempt = self._attempt + 1 if point.attempt is None else point.attempt
        self._jumps.clear()
        survivors = tuple(self._entries.values())
        return Arrival(self._append(point, ordinal), beginning, survivors)

    def _append(self, point: LogPoint, ordinal: int) -> Entry:
        entry = Entry(
            record=MetricRecord(
                attempt=self._stretch,
                step=point.step,
                window=max(point.step - 1, 0) if point.window is None else point.window,
                samples_seen=0,
                tokens_seen=0,
                time=0.0 if point.time is None else point.time,
                scalars=_chosen(point.scalars, self._metrics),
                vectors=_chosen(point.vectors, self._metrics) if point.vectors else {},
            ),
            ordinal=ordinal if point.attempt is None else max(point.step, 1),
            time=point.time,
            content=content_of(point),
            run=self.runs,
            attempt=self._attempt,
            line=point.line,
        )
        self._last = entry
        self._entries[point.step] = entry
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)
        return entry

    def _is_gap(self, jump: int, *, stated: bool) -> bool:
        jumps = self._jumps
        if stated:
            return jump > 1
        usual = sorted(jumps)[len(jumps) // 2] if len(jumps) >= _FEWEST_JUMPS else jump
        jumps.append(jump)
        return jump > GAP_FACTOR * usual

    def _is_recent(self, step: int) -> bool:
        newest = list(islice(reversed(self._entries), LATE_RECORDS))
        return step > newest[-1]


def content_of(point: LogPoint) -> int:
    """A hash of what a point says of its step, bit for bit, so that NaN equals NaN; the time does not count."""
    if not point.vectors:
        return hash(_encode(dict(point.scalars)))
    return hash(_encode((dict(point.scalars), dict(point.vectors))))


def _chosen(values: Mapping[str, _Value], metrics: frozenset[str]) -> dict[str, _Value]:
    return {name: value for name, value in values.items() if name in metrics}
