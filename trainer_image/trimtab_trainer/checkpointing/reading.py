"""Reading parts of a checkpoint from the store, several at once; what is not what was saved is handed to nobody."""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeVar

from trimtab_contract.checkpoints import StoredObject, StoredSlice
from trimtab_contract.errors import MalformedIndex
from trimtab_contract.slice_index import covering, decode_index

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing.arrival import Apart, Arrived, Arriving, Room, together
from trimtab_trainer.checkpointing.reasons import RestoreFailure
from trimtab_trainer.errors import ObjectMissing, RestoreFailed, StoreRefused, StoreUnavailable
from trimtab_trainer.retries import retried

READERS = 4
STRETCHES_PER_READER = 2
MIN_STRETCH_BYTES, MAX_STRETCH_BYTES = 8 * 1024 * 1024, 64 * 1024 * 1024
"""Slices that lie side by side are asked for together: a store reads more than it is asked for at both ends of a
stretch. However long it is, a reader holds one slice at a time."""

_LOOK_SECONDS = 0.5

Result = TypeVar("Result")


class Place(NamedTuple):
    """Where a slice lies: the object's name below the checkpoint's prefix, and the bytes within it."""

    object_name: str
    offset: int
    length: int


Use = Callable[[Place, memoryview], object]
"""What is done with a verified slice, whose bytes are there for that long only. Called on the readers' threads, for
several slices at once."""

Aside = Callable[[Place, memoryview], Apart | None]
"""What of a slice is not to be among the bytes that it is used with, but arrives elsewhere: see `arrival.Aside`."""


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
    _slices: dict[Place, StoredSlice] = field(default_factory=dict[Place, StoredSlice])
    _learned: set[str] = field(default_factory=set[str])
    _moved: int = 0
    _room: Room = field(default_factory=Room)
    _failed: threading.Event = field(default_factory=threading.Event)

    def whole(self, name: str) -> Place:
        """Where one object lies, which fits into memory."""
        return Place(name, 0, self.objects[name].size)

    def learn_slices(self, names: Iterable[str]) -> None:
        """Know where the slices of these objects begin and end: nothing of an object is read by slice before.

        An index is verified whole before it is decoded. Slices that do not cover their object are refused.
        """
        owners: dict[str, str] = {}
        for name in (set(names) & self.objects.keys()) - self._learned:
            stored = self.objects[name]
            if stored.index:
                owners[stored.index] = name
            elif stored.slices:
                self._learn(name, name, lambda name=name, stored=stored: covering(name, stored, stored.slices))

        def learn(place: Place, body: memoryview) -> None:
            name = owners[place.object_name]
            self._learn(place.object_name, name, lambda: decode_index(body, name, self.objects[name]))

        self.read(map(self.whole, owners), learn)

    def values(self, tensors: Container[str]) -> list[Place]:
        """Where all that is no tensor lies, by what the manifest says of its objects."""
        self.learn_slices(name for name, stored in self.objects.items() if stored.values or stored.slices)
        return [place for place, part in self._slices.items() if part.name not in tensors]

    def _learn(self, source: str, name: str, slices: Callable[[], Sequence[StoredSlice]]) -> None:
        try:
            self._slices.update({Place(name, part.offset, part.length): part for part in slices()})
            self._learned.add(name)
        except MalformedIndex as error:
            raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, self._key(source), str(error)) from error

    def read(self, wanted: Iterable[Place], use: Use, aside: Aside = together) -> None:
        """Read slices and whole objects, and hand each on as soon as it is known to be right; nothing else is read."""
        places = sorted(wanted)
        share = sum(place.length for place in places) // READERS
        size = min(max(share, MIN_STRETCH_BYTES), MAX_STRETCH_BYTES)
        stretches = [stretch for _, group in groupby(places, _object_of) for stretch in _joined(group, size)]
        known = self._known()
        for place in (place for stretch in stretches for place in stretch):
            if place not in known:
                detail = f"{place.length} bytes from {place.offset} on are no slice that is listed"
                raise RestoreFailed(RestoreFailure.MANIFEST_INCONSISTENT, self._key(place.object_name), detail)
        with ThreadPoolExecutor(READERS, thread_name_prefix="checkpoint-read") as pool:
            tasks = {pool.submit(self._stretch, stretch, known, use, aside) for stretch in stretches}
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
        objects = self.objects.items()
        whole = {
            self.whole(name): StoredSlice(name=name, offset=0, length=stored.size, sha256=stored.sha256)
            for name, stored in objects
        }
        return whole | self._slices

    def _stretch(self, places: Sequence[Place], known: dict[Place, StoredSlice], use: Use, aside: Aside) -> None:
        self._read(places[0].object_name, [known[place] for place in places], use, aside)

    def _read(self, name: str, parts: Sequence[StoredSlice], use: Use, aside: Aside) -> None:
        """Read parts that lie side by side; each is handed on when it is whole and known to be right."""
        key, stored = self._key(name), self.objects[name]

        def place_of(part: StoredSlice) -> Place:
            return Place(name, part.offset, part.length)

        def check(arrived: Arrived) -> None:
            part = arrived.part
            if arrived.sha256 != part.sha256:
                detail = (
                    f"the {part.length} bytes of {part.name} from {part.offset} on have another SHA-256 than those "
                    "saved"
                )
                raise self._damaged(name, detail)
            use(place_of(part), arrived.body)

        arriving = Arriving(
            parts,
            self._room.of(max(part.length for part in parts)),
            check,
            on_piece=self._advanced,
            aside=lambda part, head: aside(place_of(part), head),
        )

        def attempt() -> int:
            if self._failed.is_set():
                raise RestoreFailed(RestoreFailure.UNREADABLE, key, "another part of the checkpoint cannot be restored")
            if arriving.complete:
                return stored.size
            begin, length = arriving.resume()
            return self.store.fill(key, begin, length, arriving)

        size = self._patiently(attempt, key)
        if size != stored.size or not arriving.complete:
            raise self._damaged(name, f"it has {size} bytes, saved were {stored.size}")

    def _patiently(self, operation: Callable[[], Result], key: str) -> Result:
        return patiently(operation, key, self.deadline, self.stopped, self._advanced)

    def _advanced(self) -> None:
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


def _joined(places: Iterable[Place], size: int) -> Iterator[list[Place]]:
    """Places of one object in the order of their offsets, those side by side together until they have `size` bytes."""
    stretch: list[Place] = []
    for place in places:
        if stretch:
            end = stretch[-1].offset + stretch[-1].length
            if place.offset != end or end - stretch[0].offset >= size:
                yield stretch
                stretch = []
        stretch.append(place)
    if stretch:
        yield stretch
