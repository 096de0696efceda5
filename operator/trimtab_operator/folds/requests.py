"""The fold of what people ask for: answers, the incidents they open, and what became of each request. Pure."""

from dataclasses import replace

import msgspec
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action
from trimtab_contract.journal import JournalRecord

from trimtab_operator.incidents import RESUMED, Incident, Latch, Wishes
from trimtab_operator.run_state import (
    AnsweredRequest,
    Refusal,
    RequestAction,
    RequestState,
    Resumption,
    RunPhase,
    RunState,
)


def run_requested(state: RunState, record: JournalRecord) -> RunState:
    """The answer to a request, and what an accepted one changes."""
    after = record.after or {}
    request = msgspec.convert(
        {
            **after["request"],
            "state": record.outcome,
            "message": str((record.reason or {}).get("message", "")),
            "time": record.time,
        },
        type=AnsweredRequest,
    )
    state = replace(state, requests=(*state.requests, request))
    if request.state is RequestState.REFUSED:
        return state
    if "let_go" in after:
        return replace(state, automation=None, let_go=str(after["let_go"]))
    if "latch" in after:
        state = _opened_by_person(state, record)
    if request.action is RequestAction.ROLLBACK and state.incident is not None:
        wishes = msgspec.convert(after.get("wishes", {}), type=Wishes)
        return replace(state, incident=msgspec.structs.replace(state.incident, asked=True, wishes=wishes))
    if request.action is RequestAction.APPROVE:
        return _approved(state, request.by)
    if request.action is RequestAction.REJECT:
        return _rejected(replace(state, question=request.message), request.message)
    if request.action is RequestAction.RESUME:
        resumption = msgspec.convert(after["resumption"], type=Resumption)
        state = replace(state, resumptions=(*state.resumptions, resumption), question="")
        # Where a probation was interrupted it goes on, and its incident stays open.
        probation = after["phase"] == RunPhase.PROBATION
        return state if probation else closed(state, RESUMED, record.time)
    return state


def _opened_by_person(state: RunState, record: JournalRecord) -> RunState:
    """A person holds the run or takes it back: an incident of its own, or within a probation the one that is open."""
    latch, name = msgspec.convert((record.after or {})["latch"], type=Latch), record.incident or ""
    held = (record.after or {}).get("held_step")
    if state.incident is None:
        incident = Incident(name=name, latch=latch, held_step=held)
        return replace(state, incident=incident, incident_names=(*state.incident_names, name))
    incident = msgspec.structs.replace(
        state.incident,
        latch=latch,
        held_step=held,
        replicas_agree=None,
        world_lost=False,
        asked=False,
        wishes=Wishes(),
    )
    return replace(state, incident=incident)


def _approved(state: RunState, by: str) -> RunState:
    """A rollback that a person lets happen counts against no budget, but it counts."""
    incident = state.incident
    if incident is None or incident.plan is None:
        return state
    plan = msgspec.structs.replace(incident.plan, approved_by=by)
    earlier = incident.plans[-2] if len(incident.plans) > 1 else None
    # Another target for one that failed, or a wider range, is the same rollback.
    goes_on = (
        earlier is not None and bool(earlier.approved_by) and bool(earlier.failed or earlier.target == plan.target)
    )
    incident = msgspec.structs.replace(incident, plans=(*incident.plans[:-1], plan))
    return replace(state, incident=incident, rollbacks_asked=state.rollbacks_asked + (0 if goes_on else 1))


def _rejected(state: RunState, why: str) -> RunState:
    incident = state.incident
    if incident is None or incident.plan is None:
        return state
    plan = msgspec.structs.replace(incident.plan, rejected=why)
    return replace(state, incident=msgspec.structs.replace(incident, plans=(*incident.plans[:-1], plan)))


def skip_refused(state: RunState, refusal: Refusal) -> RunState:
    """Whose windows were refused: the plan's, which changes nothing then, or those that people asked for."""
    before, incident = SkipLedger(state.skip_before), state.incident
    added = tuple(
        one.uid
        for one in state.requests
        if one.open_skip is not None
        and SkipLedger(refusal.directive.skip).covers(*one.open_skip)
        and not before.covers(*one.open_skip)
    )
    requests = tuple(
        msgspec.structs.replace(one, state=RequestState.REFUSED, message=refusal.detail) if one.uid in added else one
        for one in state.requests
    )
    state = replace(state, requests=requests)
    extent = incident.extent if incident is not None else None
    if added and (extent is None or before.covers(extent.first, extent.last)):
        return replace(state, refusal=msgspec.structs.replace(refusal, asked=True))
    if incident is not None:
        incident = msgspec.structs.replace(incident, extent=None, skipped=None)
    return replace(state, incident=incident)


def skipped(state: RunState, record: JournalRecord) -> RunState:
    """A world has taken up what people asked for."""
    taken = (record.after or {})["requests"]
    return replace(
        state,
        requests=tuple(
            msgspec.structs.replace(one, state=RequestState.DONE, done_at=record.time) if one.uid in taken else one
            for one in state.requests
        ),
    )


def closed(state: RunState, outcome: str, time: str) -> RunState:
    """The state with its incident, if one is open, closed."""
    if state.incident is None:
        return state
    closed = msgspec.structs.replace(state.incident, outcome=outcome, closed_at=time)
    return replace(state, incident=None, closed=(*state.closed, closed))


def with_requests_done(state: RunState, time: str) -> RunState:
    """Accepted requests are done when the run has taken up what they ask for, and abandoned when it cannot any more."""
    if state.pending is not None or not any(one.state is RequestState.ACCEPTED for one in state.requests):
        return state
    return replace(state, requests=tuple(_settled(state, one, time) for one in state.requests))


def _settled(state: RunState, request: AnsweredRequest, time: str) -> AnsweredRequest:
    if request.state is not RequestState.ACCEPTED:
        return request
    why = _why_abandoned(state, request)
    if why:
        message = f"{request.message}: this did not come about, for {why}"
        return msgspec.structs.replace(request, state=RequestState.ABANDONED, message=message, done_at=time)
    if _is_done(state, request):
        return msgspec.structs.replace(request, state=RequestState.DONE, done_at=time)
    return request


def _why_abandoned(state: RunState, request: AnsweredRequest) -> str:
    """Why what was accepted will not be done; empty while it still can, and where it is."""
    if request.action in {RequestAction.STOP, RequestAction.REJECT}:
        return ""
    if state.ended:
        return f"the run was {state.phase} before"
    if request.action is RequestAction.ROLLBACK and state.phase is RunPhase.NEEDS_HUMAN:
        return f"the run needs a person: {state.question}"
    return ""


def _is_done(state: RunState, request: AnsweredRequest) -> bool:
    match request.action:
        case RequestAction.HOLD:
            incident = state.incident
            return state.phase is not RunPhase.HOLDING or (incident is not None and incident.held_step is not None)
        case RequestAction.SKIP:
            return False
        case RequestAction.STOP:
            return state.phase is RunPhase.STOPPED
        case RequestAction.APPROVE:
            return state.phase not in {RunPhase.RESTORING, RunPhase.DIAGNOSING_RESTORED}
        case RequestAction.REJECT:
            return True
        case RequestAction.RESUME:
            return state.directive is not None and state.directive.action is not Action.HOLD
        case RequestAction.ROLLBACK:
            holds = state.phase is RunPhase.HOLDING and state.incident is not None and state.incident.asked
            return state.phase not in _ROLLING_BACK and not holds


_ROLLING_BACK = frozenset(
    {
        RunPhase.DIAGNOSING,
        RunPhase.SELECTING,
        RunPhase.AWAITING_APPROVAL,
        RunPhase.RESTORING,
        RunPhase.DIAGNOSING_RESTORED,
    }
)
