"""TensorBoard event files: TFRecords of Event messages.

A record is a 64-bit length, its checksum, the message, its checksum. A wrong checksum of a message costs that message;
a wrong one of a length costs the rest of the file, since nothing says where the next record begins.
"""

import io
import struct
from collections.abc import Iterator
from pathlib import PurePath

from trimtab_policies.log_readers.checksum import masked_crc32c
from trimtab_policies.log_readers.points import Found, Other, Row, Unreadable
from trimtab_policies.log_readers.protobuf import MalformedMessage
from trimtab_policies.log_readers.reading import Confidence, LogReader
from trimtab_policies.log_readers.tensorboard_events import scalar_event

LARGEST_EVENT = 256 * 1024
"""Larger ones are graphs and images; they are passed over without a look at their checksum."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_BLOCK = 64 * 1024
_REACH = 8


def _recognises(head: bytes, _: PurePath) -> Confidence:
    if len(head) < _HEADER.size:
        return Confidence.NO
    length, checksum = _HEADER.unpack_from(head)
    known = length < 1 << 40 and masked_crc32c(head[:8]) == checksum
    return Confidence.CERTAIN if known else Confidence.NO


def _rows(stream: io.BufferedReader, _: PurePath) -> Iterator[Found]:
    number = 0
    while header := stream.read(_HEADER.size):
        number += 1
        if len(header) < _HEADER.size:
            yield _cut_short(number)
            return
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            yield Unreadable(number, "has a damaged length, so that it cannot be read, nor anything after it")
            return
        if length > LARGEST_EVENT:
            if not _pass_over(stream, length + _CHECKSUM.size):
                yield _cut_short(number)
                return
            yield Other(number)
            continue
        body = stream.read(length + _CHECKSUM.size)
        if len(body) < length + _CHECKSUM.size:
            yield _cut_short(number)
            return
        yield _event(number, body[:length], _CHECKSUM.unpack(body[length:])[0])


def _event(number: int, message: bytes, checksum: int) -> Found:
    if masked_crc32c(message) != checksum:
        return Unreadable(number, "is damaged: its checksum does not fit")
    try:
        event = scalar_event(message)
    except MalformedMessage as error:
        return Unreadable(number, f"is no TensorBoard event: {error}")
    if not event.scalars:
        return Other(number)
    return Row(line=number, step=event.step, time=event.time, values=dict(event.scalars))


def _pass_over(stream: io.BufferedReader, size: int) -> bool:
    while size and (block := stream.read(min(size, _BLOCK))):
        size -= len(block)
    return not size


def _cut_short(number: int) -> Unreadable:
    return Unreadable(number, "is cut short: the file ends within it")


READER = LogReader("tensorboard", "a TensorBoard event file", _recognises, _rows, reach=_REACH)
