"""One JSON document of any length: the objects in its arrays, one after the other, never the whole."""

import io
import re
from collections.abc import Iterator

import msgspec

from trimtab_policies.log_readers.points import Unreadable

LONGEST_ELEMENT = 8 * 1024 * 1024
_DEEPEST = 1000
_BLOCK = 64 * 1024
_TOKEN = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_OPENER = {b"}": b"{", b"]": b"["}


class Element(msgspec.Struct, frozen=True):
    """An object that is an element of an array; `keys` lead from the root to that array, `number` counts from 1."""

    number: int
    keys: tuple[bytes, ...]
    body: bytes


def elements(stream: io.BufferedReader) -> Iterator[Element | Unreadable]:
    """Every outermost object in an array. What follows a flaw of the document itself is not read, and that is said."""
    document = _Document(stream)
    number = 0
    while (token := document.token()) is not None:
        if token in b"{[":
            if len(document.open) >= _DEEPEST:
                yield Unreadable(number + 1, f"is nested over {_DEEPEST} deep; nothing after it is read")
                return
            document.enter(token)
            continue
        if not document.open or document.open[-1][0] != _OPENER[token]:
            yield Unreadable(number + 1, f"is no JSON: a {token.decode()} closes nothing; nothing after it is read")
            return
        element = document.leave()
        if element is not None:
            number += 1
            yield Element(number, document.keys(), element)
    if document.too_long:
        yield Unreadable(number + 1, f"is longer than {LONGEST_ELEMENT >> 20} MiB; nothing after it is read")
    elif document.open or document.unfinished:
        yield Unreadable(number + 1, "is cut short: the document ends within it")


class _Document:
    """The tokens of a document, read in blocks; `open` are the containers around the place reached, with their keys."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.open: list[tuple[bytes, bytes]] = []
        self.too_long = False
        self.unfinished = False
        self._stream = stream
        self._buffer = bytearray()
        self._place: int = 0
        self._name = b""
        self._begin: int | None = None
        self._depth = 0

    def token(self) -> bytes | None:
        """The next bracket or brace, None at the end; strings are passed over, the last one is remembered."""
        while True:
            found = _TOKEN.search(self._buffer, self._place)
            if found is None:
                self._place = len(self._buffer)
                if not self._more():
                    return None
            elif found[0] != b'"':
                self._place = found.end()
                return bytes(found[0])
            elif (string := _STRING.match(self._buffer, found.start())) is not None:
                self._place = string.end()
                self._name = bytes(string[0][1:-1]) if len(string[0]) < 1024 else b""
            else:
                self._place = found.start()
                if not self._more():
                    self.unfinished = True
                    return None

    def enter(self, token: bytes) -> None:
        """A container opens; an object in an array is an element, unless it is within one."""
        parent = self.open[-1][0] if self.open else b""
        if self._begin is None and token == b"{" and parent == b"[":
            self._begin, self._depth = self._place - 1, len(self.open)
        self.open.append((token, self._name if parent == b"{" else b""))

    def leave(self) -> bytes | None:
        """A container closes; its bytes if it was an element."""
        self.open.pop()
        if self._begin is None or len(self.open) != self._depth:
            return None
        body = bytes(self._buffer[self._begin : self._place])
        self._begin = None
        return body

    def keys(self) -> tuple[bytes, ...]:
        """The keys that lead here."""
        return tuple(key for _, key in self.open if key)

    def _more(self) -> bool:
        keep = self._place if self._begin is None else self._begin
        del self._buffer[:keep]
        self._place -= keep
        if self._begin is not None:
            self._begin = 0
        if len(self._buffer) > LONGEST_ELEMENT:
            self.too_long = True
            return False
        block = self._stream.read(_BLOCK)
        self._buffer += block
        return bool(block)
