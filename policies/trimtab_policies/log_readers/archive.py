"""Archived metric records: msgpack arrays as the trainer stores them, one or several of them in a row."""

import io
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_contract.errors import MalformedRecord
from trimtab_contract.metrics import MAX_RECORD_BYTES, decode_record

from trimtab_policies.log_readers.msgpack_values import CutShort, NotMsgpack, ValueStream
from trimtab_policies.log_readers.points import Found, Row, Unreadable
from trimtab_policies.log_readers.reading import Confidence, LogReader


def record_row(number: int, wire: bytes) -> Row | Unreadable:
    """The row of one metric record."""
    try:
        record = decode_record(wire)
    except MalformedRecord as error:
        return Unreadable(number, str(error))
    return Row(
        line=number,
        step=record.step,
        values=record.scalars,
        vectors=record.vectors,
        time=record.time,
        attempt=record.attempt,
        window=record.window,
    )


def _recognises(head: bytes, _: PurePath) -> Confidence:
    for size in (1, 3, 5):
        # An array, and in it a map whose first key is a field of a metric record.
        if head[size : size + 1] and 0x80 <= head[size] <= 0x8F and head[size + 1 : size + 9] == b"\xa7attempt":
            return Confidence.CERTAIN
    return Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    values = ValueStream(stream, MAX_RECORD_BYTES)
    number = 0
    try:
        while (entries := values.array()) is not None:
            for _entry in range(entries):
                number += 1
                yield record_row(number, values.value())
    except CutShort:
        yield Unreadable(number, "is cut short: the archive ends within it")
    except NotMsgpack as error:
        yield Unreadable(number, f"cannot be read, nor anything after it: {error}")


READER = LogReader("archive", "archived metric records (msgpack)", _recognises, _rows)
