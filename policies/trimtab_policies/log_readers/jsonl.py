"""JSON Lines: one object a line, from any program that logs so, and the metric records kept as evidence."""

import io
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.json_rows import json_row
from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.streams import lines


def first_line(head: bytes) -> bytes:
    """The first line that is not blank."""
    return head.lstrip().partition(b"\n")[0].rstrip(b"\r")


def _recognises(head: bytes, path: PurePath) -> Confidence:
    start = first_line(head)
    if start.startswith(b"{") and isinstance(json_row(1, start), Row):
        return Confidence.CERTAIN
    named = path.suffix.lower() in {".jsonl", ".ndjson"}
    return Confidence.LIKELY if named and (start.startswith(b"{") or b"\n{" in head) else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    for line in lines(stream):
        if isinstance(line, Unreadable):
            yield line
            continue
        number, content = line
        yield json_row(number, content) if content.strip() else Other(number)


READER = LogReader("jsonl", "JSON Lines, one object a line", _recognises, _rows)
