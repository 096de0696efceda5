"""The fold of a run's journal: each record's effect on RunState.

`fold(state, record)` is total and pure: the same records always give the same state, so a new operator continues
exactly where the journal ends. Records of fenced operators must be taken out before (`contract.journal.effective`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec
from trimtab_contract.directives import CheckpointReference, Directive, Reason
from trimtab_contract.journal import JournalRecord, Phase

from trimtab_operator.incidents import (
    KEPT_PHASES,
    Finding,
    Incident,
    Latch,
    Measurement,
    PhaseTime,
    Plan,
    SkipRange,
    Wishes,
    WithheldStep,
)
from trimtab_operator.notices import KEPT_NOTICES, notice_of
from trimtab_operator.request_fold import closed, run_requested, skip_refused, skipped, with_requests_done
from trimtab_operator.run_state import (
    KEPT_DELETIONS,
    AcceptedGuard,
    Attempt,
    AutomationHold,
    Checkpoint,
    CheckpointState,
    JournalAction,
    PendingEffect,
    Refusal,
    RunPhase,
    RunState,
    Source,
    World,
)
from trimtab_operator.suspects import avoided

KEPT_FAILURES = 16
"""So many of a run's newest failures are remembered for the breaker over all runs."""

_FAULTS = frozenset({"Crashed", "Hung", Reason.STUCK_NON_FINITE.value})
"""How a world is lost by a fault: no person told it to end, nor was it evicted or preempted, a cluster's routine."""

_Value = TypeVar("_Value")


def _read(kind: type[_Value], after: Mapping[str, Any] | None, name: str) -> _Value:
    """A value of a record; one with a field that is not known here was written by a newer operator, and is not read."""
    value = (after or {})[name]
    known = getattr(kind, "__struct_encode_fields__", None)
    if known is not None and isinstance(value, Mapping):
        unknown = sorted(set(cast("Mapping[str, Any]", value)) - set(known))
        if unknown:
            raise ValueError(f"{name} has unknown fields: {', '.join(unknown)}")
    return msgspec.convert(value, type=kind)


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
    if action is JournalAction.DELETING:
        return _deleting(state, record) if record.phase is Phase.INTENT else _deleted(state, record)
    if record.phase is Phase.RESULT:
        if state.pending is not None and state.pending.id == record.id:
            state = replace(state, pending=None)
        return with_requests_done(state, record.time)
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
        state = _in_phase(state, RunPhase(after["phase"]), record.time)
    notice = notice_of(record)
    if notice is not None:
        state = replace(state, owed=(*state.owed, notice)[-KEPT_NOTICES:])
    return with_requests_done(state, record.time)


def _in_phase(state: RunState, phase: RunPhase, time: str) -> RunState:
    """The run in a phase; an open incident notes when each began, a relapse also where the phase stays Holding."""
    incident = state.incident
    if incident is not None and (not incident.phases or incident.phases[-1].phase != phase):
        phases = (*incident.phases, PhaseTime(phase=phase.value, time=time))[-KEPT_PHASES:]
        incident = msgspec.structs.replace(incident, phases=phases)
    if incident is not None and phase is RunPhase.PROBATION:
        incident = incident.gone_on()
    return replace(state, phase=phase, incident=incident)


def _with_failure(state: RunState, record: JournalRecord) -> RunState:
    moment = datetime.fromisoformat(record.time).timestamp()
    return replace(state, failures=(*state.failures, moment)[-KEPT_FAILURES:])


def _directive(state: RunState, record: JournalRecord) -> RunState:
    directive = _read(Directive, record.after, "directive")
    if state.directive is not None and directive.skip != state.directive.skip:
        state = replace(state, skip_before=state.directive.skip)
    if directive.attempt > state.attempt:
        attempt = Attempt(
            number=directive.attempt,
            world=directive.world,
            # Without a restore the run begins anew from its seed: nothing of the earlier attempts survives.
            parent=(state.attempt or None) if directive.restore else None,
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
    state = replace(state, refusal=refusal)
    return skip_refused(state, refusal) if refusal.reason == Reason.RANGE_ALREADY_TRAINED else state


def _takeover(state: RunState, record: JournalRecord) -> RunState:
    if record.after and record.after.get("directive"):
        return replace(state, directive=_read(Directive, record.after, "directive"))
    return state


def _start_world(state: RunState, record: JournalRecord) -> RunState:
    state = _directive(state, record)
    after = record.after or {}
    if "source" in after:
        state = state.continuing(_read(Source, after, "source"))
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
    state = replace(state, world=lost, incident=incident, stuck_steps=steps)
    return _with_failure(state, record) if lost.lost_reason in _FAULTS else state


def _world_restored(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, restored_attempt=int((record.after or {})["attempt"]))


def _policy_accepted(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, guards=(*state.guards, _read(AcceptedGuard, record.after, "guard")))


def _checkpoint_state(target: CheckpointState) -> Callable[[RunState, JournalRecord], RunState]:
    def apply(state: RunState, record: JournalRecord) -> RunState:
        reference = _read(CheckpointReference, record.after, "checkpoint")
        after = record.after or {}
        known = state.checkpoint(reference.key)
        if known is not None and known.state is CheckpointState.DELETING:
            return state
        entry = Checkpoint(
            reference=reference,
            attempt=int(after.get("attempt", known.attempt if known else 0)),
            state=target,
            why=str(after.get("why", "")),
            loss=after.get("loss", known.loss if known else None),
        )
        others = tuple(item for item in state.checkpoints if item.reference.key != reference.key)
        ordered = sorted((*others, entry), key=lambda item: (item.reference.step, item.attempt))
        return replace(state, checkpoints=tuple(ordered))

    return apply


def _deleting(state: RunState, record: JournalRecord) -> RunState:
    """An intent that nothing waits for: the data go beside all that is decided meanwhile, and it counts as no effect.

    Unlike other effects it need not be repeated before anything else happens, for the checkpoint is out of all choices.
    """
    return _checkpoint_state(CheckpointState.DELETING)(state, record)


def _deleted(state: RunState, record: JournalRecord) -> RunState:
    key = str((record.after or {})["key"])
    known = state.checkpoint(key)
    if known is None:
        return state
    others = tuple(item for item in state.checkpoints if item.reference.key != key)
    if record.error is None:
        return replace(state, checkpoints=others, deleted=(*state.deleted, key)[-KEPT_DELETIONS:])
    entry = msgspec.structs.replace(known, state=CheckpointState.QUARANTINED, why=record.error)
    ordered = sorted((*others, entry), key=lambda item: (item.reference.step, item.attempt))
    return replace(state, checkpoints=tuple(ordered), spared=(*state.spared, key))


def _metric_missing(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    return replace(state, blind=state.blind | {(str(after["policy"]), str(after["metric"]))})


def _rule_fired(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    return replace(state, fired=state.fired | {(str(after["rule"]), int(after["attempt"]), int(after["step"]))})


def _incident_opened(state: RunState, record: JournalRecord) -> RunState:
    latch = _read(Latch, record.after, "latch")
    name = record.incident or ""
    state = replace(
        state,
        incident=Incident(name=name, latch=latch, baseline=latch.healthy),
        incident_names=(*state.incident_names, name),
    )
    return _with_failure(state, record) if latch.asked is None else state


def _relapsed(state: RunState, record: JournalRecord) -> RunState:
    incident = state.incident
    if incident is None:
        return state
    latch = _read(Latch, record.after, "latch")
    furthest = incident.furthest or incident.latch.fired_step
    gets_on = latch.first_bad_step > furthest + latch.remediation.margin
    return replace(
        _with_failure(state, record),
        incident=msgspec.structs.replace(
            incident,
            latch=latch,
            plans=_with_relapse(incident.plans, latch),
            furthest=latch.fired_step if gets_on else furthest,
            stalls=0 if gets_on else incident.stalls + 1,
            extended_to=0,
            extensions=0,
            doubts=(),
            held_step=None,
            replicas_agree=None,
            restoring_attempt=0,
            world_lost=False,
            finding=None,
            finding_why="",
            missing=(),
            state_finite=None,
            withheld=None,
            suspect=None,
            restored=None,
            diagnosed_attempt=0,
            extent=None,
            extent_done=False,
            asked=False,
            wishes=Wishes(),
            relapses=incident.relapses + 1,
        ),
    )


def _with_relapse(plans: tuple[Plan, ...], latch: Latch) -> tuple[Plan, ...]:
    if not plans:
        return plans
    why = f"{latch.rule} fired at step {latch.fired_step} behind it"
    return (*plans[:-1], msgspec.structs.replace(plans[-1], relapsed=why))


def _probation_extended(state: RunState, record: JournalRecord) -> RunState:
    incident, after = state.incident, record.after or {}
    if incident is None:
        return state
    longer = msgspec.structs.replace(
        incident,
        extended_to=int(after["until"]),
        extensions=incident.extensions + 1,
        doubts=tuple(str(doubt) for doubt in after["doubts"]),
    )
    return replace(state, incident=longer)


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
        state_finite=None if after.get("nonfinite_state") is None else not after["nonfinite_state"],
        withheld=_read(WithheldStep, after, "withheld") if after.get("withheld") else None,
    )


def _run_held(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    nodes = [str(one["node"]) for one in after.get("suspects") or ()]
    state = replace(state, suspect_nodes=avoided(state.suspect_nodes, nodes))
    return _change_incident(_held)(state, record)


def _diagnosed(incident: Incident, after: Mapping[str, Any]) -> Incident:
    changes: dict[str, Any] = {
        name: _read(Measurement, after, name) for name in ("suspect", "restored") if after.get(name) is not None
    }
    return msgspec.structs.replace(
        incident,
        finding=Finding(after["finding"]),
        finding_why=str(after["why"]),
        missing=tuple(after.get("missing") or ()),
        diagnosed_attempt=int(after.get("attempt", 0)),
        **changes,
    )


def _target_selected(state: RunState, record: JournalRecord) -> RunState:
    if state.incident is None:
        return state
    plan = _read(Plan, record.after, "plan")
    after, times = record.after or {}, state.rollback_times
    incident = msgspec.structs.replace(
        state.incident,
        plans=(*state.incident.plans, plan),
        restoring_attempt=0,
        extent=None,
        extent_done=False,
        deadline=str(after.get("deadline", "")),
    )
    if after.get("counted"):
        times = (*times, datetime.fromisoformat(record.time))
    asked = state.rollbacks_asked + (1 if after.get("asked") else 0)
    return replace(state, incident=incident, rollback_times=times, rollbacks_asked=asked)


def _restored(state: RunState, record: JournalRecord) -> RunState:
    incident = state.incident.put_in_place() if state.incident is not None else None
    return replace(state, incident=incident, restored_attempt=int((record.after or {})["attempt"]))


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
    if "plan" in after:  # a wider one, which waits for its own approval
        plans = (*incident.plans, msgspec.convert(after["plan"], type=Plan))
        incident = msgspec.structs.replace(incident, plans=plans, deadline=str(after["deadline"]))
    return msgspec.structs.replace(incident, extent=extent, extent_done=True)


def _incident_closed(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    if state.incident is not None and "doubts" in after:
        doubts = tuple(str(doubt) for doubt in after["doubts"])
        state = replace(state, incident=msgspec.structs.replace(state.incident, doubts=doubts))
    return closed(state, record.outcome or "", record.time)


def _stopped(state: RunState, record: JournalRecord) -> RunState:
    return closed(_directive(state, record), RunPhase.STOPPED.value, record.time)


def _failed(state: RunState, record: JournalRecord) -> RunState:
    """The run is over until somebody edits it, and so is an open incident: what it skipped stays skipped."""
    after = record.after or {}
    state = closed(state, RunPhase.FAILED.value, record.time)
    if state.world is not None:
        state = replace(state, world=msgspec.structs.replace(state.world, live=False))
    return replace(state, failure=str(after.get("message", "")), failed_generation=int(after.get("generation", 0)))


def _needs_human(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, question=str((record.reason or {}).get("message", "")))


def _reopened(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, failure="", failed_generation=0, restarts=0, stuck_steps=())


def _snapshot(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, snapshot=record.seq)


def _automation_held(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, automation=_read(AutomationHold, record.after, "hold"))


def _automation_released(state: RunState, _record: JournalRecord) -> RunState:
    return replace(state, automation=None)


def _notice_sent(state: RunState, record: JournalRecord) -> RunState:
    sent = str((record.after or {})["notice"])
    return replace(state, owed=tuple(notice for notice in state.owed if notice.id != sent))


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
    JournalAction.PROBATION_EXTENDED: _probation_extended,
    JournalAction.UPGRADED: _change_incident(_upgraded),
    JournalAction.HELD: _run_held,
    JournalAction.DIAGNOSED: _change_incident(_diagnosed),
    JournalAction.TARGET_SELECTED: _target_selected,
    JournalAction.RESTORED: _restored,
    JournalAction.RESTORE_FAILED: _restore_failed,
    JournalAction.EXTENT_FOUND: _change_incident(_extent_found),
    JournalAction.SKIPPED: skipped,
    JournalAction.INCIDENT_CLOSED: _incident_closed,
    JournalAction.NEEDS_HUMAN: _needs_human,
    JournalAction.FAILED: _failed,
    JournalAction.REOPENED: _reopened,
    JournalAction.RUN_REQUESTED: run_requested,
    JournalAction.SNAPSHOT: _snapshot,
    JournalAction.AUTOMATION_HELD: _automation_held,
    JournalAction.AUTOMATION_RELEASED: _automation_released,
    JournalAction.NOTICE_SENT: _notice_sent,
}
