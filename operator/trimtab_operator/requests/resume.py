"""Resume: a run that holds goes on, and what fired is settled."""

from trimtab_contract.directives import AckState, Action

from trimtab_operator import automation, drafts
from trimtab_operator.commands import Append, Command
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests.legal import why_nobody_is_asked
from trimtab_operator.requests.records import accept as accepted
from trimtab_operator.run_state import JournalAction, RequestAction, Resumption, RunPhase, RunState

_P = RunPhase
_STANDING = frozenset({AckState.HOLDING, AckState.RESTORED, AckState.DIAGNOSED})


def must_wait(state: RunState, _request: Request) -> bool:
    """What becomes of a paused run is decided when every rank holds."""
    incident = state.incident
    return state.phase is _P.HOLDING and incident is not None and incident.held_step is None


def lets_go(state: RunState, request: Request) -> bool:
    """Whether it is the run's wait for the other runs that a person ends."""
    return request.action is RequestAction.RESUME and automation.may_be_let_go(state)


def why_not(state: RunState, observation: Observation, request: Request) -> str:
    """Why a run does not go on from where it is: nobody is asked, or nothing holds."""
    if lets_go(state, request):
        return ""
    if state.phase is _P.HOLDING:
        return why_nobody_is_asked(state)
    return "" if _world_holds(state, observation) else "no world holds that could go on"


def accept(state: RunState, observation: Observation, request: Request) -> Append:
    """Back to where it came from; what was judged until now is settled."""
    if state.automation is not None and lets_go(state, request):
        message = "the run does not wait for the other runs any more"
        return accepted(state, request, message, let_go=state.automation.id)
    incident = state.incident
    # Only a probation has had a plan: where the run was held within one, it goes back into it.
    interrupted = state.phase is _P.HOLDING and incident is not None and bool(incident.plans)
    asked = incident is not None and incident.latch.asked is not None
    return accepted(
        state,
        request,
        "the run goes on" if asked else "the run goes on, and what fired is settled",
        _P.PROBATION if interrupted else _P.WATCHING,
        resumption=Resumption(attempt=state.attempt, step=_settled_step(state, observation)),
    )


def go_on(state: RunState, observation: Observation) -> Command | None:
    """A world that a person lets go on is still told to hold: tell it to run."""
    directive, latest = state.directive, observation.acks.latest
    if not state.resumed(state.attempt) or not state.world_lives or directive is None or latest is None:
        return None
    if directive.action is not Action.HOLD or latest.attempt != state.attempt:
        return None
    incident = state.incident.name if state.incident else None
    # A step that was withheld as non-finite is passed only by its number.
    run = drafts.instruct(state, observation, Action.RUN, incident=incident, release=latest.step)
    message = f"a person lets the run go on behind step {latest.step}"
    return drafts.intend(state, JournalAction.DIRECTIVE, run, reason={"message": message})


def _settled_step(state: RunState, observation: Observation) -> int:
    """Up to where a person has seen what the rules say: of records that come late, nobody knew."""
    incident = state.incident
    fired = incident.latch.fired_step if incident is not None and incident.latch.attempt == state.attempt else 0
    return max(observation.judged_step, fired)


def _world_holds(state: RunState, observation: Observation) -> bool:
    """Whether the newest world stands still with the state of the newest attempt in place."""
    directive, latest = state.directive, observation.acks.latest
    if not state.world_lives or directive is None or directive.action is not Action.HOLD or latest is None:
        return False
    in_place = directive.restore is None or state.restored_attempt == state.attempt
    return in_place and latest.attempt == state.attempt and latest.state in _STANDING
