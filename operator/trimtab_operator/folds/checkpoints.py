"""The fold of checkpoints: from committed to certified, quarantined, deleted. Pure."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import JournalRecord

from trimtab_operator.folds.values import read
from trimtab_operator.run_state import KEPT_DELETIONS, Checkpoint, CheckpointState, RunState


def checkpoint_in(target: CheckpointState) -> Callable[[RunState, JournalRecord], RunState]:
    """The fold of a record that puts a checkpoint into a state; one that is being deleted stays so."""

    def apply(state: RunState, record: JournalRecord) -> RunState:
        reference = read(CheckpointReference, record.after, "checkpoint")
        after = record.after or {}
        known = state.checkpoint(reference.key)
        if known is not None and known.state is CheckpointState.DELETING:
            return state
        entry = Checkpoint(
            reference=reference,
            attempt=int(after.get("attempt", known.attempt if known else 0)),
            state=target,
            why=str(after.get("why", "")),
            loss=after.get("loss", known.loss if known else None),
            size=after.get("size", known.size if known else None),
        )
        others = tuple(item for item in state.checkpoints if item.reference.key != reference.key)
        ordered = sorted((*others, entry), key=lambda item: (item.reference.step, item.attempt))
        return replace(state, checkpoints=tuple(ordered))

    return apply


def deleting(state: RunState, record: JournalRecord) -> RunState:
    """An intent that nothing waits for: the data go beside all that is decided meanwhile, and it counts as no effect.

    Unlike other effects it need not be repeated before anything else happens, for the checkpoint is out of all choices.
    """
    return checkpoint_in(CheckpointState.DELETING)(state, record)


def deleted(state: RunState, record: JournalRecord) -> RunState:
    """The data are gone, or their deletion failed for good and the checkpoint is quarantined."""
    key = str((record.after or {})["key"])
    known = state.checkpoint(key)
    if known is None:
        return state
    others = tuple(item for item in state.checkpoints if item.reference.key != key)
    if record.error is None:
        return replace(state, checkpoints=others, deleted=(*state.deleted, key)[-KEPT_DELETIONS:])
    entry = msgspec.structs.replace(known, state=CheckpointState.QUARANTINED, why=record.error)
    ordered = sorted((*others, entry), key=lambda item: (item.reference.step, item.attempt))
    return replace(state, checkpoints=tuple(ordered), spared=(*state.spared, key))
