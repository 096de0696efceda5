"""One object on its way to the store: hashed and sent in parts while it is written, never kept whole."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from trimtab_contract.checkpoints import StoredObject, StoredSlice

from trimtab_trainer.adapters.s3 import ObjectStore, Part
from trimtab_trainer.errors import StoreError
from trimtab_trainer.retries import retried

PART_BYTES = 8 * 1024 * 1024
PARTS_IN_FLIGHT = 3
"""With the part being filled, 32 MiB at most beside the copy of the state."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class Pace:
    """Bytes per second that all uploads of a process share; None is no bound."""

    def __init__(self, bytes_per_second: float | None, stopped: threading.Event) -> None:
        self._rate, self._stopped = bytes_per_second, stopped
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, size: int) -> None:
        """Return when `size` bytes more may leave, or when stopped."""
        if self._rate is None:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size / self._rate
        self._stopped.wait(max(begin - time.monotonic(), 0.0))


class ObjectUpload:
    """Something to write to, from the first byte to the last; afterwards it is one object of the store.

    A context manager: without an error the object is there at the end, with one nothing is. Every request is tried
    again with growing pauses of random length until the deadline (a time of `time.monotonic`); writing waits while
    PARTS_IN_FLIGHT parts are unanswered. Writing and leaving raise StoreError.
    """

    def __init__(self, store: ObjectStore, key: str, *, pace: Pace, deadline: float, stopped: threading.Event) -> None:
        self._store, self._key, self._pace = store, key, pace
        self._deadline, self._stopped = deadline, stopped
        self._whole, self._own = hashlib.sha256(), hashlib.sha256()
        self._slices: list[StoredSlice] = []
        self._room: list[bytearray] = []
        self._part, self._filled = bytearray(), 0
        self._upload = ""
        self._pool = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="checkpoint-part")
        self._flying: set[Future[tuple[Part, bytearray]]] = set()
        self._parts: list[Part] = []
        self._failure: StoreError | None = None
        self.size = 0
        """Bytes written so far."""

    def __enter__(self) -> Self:
        """See the class."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the object, or give it up."""
        try:
            if error is None:
                self._complete()
        except BaseException:
            self._give_up()
            raise
        else:
            if error is not None:
                self._give_up()
            if self._failure is not None and error is not self._failure:
                raise self._failure from error
        finally:
            self._pool.shutdown()

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes over; returns how many."""
        view = memoryview(data).cast("B")
        self._whole.update(view)
        self._own.update(view)
        taken = 0
        while taken < len(view):
            if not self._part:
                self._part = self._room.pop() if self._room else bytearray(PART_BYTES)
            piece = view[taken : taken + PART_BYTES - self._filled]
            self._part[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            taken += len(piece)
            if self._filled == PART_BYTES:
                self._send_remembering()
        self.size += taken
        return taken

    def flush(self) -> None:
        """Nothing: what was written leaves when a part is full. Whoever writes to a file calls it."""

    @contextmanager
    def slice(self, name: str) -> Generator[None]:
        """What is written meanwhile is one slice of the object."""
        offset, self._own = self.size, hashlib.sha256()
        yield
        self._slices.append(
            StoredSlice(name=name, offset=offset, length=self.size - offset, sha256=self._own.hexdigest())
        )

    @property
    def slices(self) -> tuple[StoredSlice, ...]:
        """Those written so far."""
        return tuple(self._slices)

    def stored(self, rank: int, index: str = "", values: int = 0) -> StoredObject:
        """What the manifest says of the object; `index` lists its slices, `values` of which are no tensor."""
        return StoredObject(size=self.size, sha256=self._whole.hexdigest(), rank=rank, index=index, values=values)

    def _send_remembering(self) -> None:
        # torch makes a RuntimeError without its cause of whatever a file raises that it writes to.
        try:
            self._send()
        except StoreError as error:
            self._failure = error
            raise

    def _send(self) -> None:
        """Let the full part leave on a thread of its own, as soon as one is free."""
        if not self._upload:
            self._upload = self._patiently(lambda: self._store.begin_parts(self._key))
        if len(self._flying) == PARTS_IN_FLIGHT:
            self._land(FIRST_COMPLETED)
        number = len(self._parts) + len(self._flying) + 1
        self._flying.add(self._pool.submit(self._put_part, number, self._part))
        self._part, self._filled = bytearray(), 0

    def _put_part(self, number: int, body: bytearray) -> tuple[Part, bytearray]:
        self._pace.wait_for(len(body))
        return self._patiently(lambda: self._store.put_part(self._key, self._upload, number, body)), body

    def _land(self, when: str) -> None:
        done, self._flying = wait(self._flying, return_when=when)
        for part, body in (future.result() for future in done):
            self._parts.append(part)
            self._room.append(body)

    def _complete(self) -> None:
        del self._part[self._filled :]
        if not self._upload:
            self._pace.wait_for(len(self._part))
            self._patiently(lambda: self._store.put(self._key, bytes(self._part)))
            return
        if self._part:
            self._send()
        self._land(ALL_COMPLETED)
        self._patiently(lambda: self._store.complete_parts(self._key, self._upload, self._parts))

    def _give_up(self) -> None:
        """Free what was stored of the object, once: the store's own rule removes what this leaves behind."""
        for future in self._flying:
            future.cancel()
        wait(self._flying)
        if not self._upload:
            return
        try:
            self._store.abort_parts(self._key, self._upload)
        except StoreError as error:
            logger.warning("parts of %s stay in the store until its life-cycle rule removes them: %s", self._key, error)

    def _patiently(self, operation: Callable[[], Result]) -> Result:
        return retried(operation, self._deadline, self._stopped)
