"""The proof of what was trained on: every window a rank read, in segments in the checkpoint bucket."""

import threading
from collections import deque
from dataclasses import dataclass

from trimtab_contract import keys
from trimtab_contract.evidence import BatchLogEntry, encode_batch_log

from trimtab_trainer.adapters.s3 import ObjectStore

MAX_ENTRIES = 1 << 18
"""Entries kept while the store is away: days of training, some tens of MiB."""


@dataclass(frozen=True, slots=True)
class _Segment:
    attempt: int
    key: str
    body: bytes
    entries: int


class BatchLog:
    """One rank's log. `append` is the main thread's and never blocks on the store; `flush` may run in any thread.

    A segment keeps its key and its bytes from its first upload on: one that arrived although its answer was lost is
    written again with the same content, so no window is ever listed twice.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        run: keys.RunId,
        rank: int,
        *,
        max_entries: int = MAX_ENTRIES,
        description: bytes = b"",
    ) -> None:
        """A rank that has a `description` of the data stores it once for each attempt, before its first windows."""
        self._store, self._root, self._run, self._rank = store, root, run, rank
        self._max_entries = max_entries
        self._description = description
        self._described: set[int] = set()
        self._entries: deque[BatchLogEntry] = deque()
        self._segments: deque[_Segment] = deque()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._held = 0
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Entries given up because the store stayed away too long; 0 in every honest proof."""
        return self._dropped

    @property
    def pending(self) -> int:
        """Entries not yet stored."""
        with self._lock:
            return self._held

    def append(self, entry: BatchLogEntry) -> None:
        """Note one window; the oldest notes are given up, and counted, beyond the bound."""
        with self._lock:
            self._entries.append(entry)
            self._held += 1
            if self._held > self._max_entries:
                self._drop_oldest()

    def flush(self) -> None:
        """Store everything noted so far.

        Raises StoreUnavailable or StoreRefused; what was not stored is kept for the next flush.
        """
        with self._flushing:
            self._seal()
            while self._segments:
                segment = self._segments[0]
                self._describe(segment.attempt)
                self._store.put(segment.key, segment.body)
                with self._lock:
                    if self._segments and self._segments[0] is segment:
                        self._held -= self._segments.popleft().entries

    def _describe(self, attempt: int) -> None:
        if self._description and attempt not in self._described:
            self._store.put(keys.data_object(self._root, self._run, attempt), self._description)
            self._described.add(attempt)

    def _drop_oldest(self) -> None:
        if self._segments:
            lost = self._segments.popleft().entries
        else:
            self._entries.popleft()
            lost = 1
        self._held -= lost
        self._dropped += lost

    def _seal(self) -> None:
        """Turn the entries into segments: one per attempt and unbroken rise of the step."""
        with self._lock:
            stretch: list[BatchLogEntry] = []
            while self._entries:
                entry = self._entries.popleft()
                if stretch and (entry.attempt != stretch[-1].attempt or entry.step <= stretch[-1].step):
                    self._segments.append(self._segment(stretch))
                    stretch = []
                stretch.append(entry)
            if stretch:
                self._segments.append(self._segment(stretch))

    def _segment(self, stretch: list[BatchLogEntry]) -> _Segment:
        first, last = stretch[0], stretch[-1]
        key = keys.batches_segment(self._root, self._run, first.attempt, self._rank, first.step, last.step)
        return _Segment(first.attempt, key, encode_batch_log(stretch), len(stretch))
