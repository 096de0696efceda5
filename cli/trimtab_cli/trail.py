"""What a stored journal proves, and what it says happened. Pure.

The chain shows that nothing between the first and the last record was changed, left out or put in. The fold shows
that what it says could have happened: every change of phase is one that the state machine allows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from trimtab_contract.anchors import Anchor
from trimtab_contract.errors import MalformedJournal
from trimtab_contract.journal import (
    GENESIS,
    Evidence,
    JournalRecord,
    Phase,
    canonical_bytes,
    effective,
    parse_record,
    record_hash,
    verify_chain,
)
from trimtab_contract.keys import RunId, policy_text
from trimtab_operator.journal_fold import fold
from trimtab_operator.remediation import IllegalTransition, check_transition
from trimtab_operator.run_state import AcceptedGuard, JournalAction, RunState

from trimtab_cli.errors import MalformedTrail
from trimtab_cli.trail_snapshots import Snapshots, check_snapshots

_UNREADABLE = (KeyError, TypeError, ValueError, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class Trail:
    """A journal read: every record, the ones that count, and the state they lead to."""

    records: tuple[JournalRecord, ...]
    counted: tuple[JournalRecord, ...]
    state: RunState


@dataclass(frozen=True, slots=True)
class TrailReport:
    """What verification found.

    `intact_until` is the last sequence number up to which the chain is unbroken. `vouched_until` is the newest record
    whose hash is known from outside the journal, 0 when there is none: only up to there is the end of the trail proved.
    `anchored_until` is the one that the JournalAnchor knows. `snapshots` says how many were computed again from the
    records before them, `other_snapshots` how many another version of the operator wrote. `ended` says that by the
    JournalAnchor its record is the run's last, for the TrainingJob was deleted.
    """

    records: int
    head_seq: int
    head_hash: str
    intact_until: int
    vouched_until: int
    anchored_until: int
    snapshots: int
    other_snapshots: int
    phase: str
    ignored: tuple[int, ...]
    evidence: int
    problems: tuple[str, ...]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class NamedEvidence:
    """An object that a record names."""

    seq: int
    evidence: Evidence


def read_trail(bodies: Iterable[tuple[int, bytes]]) -> Trail:
    """Fold a journal; raises MalformedTrail naming the record that cannot be read."""
    records: list[JournalRecord] = []
    for seq, body in bodies:
        try:
            records.append(parse_record(body))
        except MalformedJournal as error:
            raise MalformedTrail(f"Record {seq} cannot be read: {error}. `trimtab audit verify` says more.") from error
    counted = effective(records)
    state = RunState()
    for record in counted:
        try:
            state = fold(state, record)
        except _UNREADABLE as error:
            raise MalformedTrail(f"Record {record.seq} ({record.action}) cannot be understood: {error!r}.") from error
    return Trail(tuple(records), counted, state)


def understood_trail(bodies: Sequence[tuple[int, bytes]]) -> Trail:
    """As much of a journal as can be understood, however damaged; `examine` says what is wrong with the rest."""
    records = readable_records(bodies)
    state, _ = _check_fold(records)
    return Trail(records, effective(records), state)


def examine(
    bodies: Sequence[tuple[int, bytes]],
    vouched: tuple[int, str] | None = None,
    anchor: Anchor | None = None,
    run: RunId | None = None,
) -> TrailReport:
    """Verify chain and fold; `vouched` is (sequence number, hash) of a record as the TrainingJob's status knows it.

    Without `run` snapshots are not computed again, and anchors of other runs not refused.
    """
    chain = verify_chain(bodies)
    state, illegal = _check_fold(readable_records(bodies))
    told, mismatch = _check_vouched(bodies, vouched, "the TrainingJob's status")
    foreign = (f"the anchor is that of run {anchor.run}",) if anchor and run and anchor.run != str(run) else ()
    known = (anchor.seq, anchor.hash) if anchor is not None and not foreign else None
    anchored, disagreement = _check_vouched(bodies, known, "its JournalAnchor")
    snapshots = check_snapshots(bodies, run) if run is not None else Snapshots(0, 0, ())
    return TrailReport(
        records=chain.records,
        head_seq=chain.head_seq,
        head_hash=chain.head_hash,
        intact_until=intact_until(bodies),
        vouched_until=max(told, anchored),
        anchored_until=anchored,
        snapshots=snapshots.computed,
        other_snapshots=snapshots.others,
        phase=state.phase.value,
        ignored=chain.ignored,
        evidence=len(named_evidence(readable_records(bodies))),
        problems=(*chain.problems, *illegal, *snapshots.problems, *mismatch, *foreign, *disagreement),
        ended=bool(anchored) and anchor is not None and anchor.ended,
    )


def named_evidence(records: Iterable[JournalRecord]) -> tuple[NamedEvidence, ...]:
    """Every object the records name, each once: evidence, and the texts of the policies that judged."""
    found: dict[tuple[str, str, str], NamedEvidence] = {}
    for record in records:
        items = list(record.evidence)
        if record.action == JournalAction.POLICY_ACCEPTED and record.after:
            try:
                guard = msgspec.convert(record.after.get("guard"), type=AcceptedGuard)
            except msgspec.ValidationError:
                continue  # The fold reports it.
            items += [Evidence(key=policy_text(one.hash), sha256=one.hash) for one in guard.policies]
        for item in items:
            found.setdefault((item.store, item.key, item.sha256), NamedEvidence(record.seq, item))
    return tuple(found.values())


def deleted_manifests(records: Iterable[JournalRecord]) -> frozenset[str]:
    """The manifest keys of the checkpoints whose deletion was announced: nobody expects them to be there."""
    intents = (one for one in records if one.action == JournalAction.DELETING and one.phase is Phase.INTENT)
    references = (dict((one.after or {}).get("checkpoint") or {}) for one in intents)
    return frozenset(str(reference["key"]) for reference in references if "key" in reference)


def readable_records(bodies: Iterable[tuple[int, bytes]]) -> tuple[JournalRecord, ...]:
    """The records that can be read at all."""
    records: list[JournalRecord] = []
    for _, body in bodies:
        try:
            records.append(parse_record(body))
        except MalformedJournal:
            continue  # The chain reports it.
    return tuple(records)


def _check_fold(records: Sequence[JournalRecord]) -> tuple[RunState, tuple[str, ...]]:
    """The state the records lead to, and every record that could not have followed the ones before it."""
    problems: list[str] = []
    state = RunState()
    for record in effective(records):
        try:
            following = fold(state, record)
        except _UNREADABLE as error:
            problems.append(f"record {record.seq}: {record.action} cannot be understood ({error!r})")
            continue
        try:
            check_transition(state.phase, following.phase)
        except IllegalTransition as error:
            problems.append(f"record {record.seq}: {error}")
        state = following
    return state, tuple(problems)


def _check_vouched(
    bodies: Sequence[tuple[int, bytes]], vouched: tuple[int, str] | None, by: str
) -> tuple[int, tuple[str, ...]]:
    if vouched is None:
        return 0, ()
    seq, known = vouched
    body = next((body for key_seq, body in bodies if key_seq == seq), None)
    if body is None:
        return 0, (f"record {seq} is missing, and {by} knows its hash",)
    if record_hash(body) != known:
        return 0, (f"record {seq}: its hash is not the one in {by}: it or one before it was written anew",)
    return seq, ()


def intact_until(bodies: Sequence[tuple[int, bytes]]) -> int:
    """The last sequence number up to which the chain is unbroken."""
    previous, expected = GENESIS, 1
    for seq, body in bodies:
        try:
            record = parse_record(body)
        except MalformedJournal:
            break
        if record.prev != previous:
            # Either this record or the one before it was altered; nobody can say which.
            return max(0, expected - 2)
        if seq != expected or record.seq != seq or canonical_bytes(record) != body:
            break
        previous, expected = record_hash(body), expected + 1
    return expected - 1
