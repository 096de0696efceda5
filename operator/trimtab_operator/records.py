"""The metric records of a run in step order: from Redis, and from the archive where Redis has a gap."""

from collections.abc import Sequence

import structlog
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId, records_prefix, segment_steps
from trimtab_contract.metrics import MetricRecord, decode_archive
from trimtab_policies.lineage import Segment

from trimtab_operator.adapters.ports import Bus, CheckpointStore, Rejected
from trimtab_operator.errors import CredentialsRefused, NotFound, StoreRefused

BATCH = 1000
REMEMBERED_REJECTIONS = 1024
MAX_REASON_CHARACTERS = 300

log = structlog.stdlib.get_logger(__name__)


class Rejections:
    """Says in the log what one run's streams and archive hold that no trainer can mean, each as a rule once.

    Only the newest are remembered, however many there are. `count` is of those that were said.
    """

    def __init__(self, run: RunId) -> None:
        self.count = 0
        self._run = run
        self._told: dict[Rejected, None] = {}

    def add(self, rejected: Sequence[Rejected]) -> None:
        """One line for all that is new of one reading."""
        new = [one for one in rejected if one not in self._told]
        if not new:
            return
        self._told.update(dict.fromkeys(new))
        for oldest in list(self._told)[:-REMEMBERED_REJECTIONS]:
            del self._told[oldest]
        self.count += len(new)
        log.warning("rejected", run=str(self._run), new=len(new), all=self.count, id=new[0].id, reason=new[0].reason)


class RecordFeed:
    """Reads one run's records. Redis is a bus that forgets; the archive in the checkpoint bucket is the record.

    `cursor` is the position in the stream read last; `rejections` hears of what cannot be what a trainer meant.
    """

    def __init__(self, bus: Bus, run: RunId, rejections: Rejections) -> None:
        self.store: CheckpointStore | None = None
        self.rejections = rejections
        self.cursor = "0-0"
        self._bus = bus
        self._run = run

    async def after(self, attempt: int, step: int) -> tuple[MetricRecord, ...]:
        """Records of the attempt behind `step`; a gap before the first one is filled from the archive if it can be.

        Raises BusUnavailable, StoreUnavailable.
        """
        batch = await self._bus.records(self._run, attempt, step, BATCH)
        self.rejections.add(batch.rejected)
        self.cursor = batch.cursor
        records = batch.records
        if records and records[0].step > step + 1:
            missing = await self.archived(attempt, step + 1, records[0].step - 1)
            records = (*missing, *records)
        return records

    async def archived(self, attempt: int, first: int, last: int) -> tuple[MetricRecord, ...]:
        """The archived records of steps `first` to `last`, in order, as far as they exist."""
        if self.store is None or last < first:
            return ()
        found: dict[int, MetricRecord] = {}
        for key in await self.store.sizes(records_prefix(self.store.root, self._run, attempt)):
            try:
                begin, end = segment_steps(key)
                if end < first or begin > last:
                    continue
                records = decode_archive(await self.store.get(key))
            except CredentialsRefused:
                raise
            except (ContractError, NotFound, StoreRefused) as error:
                self.rejections.add((Rejected(key, str(error)[:MAX_REASON_CHARACTERS]),))
                continue
            found.update({record.step: record for record in records if first <= record.step <= last})
        return tuple(found[step] for step in sorted(found))

    async def surviving(self, segments: Sequence[Segment], first: int) -> tuple[MetricRecord, ...]:
        """The records of a surviving history from step `first` on, up to what is there of its last attempt."""
        records: list[MetricRecord] = []
        for segment in segments:
            begin = max(segment.first, first)
            if segment.last is not None and segment.last < begin:
                continue
            records.extend(await self._segment(segment.attempt, begin, segment.last))
        return tuple(records)

    async def _segment(self, attempt: int, first: int, last: int | None) -> list[MetricRecord]:
        records: list[MetricRecord] = []
        while last is None or first <= last:
            batch = await self.after(attempt, first - 1)
            kept = [record for record in batch if last is None or record.step <= last]
            records.extend(kept)
            if not kept or len(kept) < len(batch):
                break
            first = kept[-1].step + 1
        if last is not None and (not records or records[-1].step < last):
            begin = records[-1].step + 1 if records else first
            records.extend(await self.archived(attempt, begin, last))
        return records
