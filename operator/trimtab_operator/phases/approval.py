"""AwaitingApproval: a plan that a policy wants seen waits for the person who says whether it is carried out.

The deadline is one for people, so it counts wall time from the moment they were asked, whatever operator is there; an
answer that was given while none was is heard before the deadline is looked at.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from trimtab_operator import drafts
from trimtab_operator.commands import Command
from trimtab_operator.incidents import MAX_PLANS, Incident, Plan, SkipRange, hashed
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

_P = RunPhase


def needed(incident: Incident) -> bool:
    """Whether a person must have seen a plan of this incident."""
    return incident.latch.remediation.approval_seconds is not None


def ask(state: RunState, observation: Observation, plan: Plan, reason: dict[str, Any]) -> Command:
    """Show the plan and wait; only its hash can be approved."""
    deadline = _deadline(state, observation)
    return drafts.record(
        state,
        JournalAction.TARGET_SELECTED,
        _P.AWAITING_APPROVAL,
        reason={**reason, "message": _question(plan, deadline, reason)},
        after={"plan": plan, "counted": False, "deadline": deadline},
    )


def wider_plan(state: RunState, skip: SkipRange) -> Plan | None:
    """The plan that the windows found would need, where they reach beyond what a person approved."""
    incident = state.incident
    plan = incident.plan if incident else None
    if incident is None or plan is None or not needed(incident):
        return None
    if plan.bound is not None and plan.bound[0] <= skip.first and skip.last <= plan.bound[1]:
        return None
    wider = msgspec.structs.replace(plan, number=plan.number + 1, bound=(skip.first, skip.last), approved_by="")
    return hashed(incident.name, wider)


def ask_wider(
    state: RunState, observation: Observation, plan: Plan, skip: SkipRange, reason: dict[str, Any]
) -> Command:
    """The damage reaches beyond what was approved: the same target with a wider range is another plan."""
    if plan.number > MAX_PLANS:
        why = f"windows {skip.first} to {skip.last} are more than was approved, and an incident holds {MAX_PLANS} plans"
        return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})
    deadline = _deadline(state, observation)
    return drafts.record(
        state,
        JournalAction.EXTENT_FOUND,
        _P.AWAITING_APPROVAL,
        reason={**reason, "message": _question(plan, deadline, reason)},
        evidence=observation.probe_evidence,
        after={"skip": skip, "plan": plan, "deadline": deadline},
    )


def awaiting_approval(state: RunState, observation: Observation) -> Command | None:
    """The end of the waiting; answers come before it."""
    incident = state.incident
    if incident is None or incident.plan is None or not incident.deadline:
        return None
    if datetime.fromisoformat(observation.now) < datetime.fromisoformat(incident.deadline):
        return None
    why = f"nobody approved plan {incident.plan.number} by {incident.deadline[:19]}Z; the run is held"
    return drafts.record(state, JournalAction.NEEDS_HUMAN, _P.NEEDS_HUMAN, reason={"message": why})


def _deadline(state: RunState, observation: Observation) -> str:
    incident = state.incident
    seconds = incident.latch.remediation.approval_seconds if incident else None
    return (datetime.fromisoformat(observation.now) + timedelta(seconds=seconds or 0)).isoformat()


def _question(plan: Plan, deadline: str, reason: dict[str, Any]) -> str:
    asks = f"plan {plan.number} waits for approval until {deadline[:19]}Z: {plan_words(plan)}"
    return f"{asks}; its hash is {plan.hash} ({reason['message']})"


def plan_words(plan: Plan) -> str:
    """A plan in words: all that its hash is of."""
    bound, rate = plan.bound, plan.learning_rate
    skips = f"skip nothing outside windows {bound[0]} to {bound[1]}" if bound else "skip nothing"
    slower = f", {rate.scale:g} of the learning rate up to step {rate.until_step}" if rate else ""
    return f"restore step {plan.target.step}, {skips}{slower}"
