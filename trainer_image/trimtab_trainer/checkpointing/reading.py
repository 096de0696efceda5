"""Reading parts of a checkpoint from the store, several at once; what is not what was saved is handed to nobody."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeVar

from trimtab_contract.checkpoints import StoredObject, StoredSlice

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.reasons import RestoreFailure
from trimtab_trainer.errors import ObjectMissing, RestoreFailed, StoreRefused, StoreUnavailable
from trimtab_trainer.retries import retried

READERS = 4
STRETCH_BYTES = 8 * 1024 * 1024
"""Slices that lie side by side are read together up to this size; so many bytes a reader holds, or one larger slice."""

_LOOK_SECONDS = 0.5

Result = TypeVar("Result")


class Place(NamedTuple):
    """Where a slice lies: the object's name below the checkpoint's prefix, and the bytes within it."""

    object_name: str
    offset: int
    length: int


Use = Callable[[Place, memoryview], None]
"""What is done with a verified slice. Called on the readers' threads, for several slices at once."""


@dataclass(slots=True)
class VerifiedReader:
    """Reads objects and slices of one checkpoint; `objects` are those of a manifest that is known to be the right one.

    Every method raises RestoreFailed with the object at fault, and the tensor in the detail. `on_progress` is called
    on the caller's thread only.
    """

    store: ObjectStore
    prefix: str
    objects: dict[str, StoredObject]
    deadline: float
    stopped: threading.Event
    on_progress: Callable[[], None]
    _moved: int = 0
    _failed: threading.Event = field(default_factory=threading.Event)

    def whole(self, name: str) -> bytes:
        """One object, which fits into memory."""
        stored = self.objects[name]
        body = self._bytes(name, 0, stored.size)
        self.on_progress()
        if hashlib.sha256(body).hexdigest() != stored.sha256:
            raise self._damaged(name, "its bytes have another SHA-256 than those saved")
        return bytes(body)

    def places(self, chosen: Callable[[StoredSlice], bool]) -> list[Place]:
        """Where the chosen ones of the manifest's slices lie."""
        return [place for place, part in self._known().items() if chosen(part)]

    def slices(self, wanted: Iterable[Place], use: Use) -> None:
        """Read what is wanted and nothing else, and hand each slice on as soon as it is known to be right."""
        stretches = [stretch for _, places in groupby(sorted(wanted), _object_of) for stretch in _joined(places)]
        known = self._known()
        for place in (place for stretch in stretches for place in stretch):
            if place not in known:
                detail = f"{place.length} bytes from {place.offset} on are no slice that the manifest lists"
                raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, self._key(place.object_name), detail)
        with ThreadPoolExecutor(READERS, thread_name_prefix="checkpoint-read") as pool:
            tasks = {pool.submit(self._stretch, stretch, known, use) for stretch in stretches}
            flying, seen = tasks, self._moved
            try:
                while flying:
                    done, flying = wait(flying, _LOOK_SECONDS, FIRST_EXCEPTION)
                    for task in done:
                        task.result()
                    if seen != self._moved:
                        seen = self._moved
                        self.on_progress()
            finally:
                self._failed.set()
                for task in flying:
                    task.cancel()
        self._failed.clear()

    def _known(self) -> dict[Place, StoredSlice]:
        return {
            Place(name, part.offset, part.length): part for name in self.objects for part in self.objects[name].slices
        }

    def _stretch(self, places: Sequence[Place], known: dict[Place, StoredSlice], use: Use) -> None:
        first, last = places[0], places[-1]
        body = memoryview(self._bytes(first.object_name, first.offset, last.offset + last.length - first.offset))
        for place in places:
            begin = place.offset - first.offset
            part, saved = body[begin : begin + place.length], known[place]
            if hashlib.sha256(part).hexdigest() != saved.sha256:
                detail = (
                    f"the {place.length} bytes of {saved.name} from {place.offset} on have another SHA-256 than those "
                    "saved"
                )
                raise self._damaged(place.object_name, detail)
            use(place, part)

    def _bytes(self, name: str, offset: int, length: int) -> bytearray:
        key, stored = self._key(name), self.objects[name]
        body = bytearray()

        def take(chunk: bytes) -> None:
            body.extend(chunk)
            self._moved += 1

        def attempt() -> int:
            body.clear()
            if self._failed.is_set():
                raise RestoreFailed(RestoreFailure.UNREADABLE, key, "another part of the checkpoint cannot be restored")
            return self.store.stretch(key, offset, length, take)

        size = self._patiently(attempt, key)
        if (size, len(body)) != (stored.size, length):
            raise self._damaged(name, f"it has {size} bytes, saved were {stored.size}")
        return body

    def _patiently(self, operation: Callable[[], Result], key: str) -> Result:
        return patiently(operation, key, self.deadline, self.stopped, self._waited)

    def _waited(self) -> None:
        self._moved += 1

    def _damaged(self, name: str, detail: str) -> RestoreFailed:
        return RestoreFailed(RestoreFailure.OBJECT_DAMAGED, self._key(name), detail)

    def _key(self, name: str) -> str:
        return f"{self.prefix}{name}"


def patiently(
    operation: Callable[[], Result],
    key: str,
    deadline: float,
    stopped: threading.Event,
    on_wait: Callable[[], None],
) -> Result:
    """`retried`, with what the store answers at the end told as RestoreFailed."""
    try:
        return retried(operation, deadline, stopped, on_wait)
    except ObjectMissing as error:
        raise RestoreFailed(RestoreFailure.OBJECT_MISSING, key, str(error)) from error
    except StoreRefused as error:
        raise RestoreFailed(RestoreFailure.STORE_REFUSED, key, str(error)) from error
    except StoreUnavailable as error:
        raise RestoreFailed(RestoreFailure.STORE_UNAVAILABLE, key, str(error)) from error


def _object_of(place: Place) -> str:
    return place.object_name


def _joined(places: Iterable[Place]) -> Iterable[list[Place]]:
    """Places of one object in the order of their offsets, those side by side together."""
    stretch: list[Place] = []
    for place in places:
        if stretch:
            end = stretch[-1].offset + stretch[-1].length
            if place.offset != end or place.offset + place.length - stretch[0].offset > STRETCH_BYTES:
                yield stretch
                stretch = []
        stretch.append(place)
    if stretch:
        yield stretch
