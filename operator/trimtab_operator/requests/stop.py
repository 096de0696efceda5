"""Stop: the run ends for good."""

from dataclasses import replace

from trimtab_contract.directives import Action

from trimtab_operator import drafts
from trimtab_operator.commands import Append, Command
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests.records import accept as accepted
from trimtab_operator.run_state import JournalAction, RequestAction, RequestState, RunPhase, RunState


def why_not(_state: RunState, _observation: Observation, _request: Request) -> str:
    """Nothing stands against a stop until the run has ended."""
    return ""


def accept(state: RunState, _observation: Observation, request: Request) -> Append:
    """The end is an effect, which follows."""
    return accepted(state, request, "the run is stopped; it does not start again")


def carry_out(state: RunState, observation: Observation) -> Command | None:
    """End a run whose stop was accepted, whatever it was about to do."""
    asked = next(
        (one for one in state.requests if one.action is RequestAction.STOP and one.state is RequestState.ACCEPTED),
        None,
    )
    if asked is None or state.ended:
        return None
    stop = drafts.instruct(state, observation, Action.STOP, incident=state.incident.name if state.incident else None)
    reason = {"message": f"{asked.by} asks for it"}
    command = drafts.intend(state, JournalAction.STOPPED, stop, RunPhase.STOPPED, reason, request=asked.uid)
    return Append(replace(command.draft, on_behalf_of=asked.by))
