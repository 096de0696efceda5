"""What may be asked in which phase."""

from collections.abc import Mapping

from trimtab_operator.automation import may_be_let_go
from trimtab_operator.observation import Request
from trimtab_operator.run_state import RequestAction, RunPhase, RunState

_A, _P = RequestAction, RunPhase
_AHEAD = (_A.SKIP, _A.STOP)
_TRAINS = (_A.HOLD, _A.ROLLBACK, _A.SKIP, _A.STOP)
_WAITS = (_A.RESUME, _A.ROLLBACK, _A.SKIP, _A.STOP)

LEGAL: Mapping[RunPhase, tuple[RequestAction, ...]] = {
    _P.PENDING: _AHEAD,
    _P.WATCHING: _TRAINS,
    _P.HOLDING: _WAITS,
    _P.DIAGNOSING: _AHEAD,
    _P.SELECTING: _AHEAD,
    _P.AWAITING_APPROVAL: (_A.APPROVE, _A.REJECT, _A.SKIP, _A.STOP),
    _P.RESTORING: _AHEAD,
    _P.DIAGNOSING_RESTORED: (_A.STOP,),
    _P.PROBATION: _TRAINS,
    _P.NEEDS_HUMAN: _WAITS,
    _P.COMPLETED: (),
    _P.STOPPED: (),
    _P.FAILED: (_A.STOP,),
}
"""What may be asked in a phase. What else it takes is said by each action's own module."""


def why_nobody_is_asked(state: RunState) -> str:
    """Why a run that holds waits for no answer; empty where it does."""
    incident = state.incident
    if state.phase is not _P.HOLDING or incident is None or incident.paused:
        return ""
    if incident.latch.asked is not None:
        return f"{incident.latch.asked.by} has asked for a rollback, which is under way"
    return f"the rule that fired asks for {incident.latch.action}"


def refusal(state: RunState, request: Request, why: str = "") -> str:
    """A refusal in words: the phase, why, and what is legal there."""
    closed = {request.action} if request.action in LEGAL[state.phase] else set[RequestAction]()
    if why_nobody_is_asked(state):
        closed |= {_A.RESUME, _A.ROLLBACK}
    open_ones = [action.value for action in LEGAL[state.phase] if action not in closed]
    if may_be_let_go(state) and _A.RESUME.value not in open_ones:
        # The run waits for the breaker, and a person may let it go on.
        open_ones.insert(0, _A.RESUME.value)
    words = " and ".join(filter(None, (", ".join(open_ones[:-1]), *open_ones[-1:]))) or "nothing"
    place = f"{request.action} is refused in phase {state.phase}"
    return f"{place}{': ' if why else ''}{why}; what is legal there: {words}"


def how_to_answer(job: str) -> str:
    """What people type when a run waits for them."""
    return f"say how it goes on with `trimtab job resume {job} --reason WHY`, `rollback` or `stop`"
