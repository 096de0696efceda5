"""Slices of a checkpoint on their way from the store into memory, hashed as they come."""

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import NamedTuple

from trimtab_contract.checkpoints import StoredSlice

PIECE_BYTES = 512 * 1024
"""Received and hashed at once: what stays in a processor's cache meanwhile."""

HEAD_BYTES = 4096
"""Of a slice that arrive before anybody is asked where its tensor's bytes belong."""


class Room(threading.local):
    """A reader's memory for the slice that it is at, used again for the next: new memory costs as much as reading.

    Pages that nothing is written to are none: what arrives apart takes no room here.
    """

    def __init__(self) -> None:
        self._bytes = memoryview(b"")

    def of(self, size: int) -> memoryview:
        """So many bytes, the same ones at each call on a thread."""
        if len(self._bytes) < size:
            self._bytes = memoryview(mmap(-1, size))
        return self._bytes[:size]


class Stretch(NamedTuple):
    """From which byte of an object on, and how many."""

    begin: int
    length: int


class Apart(NamedTuple):
    """A part of a slice that arrives in memory of its own: from which byte of the slice on, and where.

    It begins within the first HEAD_BYTES, ends beyond them, and within the slice. `on_filled` is told how much of
    `memory` is there, after each piece, while that is in the processor's cache. A slice that is asked for again is
    set apart again.
    """

    begin: int
    memory: memoryview
    on_filled: Callable[[int], object] = int


Aside = Callable[[StoredSlice, memoryview], Apart | None]
"""What of a slice arrives elsewhere, by its first HEAD_BYTES; None where all of it is wanted together.

Nobody has verified those bytes yet: they may tell where others go to, and nothing else.
"""


def together(_part: object, _head: memoryview) -> None:
    """All of a slice is wanted together."""


class Arrived(NamedTuple):
    """A whole slice: its bytes, there until the next one comes, without those that arrived apart, and its SHA-256."""

    part: StoredSlice
    body: memoryview
    sha256: str


class Arriving:
    """Slices that lie side by side, piece after piece; each is hashed while it is in the processor's cache.

    A piece never reaches beyond the end of its slice.
    """

    def __init__(
        self,
        parts: Sequence[StoredSlice],
        room: memoryview,
        on_arrived: Callable[[Arrived], object],
        *,
        on_piece: Callable[[], None] = lambda: None,
        aside: Aside = together,
    ) -> None:
        """`room` holds one slice at a time, the largest of `parts` at least."""
        self._waiting, self._room = deque(parts), room
        self._on_arrived, self._on_piece, self._aside = on_arrived, on_piece, aside
        self._begin()

    @property
    def complete(self) -> bool:
        """Whether all of them were there."""
        return not self._waiting

    def resume(self) -> Stretch:
        """What to ask for now: all from the first slice on that was never whole, of which nothing is kept."""
        self._begin()
        first, last = self._waiting[0], self._waiting[-1]
        return Stretch(first.offset, last.offset + last.length - first.offset)

    def room(self) -> memoryview:
        """See `Destination.room`."""
        if not self._waiting:
            return self._room[:0]
        length, at, apart = self._waiting[0].length, self._filled, self._apart
        if at < HEAD_BYTES < length:
            return self._room[at:HEAD_BYTES]
        if apart is None or not apart.begin <= at < apart.begin + len(apart.memory):
            return self._room[at : min(at + PIECE_BYTES, length)]
        begin = at - apart.begin
        return apart.memory[begin : begin - begin % PIECE_BYTES + PIECE_BYTES]

    def take(self, count: int, /) -> None:
        """See `Destination.take`."""
        self._hash.update(self.room()[:count])
        self._filled += count
        if self._apart is not None:
            self._apart.on_filled(min(self._filled - self._apart.begin, len(self._apart.memory)))
        self._on_piece()
        part = self._waiting[0]
        if self._filled == HEAD_BYTES < part.length:
            self._set_apart(part)
        if self._filled == part.length:
            self._on_arrived(Arrived(part, self._room[: part.length], self._hash.hexdigest()))
            self._waiting.popleft()
            self._begin()

    def _begin(self) -> None:
        self._filled, self._hash = 0, hashlib.sha256()
        self._apart: Apart | None = None

    def _set_apart(self, part: StoredSlice) -> None:
        apart = self._aside(part, self._room[:HEAD_BYTES])
        if apart is not None:
            came = HEAD_BYTES - apart.begin
            apart.memory[:came] = self._room[apart.begin : HEAD_BYTES]
        self._apart = apart
