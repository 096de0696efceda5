"""The journal of one run as the operator writes it: read, fold, append; every decision rests on this fold."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
import structlog
from trimtab_contract.errors import MalformedJournal
from trimtab_contract.journal import Actor, JournalRecord, canonical_bytes, parse_record, record_hash
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import Appended, JournalStore
from trimtab_operator.commands import DECISION_VERSION, Draft
from trimtab_operator.errors import Conflict, Fenced, JournalBroken, NotFound, OperatorError
from trimtab_operator.journal_fold import fold
from trimtab_operator.run_state import JournalAction, RunState
from trimtab_operator.snapshots import (
    SNAPSHOT_EVERY,
    UnusableSnapshot,
    encode_snapshot,
    named_snapshot,
    read_snapshot,
    snapshot_draft,
    snapshot_due,
)

_GENESIS_EPOCH = 0
_NOT_UNDERSTOOD = (KeyError, TypeError, ValueError, msgspec.MsgspecError)
"""Every way in which the fold can fail on a record that it does not know."""
_SNAPSHOTS_TRIED = 2
"""So many thousands of records are searched for a snapshot before the journal is folded from its beginning."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this operator process is."""

    service_account: str
    pod: str
    pod_uid: str
    image: str

    def actor(self, epoch: int) -> Actor:
        """This process as the author of a record."""
        return Actor(
            service_account=self.service_account, pod=self.pod, pod_uid=self.pod_uid, image=self.image, epoch=epoch
        )


@dataclass(frozen=True, slots=True)
class Voucher:
    """A record's hash as somebody outside the bucket knows it. An `anchor` can be written by operators alone."""

    seq: int
    hash: str
    by: str
    anchor: bool = False


_NOBODY = Identity(service_account="", pod="", pod_uid="", image="")
"""Who only reads appends nothing, and needs no name."""


def wall_time() -> str:
    """Now, as RFC 3339 in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


async def read_run(store: JournalStore, run: RunId, vouchers: tuple[Voucher, ...] = ()) -> RunState:
    """The fold of another run's journal, for reading alone; raises JournalBroken as `RunJournal.read_vouched`."""
    journal = RunJournal(store, run, _NOBODY)
    await journal.read_vouched(vouchers)
    return journal.state


class RunJournal:
    """One run's journal: the only way to change the run's state.

    A record whose reply was lost is settled first: the very same bytes are appended again before anything else.
    """

    def __init__(self, store: JournalStore, run: RunId, identity: Identity, now: Callable[[], str] = wall_time) -> None:
        self.state = RunState()
        self.epoch = _GENESIS_EPOCH
        self._store = store
        self._run = run
        self._identity = identity
        self._now = now
        self._unsettled: tuple[int, bytes] | None = None
        self._vouchers: tuple[Voucher, ...] = ()
        self._no_snapshot_before = 0

    async def read(self) -> None:
        """Fold what the store holds beyond the records already folded.

        Raises Fenced behind a newer operator, JournalBroken where a record does not continue the one before it: then
        nothing that was folded is believed any more, and the run must be taken over anew.
        """
        self._fold_all(await self._store.read(self._run, after=self.state.seq))
        if self.epoch and self.state.epoch > self.epoch:
            message = f"epoch {self.state.epoch} leads run {self._run}; this operator has {self.epoch}"
            raise Fenced(message)

    async def read_vouched(self, vouchers: tuple[Voucher, ...]) -> None:
        """Read as `read`, and believe it only if it agrees with every voucher: raises JournalBroken otherwise.

        A chain cut short or written anew is whole in itself. Behind an anchor's record reading begins at the newest
        snapshot, if one can be used.
        """
        self._vouchers = vouchers
        anchored = next((voucher for voucher in vouchers if voucher.anchor), None)
        if anchored is not None and self.state.seq == 0:
            await self._begin_with_snapshot(anchored)
        await self.read()
        for voucher in vouchers:
            if self.state.seq < voucher.seq:
                lost = self.state.seq + 1
                self.state, self.epoch = RunState(), _GENESIS_EPOCH
                raise self._broken(lost, f"it is missing, and {voucher.by} knows record {voucher.seq}")

    async def take_over(self, lease_epoch: int, *vouchers: Voucher) -> JournalRecord:
        """Open the run under a new epoch, above the Lease's and above every epoch in the journal.

        The record is also the intent of re-affirming the directive in force under the new epoch, so that a fenced
        operator can overwrite nothing. Raises Conflict when another one was quicker, JournalBroken as `read_vouched`.
        """
        await self.settle()
        await self.read_vouched(vouchers)
        self.epoch = 1 + max(lease_epoch, self.state.epoch)
        directive = self.state.directive
        after: dict[str, object] = {"epoch": self.epoch, "decision_version": DECISION_VERSION}
        if directive is not None:
            after["directive"] = msgspec.structs.replace(directive, epoch=self.epoch, seq=self.state.seq + 1)
        draft = Draft(action=JournalAction.TAKEOVER, id=f"run/{JournalAction.TAKEOVER}/{self.epoch}", after=after)
        try:
            return await self.append(draft)
        except Conflict:
            self.epoch = _GENESIS_EPOCH
            raise

    async def append(self, draft: Draft) -> JournalRecord:
        """Write the draft as the next record, fold it, and return it as a reader of the journal sees it.

        Raises Conflict when another record has its place, or when an earlier append was settled only now (both mean:
        decide again), Fenced behind a newer operator, StoreUnavailable when the outcome is unknown.
        """
        if self._unsettled is not None:
            await self.settle()
            message = f"record {self.state.seq} of run {self._run} was settled only now; what follows is decided again"
            raise Conflict(message)
        record = JournalRecord(
            seq=self.state.seq + 1,
            prev=self.state.head,
            id=draft.id,
            time=self._now(),
            actor=self._identity.actor(self.epoch),
            action=draft.action.value,
            phase=draft.phase,
            incident=draft.incident,
            on_behalf_of=draft.on_behalf_of,
            reason=draft.reason,
            evidence=draft.evidence,
            before=draft.before,
            after=draft.after,
            policy_hash=draft.policy_hash,
            outcome=draft.outcome,
            error=draft.error,
        )
        body = canonical_bytes(record)
        self._unsettled = (record.seq, body)
        await self.settle()
        return parse_record(body)

    async def keep_snapshot(self) -> JournalRecord | None:
        """Write a Snapshot record if one is due; without it the journal says the same, so nothing waits for it.

        Raises as `append`, since another record may be there first.
        """
        state = self.state
        if not snapshot_due(state) or state.seq < self._no_snapshot_before:
            return None
        try:
            body = encode_snapshot(self._run, state)
            draft = snapshot_draft(self._run, state, body)
            await self._store.put_object(draft.evidence[0].key, body)
        except (UnusableSnapshot, OperatorError) as error:
            self._no_snapshot_before = state.seq + SNAPSHOT_EVERY // 10
            log.warning("snapshot not kept", run=str(self._run), seq=state.seq, why=str(error))
            return None
        return await self.append(draft)

    async def settle(self) -> JournalRecord | None:
        """Finish an append whose outcome is unknown, before anything is decided, and return it; raises as `append`."""
        if self._unsettled is None:
            return None
        seq, body = self._unsettled
        appended = await self._store.append(self._run, seq, body)
        self._unsettled = None
        if appended is Appended.OTHER:
            await self.read()
            message = f"record {seq} of run {self._run} is another one than this operator meant to write"
            raise Conflict(message)
        self._fold(seq, body)
        return parse_record(body)

    async def _begin_with_snapshot(self, anchored: Voucher) -> None:
        """Take the state over from the newest snapshot up to the anchored record, and fold what follows it.

        The chain from the Snapshot record to the anchored one proves that an operator wrote it.
        """
        newest = anchored.seq // SNAPSHOT_EVERY * SNAPSHOT_EVERY
        for first in range(newest, max(0, newest - _SNAPSHOTS_TRIED * SNAPSHOT_EVERY), -SNAPSHOT_EVERY):
            bodies = await self._store.read(self._run, after=first - 1)
            for seq, body in reversed(bodies):
                state = await self._snapshot_state(seq, body) if seq <= anchored.seq else None
                if state is not None:
                    self.state = state
                    self._fold_all(one for one in bodies if one[0] >= seq)
                    log.info("journal read from its snapshot", run=str(self._run), snapshot=seq, head=self.state.seq)
                    return
        if newest:
            log.warning("journal without a usable snapshot is folded from its first record", run=str(self._run))

    async def _snapshot_state(self, seq: int, body: bytes) -> RunState | None:
        """The state before a record, if it is a Snapshot whose object can be used."""
        try:
            record = parse_record(body)
            if record.action != JournalAction.SNAPSHOT or record.seq != seq:
                return None
            return read_snapshot(self._run, record, await self._store.get_object(named_snapshot(record).key))
        except (MalformedJournal, UnusableSnapshot, NotFound) as error:
            log.warning("snapshot not used", run=str(self._run), seq=seq, why=str(error))
            return None

    def _fold_all(self, bodies: Iterable[tuple[int, bytes]]) -> None:
        """Fold stored records; after one that does not continue the others nothing is believed any more."""
        try:
            for seq, body in bodies:
                self._fold(seq, body)
        except JournalBroken:
            self.state, self.epoch = RunState(), _GENESIS_EPOCH
            raise

    def _fold(self, seq: int, body: bytes) -> None:
        if seq <= self.state.seq:
            return  # an own record whose reply was lost may have been read before it was settled
        record = self._checked(seq, body)
        head = record_hash(body)
        for voucher in self._vouchers:
            if voucher.seq == seq and voucher.hash != head:
                raise self._broken(seq, f"it is not the one whose hash {voucher.by} knows")
        if record.actor.epoch < self.state.epoch:
            self.state = replace(self.state, seq=seq, head=head)
            return
        try:
            self.state = fold(self.state, record, head)
        except _NOT_UNDERSTOOD as error:
            why = f"{record.action} cannot be understood by this version of the operator ({error})"
            raise self._broken(seq, why) from error

    def _checked(self, seq: int, body: bytes) -> JournalRecord:
        """The record, if it continues what was folded; records of fenced operators do, for they chain like others."""
        if seq != self.state.seq + 1:
            raise self._broken(self.state.seq + 1, f"it is missing; the next one found is {seq}")
        try:
            record = parse_record(body)
        except MalformedJournal as error:
            raise self._broken(seq, str(error)) from error
        if record.seq != seq:
            raise self._broken(seq, f"its content says sequence number {record.seq}")
        if record.prev != self.state.head:
            raise self._broken(seq, "it does not continue the hash of the record before it")
        return record

    def _broken(self, seq: int, why: str) -> JournalBroken:
        return JournalBroken(
            f"the journal is broken at record {seq}: {why}; nothing is done for this run until the journal is whole "
            f"again: run `trimtab audit verify {self._run}`"
        )
