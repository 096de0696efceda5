"""MLflow: a metric's file of an `mlruns` folder, an exported metrics table (CSV), or `metrics/get-history` (JSON).

The table may also come from elsewhere, if it has a row a value with a name (`key`, `metric`, `tag`), a step and a
value. MLflow's database stores NaN as 0 with `is_nan`, and an infinity as the largest double.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, cast

from trimtab_policies.log_readers.csv_table import cells, delimiter, header
from trimtab_policies.log_readers.json_documents import elements
from trimtab_policies.log_readers.json_rows import decode_json
from trimtab_policies.log_readers.long_table import Cell, rows_in_step_order
from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.quantities import NotANumber, epoch_seconds, number, whole_step
from trimtab_policies.log_readers.reading import Confidence, LogReader

_METRIC_FILE = re.compile(rb"^\s*\d{12,14} \S+ -?\d+\s*$")
_HISTORY = re.compile(rb'^\s*\{\s*"metrics"\s*:\s*\[')
_NAME_COLUMNS = ("key", "metric", "metric_name", "tag")
_RUN_COLUMNS = ("run_id", "run_uuid", "run id", "run")
_LARGEST = 1.7976931348623157e308


def _recognises(head: bytes, _: PurePath) -> Confidence:
    start = head[: 1 << 20]
    first = start.partition(b"\n")[0]
    names = {name.lower() for name in header(start)}
    table = not names.isdisjoint(_NAME_COLUMNS) and {"step", "value"} <= names
    if table or _METRIC_FILE.match(first) or (_HISTORY.match(start) and b'"key"' in start):
        return Confidence.CERTAIN
    return Confidence.NO


def _rows(stream: io.BufferedReader, path: PurePath) -> Iterator[Found]:
    head = stream.peek(1024)
    if head.lstrip().startswith((b"{", b"[")):
        return _history(stream)
    if _METRIC_FILE.match(head.partition(b"\n")[0]):
        return _metric_file(stream, path.name.removesuffix(".gz") or "value")
    return _table(stream)


def _metric_file(stream: io.BufferedReader, name: str) -> Iterator[Found]:
    line = 0
    while content := stream.readline(1024):
        line += 1
        parts = content.decode(errors="replace").split()
        if len(parts) == 3:
            yield Row(line=line, step=parts[2], values={name: parts[1]}, time=epoch_seconds(parts[0]))
        elif parts:
            yield Unreadable(line, "is no `timestamp value step`")
        else:
            yield Other(line)


def _history(stream: io.BufferedReader) -> Iterator[Found]:
    for element in elements(stream):
        if isinstance(element, Unreadable):
            yield element
            continue
        try:
            content = decode_json(element.body)
        except ValueError:
            yield Unreadable(element.number, "is not JSON")
            continue
        metric = cast("dict[str, Any]", content)
        if not isinstance(metric.get("key"), str) or "value" not in metric:
            yield Unreadable(element.number, "is no metric with key, value, step and timestamp")
            continue
        # The REST API leaves out what is 0.
        yield Row(
            line=element.number,
            step=metric.get("step", 0),
            values={metric["key"]: metric["value"]},
            time=epoch_seconds(metric.get("timestamp")),
        )


def _table(stream: io.BufferedReader) -> Iterator[Found]:
    first = stream.readline(1 << 20)
    text = first.decode(errors="replace").strip()
    table = _Table(cells(text, delimiter(text)), delimiter(text))
    if table.lacks:
        yield Unreadable(1, f"is no header of a table of metrics: it has no {' and no '.join(table.lacks)}")
        return
    if not stream.seekable():
        yield Unreadable(0, "a table with a row for every value can only be read from a file in UTF-8")
        return
    yield Other(1)
    yield from rows_in_step_order(stream, stream.tell(), 2, table.parse)


class _Table:
    """The columns of a table with a row for every value."""

    def __init__(self, names: tuple[str, ...], separator: str) -> None:
        self._names = tuple(name.lower() for name in names)
        self._separator = separator
        self._name = next((name for name in _NAME_COLUMNS if name in self._names), "")
        self._run = next((name for name in _RUN_COLUMNS if name in self._names), "")
        self.lacks = [name for name in ("step", "value") if name not in self._names]
        if not self._name:
            self.lacks.append(_NAME_COLUMNS[0])

    def parse(self, line: int, content: bytes) -> Cell | Unreadable | Other:
        """A line's value."""
        text = content.decode(errors="replace").replace("\x00", "\ufffd").rstrip("\r")
        try:
            found = next(csv.reader([text], delimiter=self._separator), list[str]())
        except csv.Error as error:
            return Unreadable(line, f"is no CSV: {error}")
        if not any(found):
            return Other(line)
        if len(found) != len(self._names):
            return Unreadable(line, f"has {len(found)} cells, the header has {len(self._names)}")
        row = dict(zip(self._names, found, strict=True))
        try:
            step = whole_step(row["step"])
        except NotANumber as error:
            return Unreadable(line, str(error))
        if step is None or not row.get(self._name):
            return Unreadable(line, "has no step, or no name of a metric")
        time = epoch_seconds(row.get("timestamp", row.get("wall_time")))
        return Cell(line, row.get(self._run, ""), row[self._name], step, _stored(row), time)


def _stored(row: Mapping[str, str]) -> object:
    """A value as it was logged."""
    if row.get("is_nan", "").lower() in {"1", "t", "true"}:
        return "NaN"
    try:
        given = number(row["value"])
    except NotANumber:
        return row["value"]
    if given is not None and abs(given) >= _LARGEST:
        return "Infinity" if given > 0 else "-Infinity"
    return given


READER = LogReader("mlflow", "MLflow metrics, or a table with a row for every value", _recognises, _rows, seeks=True)
