"""Selecting: which checkpoint the run goes back to and what changes behind it, or why a human is asked."""

from trimtab_contract.directives import CheckpointReference, LearningRateOverride

from trimtab_operator import automation, bookkeeping, drafts
from trimtab_operator.commands import Command
from trimtab_operator.incidents import MAX_PLANS, Incident, Plan, hashed
from trimtab_operator.observation import Observation
from trimtab_operator.phases import approval
from trimtab_operator.run_state import JournalAction, RunPhase, RunState
from trimtab_operator.selection import (
    ENOUGH_UNPROVED,
    Selection,
    select_named,
    select_rollback,
    told_unproved,
)

_P = RunPhase

STALLED_PLANS = 3
"""So many plans in a row that did not bring the run beyond about where it broke before, and a human is asked."""


def selecting(state: RunState, observation: Observation) -> Command | None:
    """The next plan of the incident, within the budget or for a person's approval, or a question to a human."""
    incident = state.incident
    if incident is None:
        return None
    if automation.waits(state, observation):
        return automation.wait(state, observation)
    retarget = bool(incident.plans) and bool(incident.plans[-1].failed)
    spent = bookkeeping.rollbacks_in_window(state, observation)
    counted = not retarget and not incident.asked and not approval.needed(incident)
    if counted and incident.stalls >= STALLED_PLANS:
        return _ask(
            state, f"{incident.stalls} plans in a row broke again at about step {incident.furthest}: no progress"
        )
    if counted and spent >= observation.limits.max_rollbacks:
        return _ask(state, f"{spent} rollbacks within the budget's window are spent (budget.maxRollbacks)")
    if len(incident.plans) >= MAX_PLANS:
        return _ask(state, f"none of this incident's {MAX_PLANS} plans helped, and an incident holds no more")
    if not incident.asked and len(state.unproved) >= ENOUGH_UNPROVED:
        return _ask(state, told_unproved(state.unproved, incident.plans[-1].failed if incident.plans else ""))
    named = incident.wishes.key
    selection = select_named(state, named) if named else select_rollback(state)
    if selection.target is None and not named and not state.checkpoints and state.world_lives:
        return None  # the state before the first step is saved, too, and still on its way
    if selection.target is None:
        return _no_target(state, selection, named=bool(named))
    plan = hashed(incident.name, _plan(state, incident, selection.target.reference))
    choice = "named by a person" if named else f"the newest trustworthy one at or before step {selection.bound}"
    reason = {
        "message": f"step {plan.target.step}: {choice}",
        "bound": selection.bound,
        "candidates": list(selection.candidates),
    }
    if approval.needed(incident):
        return approval.ask(state, observation, plan, reason)
    asked = {"asked": True} if incident.asked and not retarget else {}
    after = {"plan": plan, "counted": counted, **asked}
    return drafts.record(state, JournalAction.TARGET_SELECTED, _P.RESTORING, reason=reason, after=after)


def _plan(state: RunState, incident: Incident, target: CheckpointReference) -> Plan:
    wishes, settings = incident.wishes, incident.latch.remediation
    rate = None if wishes.unchanged else wishes.learning_rate or settings.learning_rate
    return Plan(
        number=len(incident.plans) + 1,
        target=target,
        bound=_bound(state, incident, target),
        learning_rate=LearningRateOverride(scale=rate.scale, until_step=target.step + rate.until_step)
        if rate
        else None,
    )


def _bound(state: RunState, incident: Incident, target: CheckpointReference) -> tuple[int, int] | None:
    """The windows outside of which the plan skips nothing: what a person names, or as far as damage is looked for."""
    if incident.wishes.skip is not None:
        return incident.wishes.skip
    if incident.flagged is None:
        return None
    settings, (first, last) = incident.latch.remediation, incident.flagged
    begin = max(0, first - settings.before, state.ledger.window_of_step(target.step + 1))
    return begin, last + settings.probe + settings.after


def _ask(state: RunState, why: str) -> Command:
    return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})


def _no_target(state: RunState, selection: Selection, *, named: bool) -> Command:
    why = f"no trustworthy checkpoint at or before step {selection.bound} is left"
    if named:
        thoughts = "; ".join(candidate.why for candidate in selection.candidates) or "it is not known"
        why = f"the checkpoint that a person named, of step {selection.bound}, cannot be restored: {thoughts}"
    reason = {"message": why, "candidates": list(selection.candidates)}
    return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason=reason)
