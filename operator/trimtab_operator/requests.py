"""What people ask of a run: answered once each, by one record, and then done like everything else. Pure.

An answer is written before anything is done about it. What an accepted request asks for follows from the fold: the
phase it leads to, the directive that lets a held world run, the end of the run.
"""

from collections.abc import Mapping
from dataclasses import replace

from trimtab_contract.directives import AckState, Action

from trimtab_operator import drafts
from trimtab_operator.commands import Append, Command
from trimtab_operator.incidents import MAX_PLANS
from trimtab_operator.observation import Observation, Request
from trimtab_operator.run_state import (
    AnsweredRequest,
    JournalAction,
    RequestAction,
    RequestState,
    Resumption,
    RunPhase,
    RunState,
)

_P = RunPhase
_ANY = (RequestAction.RESUME, RequestAction.ROLLBACK, RequestAction.STOP)
_LEGAL: Mapping[RunPhase, tuple[RequestAction, ...]] = {
    _P.HOLDING: _ANY,
    _P.NEEDS_HUMAN: _ANY,
    _P.COMPLETED: (),
    _P.STOPPED: (),
}
"""What may be asked in a phase; in every other one, only Stop. `_why_not` says what else it takes."""

_STANDING = frozenset({AckState.HOLDING, AckState.RESTORED, AckState.DIAGNOSED})


def next_command(state: RunState, observation: Observation) -> Command | None:
    """Stop a run that a person stops; else answer the oldest request that can be answered now."""
    return _stop(state, observation) or _answer(state, observation)


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


def how_to_answer(job: str) -> str:
    """What people type when a run waits for them."""
    return f"say how it goes on with `trimtab job resume {job}`, `rollback` or `stop`"


def _stop(state: RunState, observation: Observation) -> Command | None:
    asked = next((one for one in state.requests if _is_open_stop(one)), None)
    if asked is None or state.ended:
        return None
    stop = drafts.instruct(state, observation, Action.STOP, incident=state.incident.name if state.incident else None)
    reason = {"message": f"{asked.by} asks for it"}
    command = drafts.intend(state, JournalAction.STOPPED, stop, _P.STOPPED, reason, request=asked.uid)
    return Append(replace(command.draft, on_behalf_of=asked.by))


def _is_open_stop(request: AnsweredRequest) -> bool:
    return request.action is RequestAction.STOP and request.state is RequestState.ACCEPTED


def _answer(state: RunState, observation: Observation) -> Command | None:
    known = {one.uid for one in state.requests}
    for request in observation.requests:
        if request.uid in known:
            continue
        why_not = _why_not(state, observation, request)
        if why_not:
            return _record(state, request, RequestState.REFUSED, why_not)
        if not _must_wait(state, request):
            return _accept(state, observation, request)
    return None


def _must_wait(state: RunState, request: Request) -> bool:
    """What becomes of a paused run is decided when every rank holds; it may be stopped before."""
    incident = state.incident
    holds = incident is None or incident.held_step is not None
    return state.phase is _P.HOLDING and request.action is not RequestAction.STOP and not holds


def _why_not(state: RunState, observation: Observation, request: Request) -> str:
    if request.outlived:
        return f"{request.action} is refused: it was asked for before this TrainingJob existed"
    legal = _LEGAL.get(state.phase, (RequestAction.STOP,))
    if request.action not in legal:
        return _refusal(state, request, "", legal)
    if request.action is RequestAction.STOP:
        return ""
    incident = state.incident
    if state.phase is _P.HOLDING and (incident is None or not incident.paused):
        deed = incident.latch.action if incident else "Hold"
        return _refusal(state, request, f"the rule that fired asks for {deed}", (RequestAction.STOP,))
    if request.action is RequestAction.RESUME:
        holds = state.phase is _P.HOLDING or _world_holds(state, observation)
        others = tuple(one for one in legal if one is not RequestAction.RESUME)
        return "" if holds else _refusal(state, request, "no world holds that could go on", others)
    others = tuple(one for one in legal if one is not RequestAction.ROLLBACK)
    if incident is None:
        return _refusal(state, request, "no rule has fired, so there is nothing to go back behind", others)
    if len(incident.plans) >= MAX_PLANS:
        return _refusal(state, request, f"the incident has had its {MAX_PLANS} plans", others)
    return ""


def _refusal(state: RunState, request: Request, why: str, legal: tuple[RequestAction, ...]) -> str:
    words = " and ".join(legal) or "nothing"
    place = f"{request.action} is refused in phase {state.phase}"
    return f"{place}{': ' if why else ''}{why}; what is legal there: {words}"


def _world_holds(state: RunState, observation: Observation) -> bool:
    """Whether the newest world stands still with the state of the newest attempt in place."""
    directive, latest = state.directive, observation.acks.latest
    if not state.world_lives or directive is None or directive.action is not Action.HOLD or latest is None:
        return False
    in_place = directive.restore is None or state.restored_attempt == state.attempt
    return in_place and latest.attempt == state.attempt and latest.state in _STANDING


def _accept(state: RunState, observation: Observation, request: Request) -> Command:
    incident = state.incident
    if request.action is RequestAction.STOP:
        return _record(state, request, RequestState.ACCEPTED, "the run is stopped; it does not start again")
    if request.action is RequestAction.ROLLBACK:
        # What is suspected when the run was paused is looked at first, as after every hold.
        phase = _P.DIAGNOSING if state.phase is _P.HOLDING else _P.SELECTING
        message = "the run goes back to a checkpoint from before the damage"
        return _record(state, request, RequestState.ACCEPTED, message, phase)
    # A pause within a probation is a relapse of its incident, and only there an incident that holds has relapsed.
    interrupted = state.phase is _P.HOLDING and incident is not None and incident.relapses > 0
    return _record(
        state,
        request,
        RequestState.ACCEPTED,
        "the run goes on, and what fired is settled",
        _P.PROBATION if interrupted else _P.WATCHING,
        resumption=Resumption(attempt=state.attempt, step=_settled_step(state, observation)),
    )


def _settled_step(state: RunState, observation: Observation) -> int:
    """Up to where a person has seen what the rules say: of records that come late, nobody knew."""
    incident = state.incident
    fired = incident.latch.fired_step if incident is not None and incident.latch.attempt == state.attempt else 0
    return max(observation.judged_step, fired)


def _record(
    state: RunState,
    request: Request,
    answer: RequestState,
    message: str,
    phase: RunPhase | None = None,
    **after: object,
) -> Append:
    asked = {"uid": request.uid, "name": request.name, "action": request.action, "by": request.by}
    command = drafts.record(
        state,
        JournalAction.RUN_REQUESTED,
        phase,
        reason={"message": message, "asked": request.reason},
        after={"request": asked, **after},
        outcome=answer.value,
    )
    return Append(replace(command.draft, id=f"request/{request.uid}", on_behalf_of=request.by))
