"""The wire format of protocol buffers, as far as reading a few fields needs it."""

import struct
from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class MalformedMessage(ValueError):
    """Bytes that are no protocol buffer message."""


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value): varints as integers, everything else as bytes. Raises MalformedMessage."""
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = varint(message, place)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, place = varint(message, place)
        elif kind == FIXED64:
            size = 8
        elif kind == FIXED32:
            size = 4
        else:
            raise MalformedMessage(f"wire type {kind} is unknown")
        if number == 0 or size > len(message) - place:
            raise MalformedMessage("a field reaches beyond its message")
        yield number, kind, message[place : place + size]
        place += size


def varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise MalformedMessage("an integer reaches beyond its message")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
    raise MalformedMessage("an integer is longer than 64 bits")


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def unpacked(form: str, value: int | bytes) -> float:
    """A fixed-width number; raises MalformedMessage."""
    if not isinstance(value, bytes) or len(value) != struct.calcsize(form):
        raise MalformedMessage("a number has the wrong width")
    return struct.unpack(form, value)[0]
