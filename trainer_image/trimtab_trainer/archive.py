"""The background writing of records and batch logs to S3: Redis is a bus, this is the record."""

import logging
import threading
from collections.abc import Callable
from itertools import groupby
from typing import Protocol

from trimtab_contract.keys import RunId, records_segment
from trimtab_contract.metrics import MetricRecord, encode_archive

from trimtab_trainer.errors import StoreError
from trimtab_trainer.outage import Outage

logger = logging.getLogger(__name__)


class Store(Protocol):
    """What archiving needs of the object store."""

    def put(self, key: str, body: bytes) -> None:
        """Store bytes; raises StoreError."""
        ...


class RecordArchive:
    """Metric records that are not in S3 yet; written as stretches of one attempt.

    After a failed write the stretch is cut anew, so stretches may overlap; a record's identity is its attempt and
    step, and equal identities have equal content.
    """

    def __init__(self, store: Store, root: str, run: RunId, max_records: int) -> None:
        self._store = store
        self._root = root
        self._run = run
        self._max_records = max_records
        self._pending: list[MetricRecord] = []
        self._lock = threading.Lock()
        self.dropped = 0

    def add(self, record: MetricRecord) -> None:
        """Keep a record until it is written; beyond the bound the oldest is dropped and counted."""
        with self._lock:
            self._pending.append(record)
            if len(self._pending) > self._max_records:
                del self._pending[0]
                self.dropped += 1

    def flush(self) -> None:
        """Write all that is pending; raises StoreError and keeps what was not written."""
        with self._lock:
            pending = tuple(self._pending)
        for attempt, group in groupby(pending, key=lambda record: record.attempt):
            records = tuple(group)
            key = records_segment(self._root, self._run, attempt, records[0].step, records[-1].step)
            self._store.put(key, encode_archive(records))
            written = {(record.attempt, record.step) for record in records}
            with self._lock:
                self._pending = [item for item in self._pending if (item.attempt, item.step) not in written]


class Archivist:
    """Flushes every `seconds`, when asked, and at the end; one thread per rank."""

    def __init__(self, flushes: tuple[Callable[[], None], ...], seconds: float) -> None:
        self._flushes = tuple((flush, Outage()) for flush in flushes)
        self._seconds = seconds
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="archivist", daemon=True)

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def wake(self) -> None:
        """Flush now, without waiting for it."""
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Flush once more and end, waiting at most `seconds`."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("records or batch logs were not archived: the object store did not answer in time")

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._seconds)
            self._wake.clear()
            for flush, outage in self._flushes:
                self._attempt(flush, outage)

    def _attempt(self, flush: Callable[[], None], outage: Outage) -> None:
        try:
            flush()
        except StoreError as error:
            seconds = outage.failed(error)
            if seconds is not None:
                logger.warning("the archive waits for %.0f s: %s", seconds, error)
        else:
            if outage.ended():
                logger.info("the archive is written again")
