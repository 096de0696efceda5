"""A metric stream as `redis-cli XRANGE <key> - +` prints it: raw into a pipe, or with --no-raw, --csv or --json.

The raw form separates by line breaks, which also occur within records: a record ends where its msgpack value does.
"""

import io
import re
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_contract.metrics import MAX_RECORD_BYTES, STREAM_FIELD

from trimtab_policies.log_readers.archive import record_row
from trimtab_policies.log_readers.msgpack_values import CutShort, NotMsgpack, value_end
from trimtab_policies.log_readers.points import Found, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader

_BLOCK = 256 * 1024
_LONGEST_QUOTED = 4 * MAX_RECORD_BYTES + _BLOCK
_FIELD = re.escape(STREAM_FIELD)
_RAW = re.compile(rb"(?:^|\n)\d+-\d+\r?\n" + _FIELD + rb"\r?\n")
_RAW_HEAD = re.compile(_RAW.pattern + rb"[\x80-\x8f\xde\xdf]")
_QUOTED = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_QUOTED_HEAD = re.compile(rb'"\d+-\d+"[\s,\[\d)]*"' + _FIELD + rb'"[\s,\d)]*"')
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|u00[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f"}
_SNAPSHOT = b"REDIS0"


def _recognises(head: bytes, _: PurePath) -> Confidence:
    start = head[: 64 * 1024]
    if start.startswith(_SNAPSHOT) or _RAW_HEAD.search(start) or _QUOTED_HEAD.search(start):
        return Confidence.CERTAIN
    return Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    head = stream.peek(_BLOCK)
    if head.startswith(_SNAPSHOT):
        advice = "export the stream with `redis-cli --json XRANGE <key> - +`"
        return iter([Unreadable(0, f"is a snapshot of a whole Redis server; {advice}")])
    return _raw_rows(stream) if _RAW_HEAD.search(head) else _quoted_rows(stream)


def _raw_rows(stream: io.BufferedReader) -> Iterator[Found]:
    buffer = bytearray()
    number, ended = 0, False
    while True:
        entry = _RAW.search(buffer)
        if entry is None and ended:
            return
        if entry is not None:
            try:
                end = value_end(buffer, entry.end())
            except CutShort:
                end = None
            except NotMsgpack as error:
                number += 1
                yield Unreadable(number, f"is no metric record: {error}")
                end = entry.end()
                del buffer[:end]
                continue
            if end is not None:
                number += 1
                yield record_row(number, bytes(buffer[entry.end() : end]))
                del buffer[:end]
                continue
            if ended or len(buffer) - entry.end() > MAX_RECORD_BYTES:
                number += 1
                yield Unreadable(number, "is cut short, or longer than a record may be")
                del buffer[: entry.end()]
                continue
        elif len(buffer) > _BLOCK:
            del buffer[:-64]
        block = stream.read(_BLOCK)
        ended = not block
        buffer += block


def _quoted_rows(stream: io.BufferedReader) -> Iterator[Found]:
    number, expected = 0, False
    for text in _quoted(stream):
        if text is None:
            number += 1
            yield Unreadable(number, "is cut short, or longer than a record may be")
        elif expected:
            number += 1
            yield record_row(number, _ESCAPE.sub(_unescaped, text))
        expected = text == STREAM_FIELD and not expected


def _quoted(stream: io.BufferedReader) -> Iterator[bytes | None]:
    """The texts in quotation marks, still escaped; None for one without an end."""
    buffer = bytearray()
    place = 0
    while True:
        while (found := _QUOTED.search(buffer, place)) is not None:
            yield bytes(found[1])
            place = found.end()
        begin = buffer.find(b'"', place)
        del buffer[: begin if begin >= 0 else len(buffer)]
        place = 0
        block = stream.read(max(_BLOCK, len(buffer)))
        if not block or len(buffer) > _LONGEST_QUOTED:
            if buffer:
                yield None
            return
        buffer += block


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if len(code) == 1:
        return _LETTERS.get(code, code)
    return bytes([int(code[-2:], 16)])


READER = LogReader("redis", "a metric stream as redis-cli XRANGE prints it", _recognises, _rows)
