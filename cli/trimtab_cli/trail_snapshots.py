"""The snapshots that a journal names, computed again from the records before them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.errors import MalformedJournal
from trimtab_contract.journal import JournalRecord, parse_record, record_hash
from trimtab_contract.keys import RunId
from trimtab_operator.journal_fold import fold
from trimtab_operator.run_state import JournalAction, RunState
from trimtab_operator.snapshots import UnusableSnapshot, encode_snapshot, fold_schema

_NOT_UNDERSTOOD = (KeyError, TypeError, ValueError, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class Snapshots:
    """How many were computed again, how many another version wrote, and which are not what the records lead to."""

    computed: int
    others: int
    problems: tuple[str, ...]


def check_snapshots(bodies: Sequence[tuple[int, bytes]], run: RunId) -> Snapshots:
    """Fold the journal up to each snapshot and hold the hash in its record against what comes out."""
    state, computed, others, problems = RunState(), 0, 0, list[str]()
    if not any(b'"Snapshot"' in body for _, body in bodies):
        return Snapshots(0, 0, ())
    for seq, body in bodies:
        try:
            record = parse_record(body)
            counts = record.actor.epoch >= state.epoch
            if counts and record.action == JournalAction.SNAPSHOT:
                if (record.after or {}).get("schema") != fold_schema():
                    others += 1
                else:
                    computed += 1
                    problems += [] if _is(record, state, run) else [_problem(seq)]
            head = record_hash(body)
            state = fold(state, record, head) if counts else replace(state, seq=seq, head=head)
        except (MalformedJournal, *_NOT_UNDERSTOOD):
            break  # What follows has no state; the chain and the fold say why.
    return Snapshots(computed, others, tuple(problems))


def _is(record: JournalRecord, state: RunState, run: RunId) -> bool:
    try:
        return [one.sha256 for one in record.evidence] == [sha256_hex(encode_snapshot(run, state))]
    except UnusableSnapshot:
        return False


def _problem(seq: int) -> str:
    return f"record {seq}: its snapshot is not the state that records 1 to {seq - 1} lead to"
