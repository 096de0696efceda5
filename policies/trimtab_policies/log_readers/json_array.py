"""A JSON document with an array of objects, each with a step and metrics."""

import io
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.json_documents import elements
from trimtab_policies.log_readers.json_rows import json_row
from trimtab_policies.log_readers.points import Found, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader


def array_rows(stream: io.BufferedReader) -> Iterator[Found]:
    """A row for every object in an array."""
    for element in elements(stream):
        yield element if isinstance(element, Unreadable) else json_row(element.number, element.body)


def _recognises(head: bytes, path: PurePath) -> Confidence:
    start = head.lstrip()
    if start.startswith(b"[") and start[1:].lstrip().startswith(b"{"):
        return Confidence.LIKELY
    document = start.startswith((b"{", b"[")) and path.suffix.lower() == ".json"
    return Confidence.POSSIBLE if document and b"[" in head else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    return array_rows(stream)


READER = LogReader("json", "a JSON document with an array of objects", _recognises, _rows, reach=1)
