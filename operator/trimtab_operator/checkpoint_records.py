"""Drafts of the records that put a checkpoint into a state. Pure."""

from typing import Any

from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import Evidence

from trimtab_operator.commands import Append, Draft
from trimtab_operator.run_state import RESTORABLE, JournalAction, RunState


def checkpoint_record(
    state: RunState,
    action: JournalAction,
    reference: CheckpointReference,
    attempt: int,
    why: str,
    evidence: tuple[Evidence, ...] = (),
    *,
    loss: float | None = None,
    size: int | None = None,
) -> Append:
    """The record of a checkpoint's state and why it has it; `loss` and `size` (in bytes) where they are known."""
    known = {name: value for name, value in (("loss", loss), ("size", size)) if value is not None}
    after: dict[str, Any] = {"checkpoint": reference, "attempt": attempt, "why": why, **known}
    identity = f"checkpoint/{reference.key}/{action}"
    incident = state.incident.name if state.incident else None
    return Append(Draft(action=action, id=identity, incident=incident, after=after, evidence=evidence))


def quarantine(state: RunState, target: CheckpointReference, why: str) -> Append | None:
    """The record that takes a checkpoint out of every later choice, unless it is written already."""
    known = state.checkpoint(target.key)
    if known is None or known.state not in RESTORABLE:
        return None
    return checkpoint_record(state, JournalAction.QUARANTINED, target, known.attempt, why)
