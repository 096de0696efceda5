"""The fold of a run's journal: each record's effect on RunState.

`fold(state, record)` is total and pure: the same records always give the same state, so a new operator continues
exactly where the journal ends. Records of fenced operators must be taken out before (`contract.journal.effective`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from trimtab_contract.directives import Action, CheckpointReference, Directive, Reason
from trimtab_contract.journal import JournalRecord, Phase

from trimtab_operator.incidents import RESUMED, Finding, Incident, Latch, Plan, SkipRange
from trimtab_operator.run_state import (
    AcceptedGuard,
    AnsweredRequest,
    Attempt,
    Checkpoint,
    CheckpointState,
    JournalAction,
    PendingEffect,
    Refusal,
    RequestAction,
    RequestState,
    Resumption,
    RunPhase,
    RunState,
    World,
)

_Value = TypeVar("_Value")


def _read(kind: type[_Value], after: Mapping[str, Any] | None, name: str) -> _Value:
    return msgspec.convert((after or {})[name], type=kind)


def fold_all(records: Iterable[JournalRecord]) -> RunState:
    """The state after the given effective records."""
    state = RunState()
    for record in records:
        state = fold(state, record)
    return state


def fold(state: RunState, record: JournalRecord, head: str = "") -> RunState:
    """The state after one more record; `head` is the hash of its bytes."""
    action = JournalAction(record.action)
    state = replace(state, seq=record.seq, head=head, epoch=record.actor.epoch)
    after = record.after or {}
    if record.phase is Phase.RESULT:
        if state.pending is not None and state.pending.id == record.id:
            state = replace(state, pending=None)
        return _with_requests_done(state, record.time)
    if record.phase is Phase.INTENT:
        scope = record.incident or "run"
        state = replace(
            state,
            pending=PendingEffect(id=record.id, action=action, incident=record.incident, after=after),
            effects={**state.effects, scope: state.effects.get(scope, 0) + 1},
        )
    if action in _FOLDS:
        state = _FOLDS[action](state, record)
    if "phase" in after:
        state = replace(state, phase=RunPhase(after["phase"]))
    return _with_requests_done(state, record.time)


def _directive(state: RunState, record: JournalRecord) -> RunState:
    directive = _read(Directive, record.after, "directive")
    if state.directive is not None and directive.skip != state.directive.skip:
        state = replace(state, skip_before=state.directive.skip)
    if directive.attempt > state.attempt:
        attempt = Attempt(
            number=directive.attempt,
            world=directive.world,
            # Without a restore the run begins anew from its seed: nothing of the earlier attempts survives.
            parent=state.attempt if directive.restore else None,
            branch_step=directive.restore.step if directive.restore else 0,
            order=directive.order,
        )
        state = replace(state, attempts=(*state.attempts, attempt))
        if state.incident is not None and directive.restore is not None:
            incident = msgspec.structs.replace(state.incident, restoring_attempt=directive.attempt)
            state = replace(state, incident=incident)
    return replace(state, directive=directive)


def _directive_refused(state: RunState, record: JournalRecord) -> RunState:
    if state.directive is None:
        return state
    reason = record.reason or {}
    refusal = Refusal(
        directive=state.directive, reason=str(reason.get("reason", "")), detail=str(reason.get("message", ""))
    )
    incident = state.incident
    if incident is not None and refusal.reason == Reason.RANGE_ALREADY_TRAINED:
        incident = msgspec.structs.replace(incident, extent=None)
    return replace(state, refusal=refusal, incident=incident)


def _takeover(state: RunState, record: JournalRecord) -> RunState:
    if record.after and record.after.get("directive"):
        return replace(state, directive=_read(Directive, record.after, "directive"))
    return state


def _start_world(state: RunState, record: JournalRecord) -> RunState:
    state = _directive(state, record)
    after = record.after or {}
    number = state.directive.world if state.directive else 0
    return replace(
        state,
        world=World(number=number, spec_generation=int(after.get("generation", 0))),
        restarts=state.restarts + (1 if after.get("counted") else 0),
    )


def _end_world(state: RunState, record: JournalRecord) -> RunState:
    if state.world is None:
        return state
    why = str((record.after or {}).get("why", ""))
    return replace(state, world=msgspec.structs.replace(state.world, told_to_end=why))


def _world_lost(state: RunState, record: JournalRecord) -> RunState:
    if state.world is None:
        return state
    lost = msgspec.structs.replace(state.world, live=False, lost_reason=str((record.after or {}).get("reason", "")))
    incident = state.incident
    if incident is not None and state.phase in {RunPhase.HOLDING, RunPhase.DIAGNOSING}:
        incident = msgspec.structs.replace(incident, world_lost=True)
    stuck = (record.after or {}).get("stuck_step")
    steps = (*state.stuck_steps, int(stuck)) if stuck is not None else state.stuck_steps
    return replace(state, world=lost, incident=incident, stuck_steps=steps)


def _world_restored(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, restored_attempt=int((record.after or {})["attempt"]))


def _policy_accepted(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, guards=(*state.guards, _read(AcceptedGuard, record.after, "guard")))


def _checkpoint_state(target: CheckpointState) -> Callable[[RunState, JournalRecord], RunState]:
    def apply(state: RunState, record: JournalRecord) -> RunState:
        reference = _read(CheckpointReference, record.after, "checkpoint")
        after = record.after or {}
        known = state.checkpoint(reference.key)
        entry = Checkpoint(
            reference=reference,
            attempt=int(after.get("attempt", known.attempt if known else 0)),
            state=target,
            why=str(after.get("why", "")),
        )
        others = tuple(item for item in state.checkpoints if item.reference.key != reference.key)
        ordered = sorted((*others, entry), key=lambda item: (item.reference.step, item.attempt))
        return replace(state, checkpoints=tuple(ordered))

    return apply


def _metric_missing(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    return replace(state, blind=state.blind | {(str(after["policy"]), str(after["metric"]))})


def _rule_fired(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    return replace(state, fired=state.fired | {(str(after["rule"]), int(after["attempt"]), int(after["step"]))})


def _incident_opened(state: RunState, record: JournalRecord) -> RunState:
    latch = _read(Latch, record.after, "latch")
    name = record.incident or ""
    return replace(state, incident=Incident(name=name, latch=latch), incident_names=(*state.incident_names, name))


def _relapsed(state: RunState, record: JournalRecord) -> RunState:
    if state.incident is None:
        return state
    return replace(
        state,
        incident=msgspec.structs.replace(
            state.incident,
            latch=_read(Latch, record.after, "latch"),
            held_step=None,
            replicas_agree=None,
            restoring_attempt=0,
            world_lost=False,
            finding=None,
            finding_why="",
            extent=None,
            extent_done=False,
            asked=False,
            relapses=state.incident.relapses + 1,
        ),
    )


def _change_incident(
    change: Callable[[Incident, Mapping[str, Any]], Incident],
) -> Callable[[RunState, JournalRecord], RunState]:
    def apply(state: RunState, record: JournalRecord) -> RunState:
        if state.incident is None:
            return state
        return replace(state, incident=change(state.incident, record.after or {}))

    return apply


def _upgraded(incident: Incident, after: Mapping[str, Any]) -> Incident:
    return msgspec.structs.replace(incident, latch=msgspec.convert(after["latch"], type=Latch))


def _held(incident: Incident, after: Mapping[str, Any]) -> Incident:
    return msgspec.structs.replace(
        incident,
        held_step=int(after["step"]),
        replicas_agree=after.get("replicas_agree"),
        world_lost=bool(after["lost"]),
    )


def _diagnosed(incident: Incident, after: Mapping[str, Any]) -> Incident:
    return msgspec.structs.replace(incident, finding=Finding(after["finding"]), finding_why=str(after["why"]))


def _target_selected(state: RunState, record: JournalRecord) -> RunState:
    if state.incident is None:
        return state
    plan = _read(Plan, record.after, "plan")
    incident = msgspec.structs.replace(
        state.incident, plans=(*state.incident.plans, plan), restoring_attempt=0, extent=None, extent_done=False
    )
    after, times = record.after or {}, state.rollback_times
    if after.get("counted"):
        times = (*times, datetime.fromisoformat(record.time))
    asked = state.rollbacks_asked + (1 if after.get("asked") else 0)
    return replace(state, incident=incident, rollback_times=times, rollbacks_asked=asked)


def _restored(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, restored_attempt=int((record.after or {})["attempt"]))


def _restore_failed(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    key = str(after["key"])
    if state.incident is not None and state.incident.plans:
        failed = msgspec.structs.replace(state.incident.plans[-1], failed=str(after["why"]))
        incident = msgspec.structs.replace(state.incident, plans=(*state.incident.plans[:-1], failed))
        state = replace(state, incident=incident)
    return replace(state, restore_failures=(*state.restore_failures, key), restored_attempt=0)


def _extent_found(incident: Incident, after: Mapping[str, Any]) -> Incident:
    extent = msgspec.convert(after["skip"], type=SkipRange | None)
    return msgspec.structs.replace(incident, extent=extent, extent_done=True)


def _incident_closed(state: RunState, record: JournalRecord) -> RunState:
    return _close(state, record.outcome or "", record.time)


def _close(state: RunState, outcome: str, time: str) -> RunState:
    if state.incident is None:
        return state
    closed = msgspec.structs.replace(state.incident, outcome=outcome, closed_at=time)
    return replace(state, incident=None, closed=(*state.closed, closed))


def _stopped(state: RunState, record: JournalRecord) -> RunState:
    return _close(_directive(state, record), RunPhase.STOPPED.value, record.time)


def _failed(state: RunState, record: JournalRecord) -> RunState:
    """The run is over until somebody edits it, and so is an open incident: what it skipped stays skipped."""
    after = record.after or {}
    state = _close(state, RunPhase.FAILED.value, record.time)
    if state.world is not None:
        state = replace(state, world=msgspec.structs.replace(state.world, live=False))
    return replace(state, failure=str(after.get("message", "")), failed_generation=int(after.get("generation", 0)))


def _needs_human(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, question=str((record.reason or {}).get("message", "")))


def _reopened(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, failure="", failed_generation=0, restarts=0, stuck_steps=())


def _run_requested(state: RunState, record: JournalRecord) -> RunState:
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
    if request.action is RequestAction.ROLLBACK and state.incident is not None:
        return replace(state, incident=msgspec.structs.replace(state.incident, asked=True))
    if request.action is RequestAction.RESUME:
        resumption = _read(Resumption, after, "resumption")
        state = replace(state, resumptions=(*state.resumptions, resumption), question="")
        # Where a probation was interrupted it goes on, and its incident stays open.
        probation = after["phase"] == RunPhase.PROBATION
        return state if probation else _close(state, RESUMED, record.time)
    return state


def _with_requests_done(state: RunState, time: str) -> RunState:
    """Accepted requests are done when the run has taken up what they ask for."""
    if not any(_is_done(state, request) for request in state.requests):
        return state
    requests = tuple(
        msgspec.structs.replace(request, state=RequestState.DONE, done_at=time) if _is_done(state, request) else request
        for request in state.requests
    )
    return replace(state, requests=requests)


def _is_done(state: RunState, request: AnsweredRequest) -> bool:
    if request.state is not RequestState.ACCEPTED or state.pending is not None:
        return False
    match request.action:
        case RequestAction.STOP:
            return state.phase is RunPhase.STOPPED
        case RequestAction.RESUME:
            return state.directive is not None and state.directive.action is not Action.HOLD
        case RequestAction.ROLLBACK:
            return state.phase not in _ROLLING_BACK


_ROLLING_BACK = frozenset(
    {
        RunPhase.DIAGNOSING,
        RunPhase.SELECTING,
        RunPhase.AWAITING_APPROVAL,
        RunPhase.RESTORING,
        RunPhase.DIAGNOSING_RESTORED,
    }
)

_FOLDS: dict[JournalAction, Callable[[RunState, JournalRecord], RunState]] = {
    JournalAction.TAKEOVER: _takeover,
    JournalAction.POLICY_ACCEPTED: _policy_accepted,
    JournalAction.START_WORLD: _start_world,
    JournalAction.END_WORLD: _end_world,
    JournalAction.WORLD_LOST: _world_lost,
    JournalAction.WORLD_RESTORED: _world_restored,
    JournalAction.DIRECTIVE: _directive,
    JournalAction.DIRECTIVE_REFUSED: _directive_refused,
    JournalAction.COMPLETED: _directive,
    JournalAction.STOPPED: _stopped,
    JournalAction.COMMITTED: _checkpoint_state(CheckpointState.COMMITTED),
    JournalAction.VERIFIED: _checkpoint_state(CheckpointState.VERIFIED),
    JournalAction.CERTIFIED: _checkpoint_state(CheckpointState.CERTIFIED),
    JournalAction.QUARANTINED: _checkpoint_state(CheckpointState.QUARANTINED),
    JournalAction.METRIC_MISSING: _metric_missing,
    JournalAction.RULE_FIRED: _rule_fired,
    JournalAction.INCIDENT_OPENED: _incident_opened,
    JournalAction.RELAPSED: _relapsed,
    JournalAction.UPGRADED: _change_incident(_upgraded),
    JournalAction.HELD: _change_incident(_held),
    JournalAction.DIAGNOSED: _change_incident(_diagnosed),
    JournalAction.TARGET_SELECTED: _target_selected,
    JournalAction.RESTORED: _restored,
    JournalAction.RESTORE_FAILED: _restore_failed,
    JournalAction.EXTENT_FOUND: _change_incident(_extent_found),
    JournalAction.INCIDENT_CLOSED: _incident_closed,
    JournalAction.NEEDS_HUMAN: _needs_human,
    JournalAction.FAILED: _failed,
    JournalAction.REOPENED: _reopened,
    JournalAction.RUN_REQUESTED: _run_requested,
}
