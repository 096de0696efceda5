"""The fold of the Jobs that read checkpoints back. Pure."""

from dataclasses import replace
from datetime import datetime

import msgspec
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import JournalRecord

from trimtab_operator.run_state import KEPT_UNREAD, ReadBackOrder, RunState


def read_back_ordered(state: RunState, record: JournalRecord) -> RunState:
    """An intent that nothing waits for, as that of a deletion: the Job reads beside all that is decided meanwhile."""
    after = record.after or {}
    order = ReadBackOrder(
        id=record.id,
        number=record.seq,
        checkpoints=msgspec.convert(after["checkpoints"], type=tuple[CheckpointReference, ...]),
        seconds=int(after["seconds"]),
        avoid=tuple(str(node) for node in after.get("avoid") or ()),
        since=datetime.fromisoformat(record.time).timestamp(),
    )
    return replace(state, read_back=order)


def read_back_over(state: RunState, record: JournalRecord) -> RunState:
    """The Job is over; of some checkpoints it could not say anything."""
    if state.read_back is None or state.read_back.id != record.id:
        return state
    unread = tuple(str(key) for key in (record.after or {}).get("unread") or ())
    return replace(
        state,
        read_back=None,
        read_back_over=datetime.fromisoformat(record.time).timestamp(),
        unread=(*state.unread, *unread)[-KEPT_UNREAD:],
    )
