"""Selecting: which checkpoint the run goes back to, or why a human is asked."""

from trimtab_operator import bookkeeping, drafts
from trimtab_operator.commands import Command
from trimtab_operator.incidents import MAX_PLANS, Plan
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import JournalAction, RunPhase, RunState
from trimtab_operator.selection import select_rollback

_P = RunPhase


def selecting(state: RunState, observation: Observation) -> Command | None:
    """The next plan of the incident, within the budget, or a question to a human."""
    incident = state.incident
    if incident is None:
        return None
    retarget = bool(incident.plans) and bool(incident.plans[-1].failed)
    spent = bookkeeping.rollbacks_in_window(state, observation)
    counted = not retarget and not incident.asked
    if counted and spent >= observation.limits.max_rollbacks:
        why = f"{spent} rollbacks within the budget's window are spent (budget.maxRollbacks)"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    if len(incident.plans) >= MAX_PLANS:
        why = f"none of this incident's {MAX_PLANS} plans helped, and an incident holds no more"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    selection = select_rollback(state)
    if selection.target is None and not state.checkpoints and state.world_lives:
        return None  # the state before the first step is saved, too, and still on its way
    if selection.target is None:
        why = f"no trustworthy checkpoint at or before step {selection.bound} is left"
        return drafts.record(
            state,
            JournalAction.NEEDS_HUMAN,
            _P.NEEDS_HUMAN,
            reason={"message": why, "candidates": list(selection.candidates)},
        )
    plan = Plan(number=len(incident.plans) + 1, target=selection.target.reference)
    return drafts.record(
        state,
        JournalAction.TARGET_SELECTED,
        _P.RESTORING,
        reason={
            "message": f"step {plan.target.step}: the newest trustworthy one at or before step {selection.bound}",
            "bound": selection.bound,
            "candidates": list(selection.candidates),
        },
        after={"plan": plan, "counted": counted, **({"asked": True} if incident.asked and not retarget else {})},
    )
