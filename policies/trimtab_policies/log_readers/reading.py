"""Rows -> points: names found, numbers checked, rows of one step merged, and everything left out counted."""

import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite, isnan
from pathlib import PurePath

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS, Vector

from trimtab_policies.errors import InvalidMapping, UnreadableLog
from trimtab_policies.log_readers.naming import LONGEST_COLUMN, MOST_COLUMNS, STEP, Names, same_name
from trimtab_policies.log_readers.points import NO_ARRAY, Found, LogPoint, Row, Unreadable
from trimtab_policies.log_readers.quantities import NotANumber, epoch_seconds, number, shown, whole_step
from trimtab_policies.log_readers.streams import BinaryStream, buffered

FIRST_REASONS = 5
_STATED = frozenset((*KNOWN_SCALARS, *KNOWN_VECTORS, "val_loss"))


class Confidence(IntEnum):
    """How sure a reader is that a log is its own."""

    NO = 0
    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


@dataclass(frozen=True, slots=True)
class LogReader:
    """One format.

    `recognises` sees the first bytes (HEAD_BYTES of them) and the file's name; `rows` sees the stream and the name.
    `aliases` are names that mean a metric in this format only, `undecorated` strips what the format puts around a name
    (see `naming`). Rows of one step are merged if at most `reach` other steps lie between them. `seeks` says that the
    stream has to be seekable, and cheaply.
    """

    name: str
    describe: str
    recognises: Callable[[bytes, PurePath], Confidence]
    rows: Callable[[io.BufferedReader, PurePath], Iterable[Found]]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    undecorated: Callable[[str], str | None] = same_name
    reach: int = 0
    seeks: bool = False

    def read(self, stream: BinaryStream, mapping: Mapping[str, str] | None = None, filename: str = "") -> "Reading":
        """Read a log once; `mapping` is metric -> column, and `step` may be mapped too. Raises InvalidMapping."""
        return Reading(self, stream, mapping or {}, PurePath(filename))


@dataclass(frozen=True, slots=True)
class ReadingSummary:
    """What became of a log's lines. The first few reasons are kept.

    `columns` maps what was read to its metric; `text_columns` hold no numbers and are no metrics.
    """

    points: int
    unreadable: int
    reasons: tuple[Unreadable, ...]
    without_metrics: int
    columns: Mapping[str, str]
    text_columns: tuple[str, ...]


class Reading:
    """Iterate it for the points; `summary` says afterwards what was not read.

    Raises, at the end: UnreadableLog when nothing could be read, InvalidMapping when a mapped column never appeared.
    """

    def __init__(self, reader: LogReader, stream: BinaryStream, mapping: Mapping[str, str], path: PurePath) -> None:
        self._reader = reader
        self._stream = stream
        self._path = path
        self._mapping = mapping
        self._names = Names(mapping, reader.aliases, reader.undecorated)
        self._points = 0
        self._unreadable = 0
        self._reasons: list[Unreadable] = []
        self._without_metrics = 0
        self._text_columns: dict[str, None] = {}

    @property
    def summary(self) -> ReadingSummary:
        """What was read up to now."""
        return ReadingSummary(
            points=self._points,
            unreadable=self._unreadable,
            reasons=tuple(self._reasons),
            without_metrics=self._without_metrics,
            columns={
                column: metric
                for column, metric in self._names.columns.items()
                if metric is not None and column not in self._text_columns
            },
            text_columns=tuple(self._text_columns),
        )

    def __iter__(self) -> Iterator[LogPoint]:
        for point in _merged(self._single_points(), self._reader.reach):
            self._points += 1
            yield point
        self._check_end()

    def _single_points(self) -> Iterator[LogPoint]:
        for found in self._reader.rows(buffered(self._stream), self._path):
            if isinstance(found, Row):
                point = self._point(found)
                if point is not None:
                    yield point
            elif isinstance(found, Unreadable):
                self._report(found.line, found.reason)
            else:
                self._without_metrics += 1

    def _check_end(self) -> None:
        missing = self._names.unknown_sources()
        if missing and self._names.columns:
            seen = ", ".join(sorted(self._names.columns)) or "none"
            raise InvalidMapping(f"no column is called {', '.join(map(repr, missing))}; the log has: {_cut(seen)}")
        if not self._points:
            raise UnreadableLog(self._nothing())

    def _nothing(self) -> str:
        message = f"nothing could be read as {self._reader.name} ({self._reader.describe})"
        if self._reasons:
            return f"{message}: {self._reasons[0]}"
        if self._without_metrics:
            return f"{message}: none of its {self._without_metrics} lines carries a step and a metric"
        return f"{message}: the log is empty"

    def _report(self, line: int, reason: str) -> None:
        self._unreadable += 1
        if len(self._reasons) < FIRST_REASONS:
            self._reasons.append(Unreadable(line, reason))

    def _point(self, row: Row) -> LogPoint | None:
        known = self._names.columns
        fresh = [column for column in (*row.values, *row.vectors) if column not in known]
        if fresh and not self._learn(row, fresh):
            return None
        try:
            step = whole_step(row.values.get(self._names.step_column or "") if self._finds_step(row) else row.step)
        except NotANumber as error:
            self._report(row.line, str(error))
            return None
        scalars, time = self._scalars(row)
        vectors = self._vectors(row)
        if not scalars and not vectors:
            self._without_metrics += 1
            return None
        if step is None:
            self._report(row.line, self._no_step())
            return None
        return LogPoint(
            step=step,
            scalars=scalars,
            vectors=vectors,
            time=row.time if row.time is not None and isfinite(row.time) else time,
            attempt=row.attempt,
            window=row.window,
            line=row.line,
        )

    def _learn(self, row: Row, fresh: list[str]) -> bool:
        if len(self._names.columns) + len(fresh) > MOST_COLUMNS:
            self._report(row.line, f"brings the log to over {MOST_COLUMNS} columns")
            return False
        if max(map(len, fresh)) > LONGEST_COLUMN:
            self._report(row.line, f"has a column whose name is longer than {LONGEST_COLUMN} characters")
            return False
        if self._finds_step(row) and self._names.step_column is None:
            self._names.choose_step(row.values)
        for problem in self._names.learn([column for column in fresh if column not in self._names.columns]):
            self._report(row.line, problem)
        return True

    def _finds_step(self, row: Row) -> bool:
        """Whether the step is one of the row's values."""
        return row.step is None or STEP in self._mapping

    def _no_step(self) -> str:
        if self._names.step_column is not None:
            return f"has no {self._names.step_column}"
        return f"has no column that counts steps; name it with --map '{STEP}=COLUMN'"

    def _scalars(self, row: Row) -> tuple[dict[str, float], float | None]:
        columns, times = self._names.columns, self._names.time_columns
        scalars: dict[str, float] = {}
        time: float | None = None
        for column, value in row.values.items():
            if column in times and (moment := epoch_seconds(value)) is not None:
                time = moment
                continue
            metric = columns[column]
            if metric is None or value is None:
                continue
            given = value if type(value) is float else self._number(row, column, metric, value)
            if given is not None:
                scalars[metric] = given
        return scalars, time

    def _number(self, row: Row, column: str, metric: str, value: object) -> float | None:
        try:
            return number(value)
        except NotANumber:
            if metric in _STATED or metric in self._mapping:
                told = value if value == NO_ARRAY else shown(value)
                self._report(row.line, f"{column} is {told}, not a number")
            elif len(self._text_columns) < MOST_COLUMNS:
                self._text_columns[column] = None
            return None

    def _vectors(self, row: Row) -> dict[str, Vector]:
        if not row.vectors:
            return {}
        named = ((self._names.columns[column], vector) for column, vector in row.vectors.items())
        return {metric: vector for metric, vector in named if metric is not None}


def _merged(points: Iterable[LogPoint], reach: int) -> Iterator[LogPoint]:
    """Points of one step that do not contradict each other, as one; in order of appearance, `reach` steps held back.

    A point that gives a metric of its step another value is a step done again: what was held goes first, then it.
    """
    held: OrderedDict[tuple[int | None, int], LogPoint] = OrderedDict()
    newest = -1
    for point in points:
        key = (point.attempt, point.step)
        earlier = held.get(key)
        if earlier is not None and _agree(earlier, point):
            held[key] = _joined(earlier, point)
            continue
        if earlier is not None or point.step < newest:
            yield from held.values()
            held.clear()
        elif len(held) > reach:
            yield held.popitem(last=False)[1]
        newest = point.step
        held[key] = point
    yield from held.values()


def _agree(one: LogPoint, other: LogPoint) -> bool:
    """Whether no metric has another value in the other point."""
    return all(one.vectors[name] == other.vectors[name] for name in one.vectors.keys() & other.vectors) and all(
        one.scalars[name] == other.scalars[name] or (isnan(one.scalars[name]) and isnan(other.scalars[name]))
        for name in one.scalars.keys() & other.scalars
    )


def _joined(one: LogPoint, other: LogPoint) -> LogPoint:
    return LogPoint(
        step=one.step,
        scalars={**one.scalars, **other.scalars},
        vectors={**one.vectors, **other.vectors} if one.vectors or other.vectors else {},
        time=one.time if one.time is not None else other.time,
        attempt=one.attempt,
        window=one.window if one.window is not None else other.window,
        line=one.line,
    )


def _cut(text: str) -> str:
    return text if len(text) <= 1000 else f"{text[:1000]}..."
