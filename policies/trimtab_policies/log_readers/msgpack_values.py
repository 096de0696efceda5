"""Where msgpack values end, so that a stream of them can be read one by one and lengths that lie do no harm.

Source: the msgpack specification; extension types are passed over like any other value.
"""

import io
import struct

_BLOCK = 64 * 1024
_SIZED = {
    0xC4: (">B", 1),
    0xC5: (">H", 1),
    0xC6: (">I", 1),
    0xC7: (">B", 2),
    0xC8: (">H", 2),
    0xC9: (">I", 2),
    0xD9: (">B", 1),
    0xDA: (">H", 1),
    0xDB: (">I", 1),
}
"""Byte -> how its length is packed, and the bytes before the length's content besides it: 1, with a type 2."""
_FIXED = dict(
    zip(
        (0xC0, 0xC2, 0xC3, *range(0xCA, 0xD9)),
        (1, 1, 1, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18),
        strict=True,
    )
)
"""Byte -> the size of a value that has one size only: nil, booleans, floats, integers, small extensions."""
_CONTAINERS = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}
"""Byte -> how the number of entries is packed, and the values per entry."""


class NotMsgpack(ValueError):
    """A byte that begins no value."""


class CutShort(ValueError):
    """The bytes end within a value."""


def value_end(data: bytes | bytearray, start: int) -> int:
    """The place behind the value that begins at `start`; raises NotMsgpack and CutShort."""
    place, wanted = start, 1
    try:
        while wanted:
            size, more = _one(data, place)
            place += size
            wanted += more - 1
            if place > len(data) or wanted > len(data) - place:
                raise CutShort("the bytes end within a value")
    except (IndexError, struct.error):
        raise CutShort("the bytes end within a value") from None
    return place


def _one(data: bytes | bytearray, place: int) -> tuple[int, int]:
    """The bytes of a value without what it contains, and how many values it contains."""
    first = data[place]
    if first <= 0x7F or first >= 0xE0:
        return 1, 0
    if first <= 0x8F:
        return 1, 2 * (first & 0x0F)
    if first <= 0x9F:
        return 1, first & 0x0F
    if first <= 0xBF:
        return 1 + (first & 0x1F), 0
    if first in _FIXED:
        return _FIXED[first], 0
    if first in _SIZED:
        form, before = _SIZED[first]
        return before + struct.calcsize(form) + struct.unpack_from(form, data, place + 1)[0], 0
    if first in _CONTAINERS:
        form, per_entry = _CONTAINERS[first]
        return 1 + struct.calcsize(form), per_entry * struct.unpack_from(form, data, place + 1)[0]
    raise NotMsgpack(f"byte {first:#04x} begins no msgpack value")


class ValueStream:
    """Values of a stream, one after the other, at most `longest` bytes each."""

    def __init__(self, stream: io.BufferedReader, longest: int) -> None:
        self._stream = stream
        self._longest = longest
        self._buffer = bytearray()
        self._place = 0
        self._ended = False

    def array(self) -> int | None:
        """The number of entries of an array that begins here, None at the end; raises NotMsgpack, CutShort."""
        while len(self._buffer) - self._place < 5 and self._more():
            pass
        if self._place == len(self._buffer):
            return None
        first = self._buffer[self._place]
        if not (0x90 <= first <= 0x9F or first in {0xDC, 0xDD}):
            raise NotMsgpack(f"byte {first:#04x} begins no array of records")
        try:
            size, entries = _one(self._buffer, self._place)
        except struct.error:
            raise CutShort("the bytes end within the number of records") from None
        self._place += size
        return entries

    def value(self) -> bytes:
        """The next value; raises NotMsgpack, CutShort."""
        while True:
            try:
                end = value_end(self._buffer, self._place)
            except CutShort:
                if len(self._buffer) - self._place > self._longest:
                    raise NotMsgpack(f"a record is longer than {self._longest} bytes") from None
                if not self._more():
                    raise
                continue
            body = bytes(self._buffer[self._place : end])
            self._place = end
            return body

    def _more(self) -> bool:
        if self._ended:
            return False
        del self._buffer[: self._place]
        self._place = 0
        # As much again as there is: a long record is then looked at a few times only.
        block = self._stream.read(max(_BLOCK, len(self._buffer)))
        self._ended = not block
        self._buffer += block
        return bool(block)
