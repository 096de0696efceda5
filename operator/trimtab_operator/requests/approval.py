"""Approve and Reject: a person has seen the plan that a policy wants seen, and says whether it is carried out."""

from trimtab_operator.commands import Append
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests.records import accept as accepted
from trimtab_operator.run_state import RequestAction, RunPhase, RunState


def why_not(state: RunState, _observation: Observation, request: Request) -> str:
    """An approval is of the one plan whose hash it names; a rejection may leave it out."""
    plan = state.incident.plan if state.incident else None
    if plan is None:
        return "no plan waits"
    if request.plan_hash == plan.hash or (request.action is RequestAction.REJECT and not request.plan_hash):
        return ""
    named = f"plan {request.plan_hash}" if request.plan_hash else "no plan"
    return f"it names {named}, and what waits is plan {plan.number}, {plan.hash}: look at it again"


def approve(state: RunState, _observation: Observation, request: Request) -> Append:
    """The plan is carried out."""
    plan = state.incident.plan if state.incident else None
    number, hashed = (plan.number, plan.hash) if plan else (0, "")
    return accepted(state, request, f"plan {number} is carried out", RunPhase.RESTORING, approved=hashed)


def reject(state: RunState, observation: Observation, request: Request) -> Append:
    """The plan is not carried out; a person says how the run goes on."""
    plan = state.incident.plan if state.incident else None
    number, hashed = (plan.number, plan.hash) if plan else (0, "")
    message = f"plan {number} is not carried out: {request.by} rejects it ({request.reason})"
    return accepted(state, request, message, RunPhase.NEEDS_HUMAN, rejected=hashed)
