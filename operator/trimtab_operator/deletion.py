"""Deleting the checkpoints that nothing needs, and what saves left that never ended: the intent first, and the result
when the data are gone. Pure.

Nothing waits for a deletion, and nothing that was decided before it or will be can want what it takes: while a rule
fires or an incident is open none begins, and what is being deleted is out of every choice for good.
"""

from trimtab_contract.journal import Phase

from trimtab_operator.commands import Append, Command, Draft
from trimtab_operator.observation import Observation
from trimtab_operator.retention import review
from trimtab_operator.run_state import Checkpoint, CheckpointState, JournalAction, RunPhase, RunState

LEFT_BEHIND = "no checkpoint: its save never ended, and no manifest was written"
WHY = "nothing keeps it: neither checkpoint.keepLast and keepEvery, nor what a rollback may go back to"


def next_command(state: RunState, observation: Observation) -> Command | None:
    """What became of a deletion, or the intent of the next one: one at a time, and none while anything is amiss."""
    return removed(state, observation) or _intend(state, observation)


def removed(state: RunState, observation: Observation) -> Command | None:
    """The result of a deletion whose data are gone, or stay for good."""
    for removal in observation.removals:
        known = state.checkpoint(removal.key)
        if known is None or known.state is not CheckpointState.DELETING:
            continue
        return Append(
            Draft(
                action=JournalAction.DELETING,
                phase=Phase.RESULT,
                id=_identity(known),
                reason={"message": f"step {known.reference.step} of attempt {known.attempt}: {removal.message}"},
                after={"key": removal.key},
                outcome="Deleted" if removal.deleted else "Left",
                error=None if removal.deleted else removal.message,
            )
        )
    return None


def _intend(state: RunState, observation: Observation) -> Command | None:
    calm = state.phase is RunPhase.WATCHING and state.incident is None and observation.firing is None
    if not calm or being_deleted(state):
        return None
    return _retire(state, observation) or _clear_away(state, observation)


def _clear_away(state: RunState, observation: Observation) -> Command | None:
    """The intent to delete what a save that never ended left: in all but its reason like that of a checkpoint."""
    for leftover in observation.leftovers:
        if state.knows(leftover.reference.key):
            continue
        why = f"{LEFT_BEHIND}; nothing was written there since {leftover.since}"
        return Append(
            Draft(
                action=JournalAction.DELETING,
                phase=Phase.INTENT,
                id=f"checkpoint/{leftover.reference.key}/{JournalAction.DELETING}",
                reason={"message": why},
                after={"checkpoint": leftover.reference, "attempt": leftover.attempt, "why": why},
            )
        )
    return None


def _retire(state: RunState, observation: Observation) -> Command | None:
    settings = observation.limits.retention
    if settings is None:
        return None
    for fate in review(state, settings, observation.judged_step, observation.continued):
        if not fate.kept:
            checkpoint = fate.checkpoint
            return Append(
                Draft(
                    action=JournalAction.DELETING,
                    phase=Phase.INTENT,
                    id=_identity(checkpoint),
                    reason={"message": WHY},
                    before={"state": checkpoint.state.value, "why": checkpoint.why},
                    after={"checkpoint": checkpoint.reference, "attempt": checkpoint.attempt, "why": WHY},
                )
            )
    return None


def being_deleted(state: RunState) -> tuple[Checkpoint, ...]:
    """The checkpoints whose data are going."""
    return tuple(one for one in state.checkpoints if one.state is CheckpointState.DELETING)


def may_go(state: RunState, checkpoint: Checkpoint) -> bool:
    """Whether nothing that is under way could still read the data of a checkpoint that is being deleted."""
    restored = state.directive.restore if state.directive is not None else None
    named = [plan.target for plan in state.incident.plans] if state.incident is not None else []
    return checkpoint.state is CheckpointState.DELETING and checkpoint.reference not in (restored, *named)


def _identity(checkpoint: Checkpoint) -> str:
    return f"checkpoint/{checkpoint.reference.key}/{JournalAction.DELETING}"
