"""Slices of a checkpoint on their way from the store into memory, hashed as they come."""

import hashlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trimtab_contract.checkpoints import StoredSlice


class Room(threading.local):
    """A reader's memory for the slice that it is at, used again for the next: new memory costs as much as reading."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def of(self, size: int) -> memoryview:
        """So many bytes, the same ones at each call on a thread."""
        if len(self._bytes) < size:
            self._bytes = bytearray(size)
        return memoryview(self._bytes)[:size]


class Stretch(NamedTuple):
    """From which byte of an object on, and how many."""

    begin: int
    length: int


class Arriving:
    """Slices that lie side by side, chunk after chunk; each chunk is hashed while it is in the processor's cache."""

    def __init__(self, parts: Sequence[StoredSlice], room: memoryview) -> None:
        """`room` holds one slice at a time, the largest of `parts` at least."""
        self._waiting, self._room = deque(parts), room
        self._filled, self._hash = 0, hashlib.sha256()

    @property
    def complete(self) -> bool:
        """Whether all of them were there."""
        return not self._waiting

    def resume(self) -> Stretch:
        """What to ask for now: all from the first slice on that was never whole, of which nothing is kept."""
        self._filled, self._hash = 0, hashlib.sha256()
        first, last = self._waiting[0], self._waiting[-1]
        return Stretch(first.offset, last.offset + last.length - first.offset)

    def completed_by(self, chunk: bytes) -> Iterator[tuple[StoredSlice, memoryview, str]]:
        """The slices whose last byte is in `chunk`, with their bytes, there until the next one, and their SHA-256."""
        came = memoryview(chunk)
        while came and self._waiting:
            part = self._waiting[0]
            piece = came[: part.length - self._filled]
            self._hash.update(piece)
            self._room[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            came = came[len(piece) :]
            if self._filled == part.length:
                yield part, self._room[: part.length], self._hash.hexdigest()
                self._waiting.popleft()
                self._filled, self._hash = 0, hashlib.sha256()
