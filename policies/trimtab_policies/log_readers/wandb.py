"""Weights & Biases: a chart exported as CSV, or a run's history as JSON or JSON Lines.

A chart's columns are `<run> - <metric>` with `__MIN` and `__MAX` beside it, which are left out, as are W&B's own
columns, which begin with an underscore. `_step`, the calls of `wandb.log`, is the step where nothing better is.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.csv_table import header, table_rows
from trimtab_policies.log_readers.json_array import array_rows
from trimtab_policies.log_readers.json_rows import json_row
from trimtab_policies.log_readers.points import Found, Other, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import lines

_HISTORY = re.compile(rb'^\s*\[?\s*\{[^{}]*"_step"\s*:')


def _recognises(head: bytes, _: PurePath) -> Confidence:
    names = header(head[: 1 << 20])
    chart = any(name.endswith("__MIN") and name.removesuffix("__MIN") in names for name in names)
    if chart or "_step" in names or _HISTORY.match(head[: 1 << 20]):
        return Confidence.CERTAIN
    return Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    start = stream.peek(1024).lstrip()[:1]
    if start == b"[":
        return array_rows(stream)
    return _history(stream) if start == b"{" else table_rows(stream)


def _history(stream: io.BufferedReader) -> Iterator[Found]:
    for line in lines(stream):
        if isinstance(line, Unreadable):
            yield line
        else:
            yield json_row(*line) if line[1].strip() else Other(line[0])


def _undecorated(column: str) -> str | None:
    if column.endswith(("__MIN", "__MAX")):
        return None
    name = column.rpartition(" - ")[2]
    return None if name.startswith("_") and name != "_step" else name


READER = LogReader(
    "wandb",
    "a Weights & Biases chart (CSV) or history (JSON)",
    _recognises,
    _rows,
    undecorated=_undecorated,
    reach=1,
)
