"""What rank 0 has to tell Redis, in order, while Redis may be away."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from trimtab_contract.directives import RECENT_SAVED, Ack, CheckpointReference, encode
from trimtab_contract.metrics import MetricRecord, encode_record

STREAM_BYTES: Final = 64 * 1024 * 1024
"""A job's metric stream is trimmed to this size, never below the records its longest rule needs."""

OUTBOX_ACKS: Final = 1_000
"""Changes of state that wait for Redis at most."""


@dataclass(frozen=True, slots=True)
class QueuedRecord:
    """An encoded metric record and its identity."""

    attempt: int
    step: int
    wire: bytes


@dataclass(frozen=True, slots=True)
class QueuedAck:
    """An encoded ack."""

    wire: bytes
    changes_state: bool = False
    """The world is in another state from here on; every other ack tells of an event beside it."""


Queued = QueuedRecord | QueuedAck


def stream_length(record_bytes: int, minimum: int) -> int:
    """How many records of this size a stream keeps."""
    return max(minimum, STREAM_BYTES // max(record_bytes, 1))


class Outbox:
    """A queue that never blocks: beyond its bounds the oldest record (or ack) is dropped and counted.

    Records and acks share one order, so that the record of a withheld step arrives before the `Holding` it explains.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self._items: deque[Queued] = deque()
        self._records = 0
        self._changes = 0
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def changes_waiting(self) -> bool:
        """Whether some change of state was not delivered yet."""
        return self._changes > 0

    def put(self, item: Queued) -> None:
        """Append; never waits."""
        with self._lock:
            self._items.append(item)
            self._count(item, 1)
            if self._records > self._max_records:
                self._drop(QueuedRecord)
                self.dropped += 1
            elif len(self._items) - self._records > OUTBOX_ACKS:
                self._drop(QueuedAck)

    def peek(self, limit: int) -> tuple[Queued, ...]:
        """The oldest items of one kind, at most `limit`, left in the queue."""
        with self._lock:
            run: list[Queued] = []
            for item in self._items:
                if len(run) == limit or (run and type(item) is not type(run[0])):
                    break
                run.append(item)
            return tuple(run)

    def remove(self, items: tuple[Queued, ...]) -> None:
        """Take delivered items out; those that were dropped meanwhile are gone already."""
        with self._lock:
            for item in items:
                if self._items and self._items[0] is item:
                    self._items.popleft()
                    self._count(item, -1)

    def _drop(self, kind: type[Queued]) -> None:
        index, oldest = next((index, item) for index, item in enumerate(self._items) if isinstance(item, kind))
        del self._items[index]
        self._count(oldest, -1)

    def _count(self, item: Queued, change: int) -> None:
        if isinstance(item, QueuedRecord):
            self._records += change
        elif item.changes_state:
            self._changes += change


class Vitals:
    """Signs of life of one rank; only its main thread advances them, every other thread may read."""

    def __init__(self) -> None:
        self.progress = 0
        self.step = 0
        self.held = False

    def advance(self) -> None:
        """The main thread got on."""
        self.progress += 1


class Reporter:
    """Encodes records and acks into the outbox and remembers what the world last said of itself."""

    def __init__(self, outbox: Outbox, vitals: Vitals, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._vitals = vitals
        self._clock = clock
        self._recent: tuple[CheckpointReference, ...] = ()
        self._behind = ""
        self._state: Ack | None = None

    def record(self, record: MetricRecord) -> None:
        """Queue a record; raises MalformedRecord."""
        self._outbox.put(QueuedRecord(record.attempt, record.step, encode_record(record)))

    def state(self, ack: Ack) -> None:
        """Queue a change of state, to be repeated until the next one."""
        # Queued first: `repetition` must find it waiting before it can find it in force.
        self._outbox.put(QueuedAck(encode(self._current(ack)), changes_state=True))
        self._state = ack

    def event(self, ack: Ack) -> None:
        """Queue something that happened beside the state, such as a saved checkpoint."""
        self._outbox.put(QueuedAck(encode(self._current(ack))))

    def saved(self, checkpoint: CheckpointReference) -> None:
        """Repeat a saved checkpoint with every following ack."""
        self._recent = (*self._recent, checkpoint)[-RECENT_SAVED:]

    def checkpoints(self, behind: str) -> None:
        """Say with every following ack that checkpoints do not get stored, or no more."""
        self._behind = behind

    def repetition(self) -> bytes | None:
        """The state as it is now; None before the first one, and while a newer one waits in the outbox.

        Only the thread that empties the outbox may call it: a state never overtakes the records that were queued
        before it, nor returns after its successor.
        """
        state = self._state
        wire = None if state is None else encode(self._current(state))
        # Asked last: what changed while we encoded is waiting by now, and what we encoded may be half of each.
        return None if self._outbox.changes_waiting else wire

    def _current(self, ack: Ack) -> Ack:
        dropped = self._outbox.dropped
        return msgspec.structs.replace(
            ack,
            step=self._vitals.step,
            progress=self._vitals.progress,
            time=self._clock(),
            recent=self._recent,
            checkpoints_behind=self._behind,
            detail=ack.detail or (f"{dropped} records were dropped while Redis was away" if dropped else ""),
        )
