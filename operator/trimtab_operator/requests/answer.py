"""The answer to the oldest request that can be answered now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trimtab_operator.commands import Append, Command
from trimtab_operator.observation import Observation, Request
from trimtab_operator.requests import approval, hold, resume, rollback, skip, stop
from trimtab_operator.requests.legal import LEGAL, refusal, why_nobody_is_asked
from trimtab_operator.requests.records import refuse
from trimtab_operator.run_state import RequestAction, RunState


def _never(_state: RunState, _request: Request) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Action:
    """One kind of request: why it is refused (empty: it is not), the record that accepts it, what it waits for."""

    why_not: Callable[[RunState, Observation, Request], str]
    accept: Callable[[RunState, Observation, Request], Append]
    must_wait: Callable[[RunState, Request], bool] = _never


_ACTIONS: Mapping[RequestAction, _Action] = {
    RequestAction.HOLD: _Action(hold.why_not, hold.accept),
    RequestAction.RESUME: _Action(resume.why_not, resume.accept, resume.must_wait),
    RequestAction.ROLLBACK: _Action(rollback.why_not, rollback.accept, resume.must_wait),
    RequestAction.SKIP: _Action(skip.why_not, skip.accept, skip.must_wait),
    RequestAction.STOP: _Action(stop.why_not, stop.accept),
    RequestAction.APPROVE: _Action(approval.why_not, approval.approve),
    RequestAction.REJECT: _Action(approval.why_not, approval.reject),
}


_WITHOUT_ARGUMENTS = frozenset({RequestAction.HOLD, RequestAction.RESUME, RequestAction.STOP})


def next_answer(state: RunState, observation: Observation) -> Command | None:
    """One record for each request, whatever is asked; a request that must wait lets later ones pass."""
    known = {one.uid for one in state.requests}
    for request in observation.requests:
        if request.uid in known:
            continue
        action = _ACTIONS[request.action]
        why_not = _why_not(state, observation, request, action)
        if why_not:
            return refuse(state, request, why_not)
        if not action.must_wait(state, request):
            return action.accept(state, observation, request)
    return None


def _why_not(state: RunState, observation: Observation, request: Request, action: _Action) -> str:
    if request.outlived:
        return f"{request.action} is refused: it was asked for before this TrainingJob existed"
    if request.action not in LEGAL[state.phase] and not resume.lets_go(state, request):
        return refusal(state, request)
    why = action.why_not(state, observation, request)
    if not why:
        return ""
    if request.action in _WITHOUT_ARGUMENTS or why == why_nobody_is_asked(state):
        return refusal(state, request, why)
    # It is not the phase that is in the way: what is legal there would only mislead.
    return f"{request.action} is refused: {why}"
