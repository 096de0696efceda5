"""Bytes of a log, in lines of bounded length."""

import codecs
import io
import re
from collections.abc import Iterator
from typing import Protocol

from trimtab_policies.log_readers.points import Unreadable

LONGEST_LINE = 8 * 1024 * 1024
"""Longer ones are reported and passed over; a metric record of the largest size, as JSON, is shorter."""
_BLOCK = 64 * 1024
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class BinaryStream(Protocol):
    """What a log is read from; it need not be seekable."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, none at the end."""
        ...

    def seekable(self) -> bool:
        """Whether `seek` works."""
        ...

    def seek(self, offset: int, whence: int, /) -> int:
        """As of any file."""
        ...

    def tell(self) -> int:
        """As of any file."""
        ...


def buffered(stream: BinaryStream) -> io.BufferedReader:
    """The stream with `peek`, as UTF-8 if it says that it is UTF-16, and without a byte-order mark."""
    reader: io.BufferedReader = io.BufferedReader(_Raw(stream), _BLOCK)
    start = reader.peek(3)[:3]
    if start[:2] in _UTF16:
        return io.BufferedReader(_Raw(reader, codecs.getincrementaldecoder("utf-16")("replace")), _BLOCK)
    if start == codecs.BOM_UTF8:
        reader.read(3)
    return reader


def lines(stream: io.BufferedReader) -> Iterator[tuple[int, bytes] | Unreadable]:
    """Numbered lines without their ends, blank ones included; one that is too long is reported."""
    readline = stream.readline
    number = 0
    while line := readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            size = len(line)
            while (rest := readline(_BLOCK)) and not rest.endswith(b"\n"):
                size += len(rest)
            yield Unreadable(number, f"is longer than {LONGEST_LINE >> 20} MiB ({size + len(rest)} bytes)")
            continue
        yield number, line.rstrip(b"\r\n")


def text_lines(stream: io.BufferedReader) -> Iterator[tuple[int, str] | Unreadable]:
    """Lines of free text: colours removed, and what a progress bar overwrote as lines of their own number."""
    for line in lines(stream):
        if isinstance(line, Unreadable):
            yield line
            continue
        number, content = line
        for part in visible(content).split("\r"):
            yield number, part


def visible(content: bytes) -> str:
    """A line as a terminal shows it: without the codes for colours."""
    text = content.decode(errors="replace")
    return _ESCAPES.sub("", text) if "\x1b" in text else text


class _Raw(io.RawIOBase):
    """A stream of another kind, recoded to UTF-8 if a decoder is given."""

    def __init__(self, stream: BinaryStream, decoder: codecs.IncrementalDecoder | None = None) -> None:
        self._stream = stream
        self._decoder = decoder
        self._left = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._decoder is None and self._stream.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._left, self._ended = b"", False
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: object, /) -> int:
        target = memoryview(buffer).cast("B")  # pyright: ignore[reportArgumentType] - the stubs name the buffer type only privately
        while not self._left and not self._ended:
            block = self._stream.read(min(len(target), _BLOCK))
            self._ended = not block
            if self._decoder is None:
                self._left = block
            else:
                self._left = self._decoder.decode(block, final=self._ended).lstrip("\ufeff").encode(errors="replace")
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
