"""Objects in S3 as stretches of bytes, read in blocks that are kept for a while."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.errors import DataUnreadable, StoreError
from trimtab_trainer.retries import retried

CACHE_BYTES = 64 * 1024 * 1024
"""Blocks that one rank keeps, of all its objects together."""
SEQUENTIAL_BLOCK_BYTES = 4 * 1024 * 1024
"""Read at once where samples follow each other: what comes next is there already."""
SHUFFLED_BLOCK_BYTES = 64 * 1024
"""Read at once where the next sample lies elsewhere."""

_Read = TypeVar("_Read")


@dataclass(slots=True)
class BlockCache:
    """The blocks read last, at most `capacity` bytes of them; not for several threads."""

    block_bytes: int
    capacity: int = CACHE_BYTES
    _blocks: OrderedDict[tuple[str, int], bytes] = field(default_factory=OrderedDict[tuple[str, int], bytes])
    _held: int = 0

    def block(self, name: str, number: int, fetch: Callable[[], bytes]) -> bytes:
        """Block `number` of the object `name`, fetched if it is not there."""
        key = (name, number)
        found = self._blocks.get(key)
        if found is None:
            found = fetch()
            self._blocks[key] = found
            self._held += len(found)
            while self._held > self.capacity and len(self._blocks) > 1:
                self._held -= len(self._blocks.popitem(last=False)[1])
        self._blocks.move_to_end(key)
        return found


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store that is away is waited for, before the data count as unreadable."""

    seconds: float
    on_wait: Callable[[], None] | None = None

    def of(self, operation: Callable[[], _Read], name: str) -> _Read:
        """The operation's result; raises DataUnreadable."""
        try:
            return retried(operation, time.monotonic() + self.seconds, threading.Event(), self.on_wait)
        except StoreError as error:
            message = f"{name} cannot be read: {error}"
            raise DataUnreadable(message) from error


class ObjectBlob:
    """An object whose size is known from a listing; one that has another size later is not read."""

    def __init__(self, store: ObjectStore, key: str, size: int, cache: BlockCache, patience: Patience) -> None:
        self.name = f"s3://{store.bucket}/{key}"
        self.size = size
        self._store, self._key = store, key
        self._cache, self._patience = cache, patience

    def close(self) -> None:
        """Hold nothing open."""

    def read(self, offset: int, length: int) -> bytes:
        """See `Blob.read`."""
        if offset + length > self.size:
            message = f"{self.name} has {self.size} bytes and ends before byte {offset + length}"
            raise DataUnreadable(message)
        if length == 0:
            return b""
        step = self._cache.block_bytes
        if length >= step:
            return self._fetch(offset, length)
        first, last = offset // step, (offset + length - 1) // step
        whole = b"".join(self._block(number) for number in range(first, last + 1))
        return whole[offset - first * step :][:length]

    def _block(self, number: int) -> bytes:
        offset = number * self._cache.block_bytes
        length = min(self._cache.block_bytes, self.size - offset)
        return self._cache.block(self.name, number, lambda: self._fetch(offset, length))

    def _fetch(self, offset: int, length: int) -> bytes:
        body, size = self._patience.of(lambda: self._stretch(offset, length), self.name)
        if size != self.size or len(body) != length:
            message = f"{self.name} had {self.size} bytes and has {size}: it changed while it was read"
            raise DataUnreadable(message)
        return body

    def _stretch(self, offset: int, length: int) -> tuple[bytes, int]:
        body = bytearray()
        size = self._store.stretch(self._key, offset, length, body.extend)
        return bytes(body), size
