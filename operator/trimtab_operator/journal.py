"""The journal of one run as the operator writes it: read, fold, append; every decision rests on this fold."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
from trimtab_contract.errors import MalformedJournal
from trimtab_contract.journal import Actor, JournalRecord, canonical_bytes, parse_record, record_hash
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import Appended, JournalStore
from trimtab_operator.commands import Draft
from trimtab_operator.errors import Conflict, Fenced, JournalBroken
from trimtab_operator.journal_fold import fold
from trimtab_operator.run_state import JournalAction, RunState

_GENESIS_EPOCH = 0


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


def wall_time() -> str:
    """Now, as RFC 3339 in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


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
        self._vouched: tuple[int, str] | None = None

    async def read(self) -> None:
        """Fold what the store holds beyond the records already folded.

        Raises Fenced behind a newer operator, JournalBroken where a record does not continue the one before it: then
        nothing that was folded is believed any more, and the run must be taken over anew.
        """
        try:
            for seq, body in await self._store.read(self._run, after=self.state.seq):
                self._fold(seq, body)
        except JournalBroken:
            self.state, self.epoch = RunState(), _GENESIS_EPOCH
            raise
        if self.epoch and self.state.epoch > self.epoch:
            message = f"epoch {self.state.epoch} leads run {self._run}; this operator has {self.epoch}"
            raise Fenced(message)

    async def take_over(self, lease_epoch: int, vouched: tuple[int, str] | None = None) -> JournalRecord:
        """Open the run under a new epoch, above the Lease's and above every epoch in the journal.

        `vouched` is a sequence number and the hash that somebody else knows its record to have: a chain cut short or
        written anew is whole in itself. The record is also the intent of re-affirming the directive in force under the
        new epoch, so that a fenced operator can overwrite nothing. Raises Conflict when another one was quicker,
        JournalBroken as `read`.
        """
        await self.settle()
        self._vouched = vouched
        await self.read()
        if vouched is not None and self.state.seq < vouched[0]:
            lost = self.state.seq + 1
            self.state, self.epoch = RunState(), _GENESIS_EPOCH
            raise self._broken(lost, f"it is missing, and the TrainingJob's status knows record {vouched[0]}")
        self.epoch = 1 + max(lease_epoch, self.state.epoch)
        directive = self.state.directive
        after: dict[str, object] = {"epoch": self.epoch}
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

    async def settle(self) -> None:
        """Finish an append whose outcome is unknown, before anything is decided; raises as `append`."""
        if self._unsettled is None:
            return
        seq, body = self._unsettled
        appended = await self._store.append(self._run, seq, body)
        self._unsettled = None
        if appended is Appended.OTHER:
            await self.read()
            message = f"record {seq} of run {self._run} is another one than this operator meant to write"
            raise Conflict(message)
        self._fold(seq, body)

    def _fold(self, seq: int, body: bytes) -> None:
        if seq <= self.state.seq:
            return  # an own record whose reply was lost may have been read before it was settled
        record = self._checked(seq, body)
        head = record_hash(body)
        if self._vouched is not None and self._vouched[0] == seq and self._vouched[1] != head:
            raise self._broken(seq, "it is not the one whose hash the TrainingJob's status knows")
        if record.actor.epoch < self.state.epoch:
            self.state = replace(self.state, seq=seq, head=head)
        else:
            self.state = fold(self.state, record, head)

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
