"""The one thread of rank 0 that speaks to Redis: delivers the outbox, repeats the state, watches the directive."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from trimtab_trainer.adapters.redis import Bus, Delivery
from trimtab_trainer.config import TelemetryConfig
from trimtab_trainer.directives import Inbox, Reception
from trimtab_trainer.errors import BusUnavailable
from trimtab_trainer.outage import Outage
from trimtab_trainer.telemetry import Outbox, Queued, QueuedAck, QueuedRecord, Reporter, stream_length

logger = logging.getLogger(__name__)

BATCH: Final = 64
"""Items sent in one round trip."""

RETRY_SECONDS: Final = 0.5


class Courier:
    """Starts with `start`, ends with `close`. Nothing here ever makes the main thread wait, except `close`."""

    def __init__(
        self,
        bus: Bus,
        outbox: Outbox,
        reporter: Reporter,
        inbox: Inbox,
        config: TelemetryConfig,
        on_absent: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._outbox = outbox
        self._reporter = reporter
        self._inbox = inbox
        self._config = config
        self._on_absent = on_absent
        self._clock = clock
        self._absent = False
        self._outage = Outage(clock)
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._stated = -math.inf
        self._last_reception = Reception.ABSENT
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self.changed = threading.Event()
        """Set when a directive was accepted or the world superseded; a held main thread waits on it."""

    def start(self) -> None:
        """Begin to deliver and to watch."""
        self._thread.start()

    def wake(self) -> None:
        """Deliver at once instead of at the next look."""
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Deliver what is queued, for at most `seconds`, and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("%d records and acks were not delivered to Redis", len(self._outbox))

    def _run(self) -> None:
        while True:
            more = self._try_round()
            if self._closing.is_set() and (not len(self._outbox) or self._inbox.superseded):
                self._bus.close()
                return
            if self._outage.ongoing:
                # Not to be woken: every step would wake us, and a server that is away be asked at the pace of training.
                time.sleep(RETRY_SECONDS)
            elif not more:
                self._wake.wait(self._config.poll_seconds)
                self._wake.clear()

    def _try_round(self) -> bool:
        """One round; whether the next one is due at once."""
        try:
            more = self._round()
        except BusUnavailable as error:
            seconds = self._outage.failed(error)
            if seconds is not None:
                logger.warning(
                    "cannot publish to Redis for %.0f s; %d records and acks wait, %d records were dropped: %s",
                    seconds,
                    len(self._outbox),
                    self._outbox.dropped,
                    error,
                )
            return False
        if self._outage.ended():
            logger.info("Redis answers again; %d records and acks are waiting", len(self._outbox))
        return more

    def _round(self) -> bool:
        """One look, one batch, one repetition where it is due; whether more is queued.

        Nothing waits for an empty queue: records may come as fast as they leave.
        """
        # The directive first: a world that is superseded says nothing more.
        self._look()
        if self._inbox.superseded:
            return False
        self._send(self._outbox.peek(BATCH))
        self._repeat()
        return len(self._outbox) > 0

    def _look(self) -> None:
        reception = self._inbox.offer(self._bus.directive())
        if reception is Reception.ABSENT and not self._absent:
            self._on_absent()
        self._absent = reception is Reception.ABSENT
        if reception in {Reception.ACCEPTED, Reception.SUPERSEDED}:
            self.changed.set()
        if reception is not self._last_reception and reception in {Reception.STALE, Reception.UNREADABLE}:
            logger.warning("the directive found is %s and is not obeyed", reception)
        self._last_reception = reception

    def _send(self, items: tuple[Queued, ...]) -> None:
        records = tuple(item for item in items if isinstance(item, QueuedRecord))
        if records:
            keep = stream_length(len(records[-1].wire), self._config.stream_records)
            deliveries = self._bus.publish([(item.attempt, item.step, item.wire) for item in records], keep)
            for item, delivery in zip(records, deliveries, strict=True):
                self._judge(item, delivery)
            self._outbox.remove(records)
        for item in items:
            if isinstance(item, QueuedAck):
                self._bus.acknowledge(item.wire)
                self._outbox.remove((item,))
                if item.changes_state:
                    self._stated = self._clock()

    def _judge(self, item: QueuedRecord, delivery: Delivery) -> None:
        if delivery is Delivery.CONFLICT:
            logger.error(
                "attempt %d, step %d: the stream holds another record of this step; ours was not stored",
                item.attempt,
                item.step,
            )
        elif delivery is Delivery.PASSED_BY:
            logger.warning("attempt %d, step %d: the stream has gone on; see the archive", item.attempt, item.step)

    def _repeat(self) -> None:
        """Say the state again where it is due. Events do not count: a world may save more often than it is due."""
        if self._clock() - self._stated < self._config.state_seconds:
            return
        wire = self._reporter.repetition()
        if wire is not None:
            self._bus.acknowledge(wire)
            self._stated = self._clock()
