"""Hold: every rank stands still at a step boundary until a person says how the run goes on."""

from trimtab_policies.rules import Action

from trimtab_operator.commands import Append
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests.legal import how_to_answer
from trimtab_operator.requests.records import accept as accepted
from trimtab_operator.requests.records import latch_of, name_of
from trimtab_operator.run_state import RunPhase, RunState


def why_not(_state: RunState, _observation: Observation, _request: Request) -> str:
    """Nothing stands against a hold where it is legal."""
    return ""


def accept(state: RunState, observation: Observation, request: Request) -> Append:
    """A pause that no rule asked for; within a probation its incident is interrupted, else it is one of its own."""
    latch = latch_of(state, observation, request, Action.PAUSE.value)
    message = f"every rank holds at the next step boundary; {how_to_answer(observation.job)}"
    name = name_of(state, observation.job, latch)
    return accepted(state, request, message, RunPhase.HOLDING, incident=name, latch=latch)
