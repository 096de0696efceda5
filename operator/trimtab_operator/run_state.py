"""RunState: the fold of a run's journal, and nothing else.

`fold(state, record)` is total and pure: the same records always give the same state, so a new operator continues
exactly where the journal ends. Records of fenced operators must be taken out before (`contract.journal.effective`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from trimtab_contract.directives import CheckpointReference, Directive
from trimtab_contract.journal import GENESIS, JournalRecord, Phase

from trimtab_operator.incidents import Finding, Incident, Latch, Plan, PolicyIdentity, SkipRange


class RunPhase(StrEnum):
    """`status.phase` of a TrainingJob."""

    PENDING = "Pending"
    WATCHING = "Watching"
    HOLDING = "Holding"
    DIAGNOSING = "Diagnosing"
    SELECTING = "Selecting"
    AWAITING_APPROVAL = "AwaitingApproval"
    RESTORING = "Restoring"
    DIAGNOSING_RESTORED = "DiagnosingRestored"
    PROBATION = "Probation"
    NEEDS_HUMAN = "NeedsHuman"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"


class JournalAction(StrEnum):
    """Every action a journal record can name."""

    TAKEOVER = "Takeover"
    POLICY_ACCEPTED = "PolicyAccepted"
    START_WORLD = "StartWorld"
    END_WORLD = "EndWorld"
    WORLD_RUNNING = "WorldRunning"
    WORLD_LOST = "WorldLost"
    WORLD_RESTORED = "WorldRestored"
    DIRECTIVE = "Directive"
    COMMITTED = "Committed"
    VERIFIED = "Verified"
    CERTIFIED = "Certified"
    QUARANTINED = "Quarantined"
    RULE_FIRED = "RuleFired"
    INCIDENT_OPENED = "IncidentOpened"
    RELAPSED = "Relapsed"
    UPGRADED = "Upgraded"
    HELD = "Held"
    DIAGNOSED = "Diagnosed"
    TARGET_SELECTED = "TargetSelected"
    RESTORED = "Restored"
    RESTORE_FAILED = "RestoreFailed"
    EXTENT_FOUND = "ExtentFound"
    INCIDENT_CLOSED = "IncidentClosed"
    NEEDS_HUMAN = "NeedsHuman"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REOPENED = "Reopened"
    RUN_ENDED = "RunEnded"


class CheckpointState(StrEnum):
    """How far a checkpoint can be trusted; each change is a journal record with its evidence."""

    COMMITTED = "Committed"
    VERIFIED = "Verified"
    CERTIFIED = "Certified"
    QUARANTINED = "Quarantined"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of training; it continues `parent` up to and including `branch_step`."""

    number: int
    world: int
    parent: int | None
    branch_step: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint the journal knows."""

    reference: CheckpointReference
    attempt: int
    state: CheckpointState
    why: str = ""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The newest Job of the run. `told_to_end` says why its pods were told to end, `lost_reason` how it ended."""

    number: int
    live: bool = True
    told_to_end: str = ""
    lost_reason: str = ""
    spec_generation: int = 0


class PendingEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An intent without a result: the effect may or may not have happened and is repeated."""

    id: str
    action: JournalAction
    incident: str | None
    after: dict[str, Any]


class AcceptedGuard(msgspec.Struct, frozen=True, kw_only=True):
    """The policies that judge from a record on, in order; the texts lie in the audit bucket under their hashes."""

    policies: tuple[PolicyIdentity, ...]
    mode: str
    from_attempt: int
    from_step: int


@dataclass(frozen=True, slots=True)
class RunState:
    """All that decisions may depend on, besides what is observed now."""

    seq: int = 0
    head: str = GENESIS
    epoch: int = 0
    phase: RunPhase = RunPhase.PENDING
    attempts: tuple[Attempt, ...] = ()
    world: World | None = None
    directive: Directive | None = None
    restored_attempt: int = 0
    pending: PendingEffect | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    restore_failures: tuple[str, ...] = ()
    incident: Incident | None = None
    closed: tuple[Incident, ...] = ()
    incident_names: tuple[str, ...] = ()
    effects: Mapping[str, int] = field(default_factory=dict[str, int])
    rollback_times: tuple[datetime, ...] = ()
    restarts: int = 0
    stuck_steps: tuple[int, ...] = ()
    guards: tuple[AcceptedGuard, ...] = ()
    fired: frozenset[tuple[str, int, int]] = frozenset()
    failure: str = ""
    failed_generation: int = 0
    question: str = ""
    """Why a human is asked."""

    @property
    def attempt(self) -> int:
        """The newest attempt, 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def ended(self) -> bool:
        """Whether nothing the Job does can change the run any more."""
        return self.phase in {RunPhase.COMPLETED, RunPhase.STOPPED}

    @property
    def world_lives(self) -> bool:
        """Whether the newest world still has processes that could obey."""
        return self.world is not None and self.world.live

    def owner(self, step: int) -> int:
        """The attempt whose record and checkpoint of `step` belong to the surviving history."""
        by_number = {attempt.number: attempt for attempt in self.attempts}
        current = self.attempts[-1]
        while current.parent is not None and step <= current.branch_step:
            current = by_number[current.parent]
        return current.number

    def surviving(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint belongs to the surviving history."""
        return bool(self.attempts) and self.owner(checkpoint.reference.step) == checkpoint.attempt

    def guard_at(self, attempt: int, step: int) -> AcceptedGuard | None:
        """The policies in force for a record."""
        before = [guard for guard in self.guards if (guard.from_attempt, guard.from_step) <= (attempt, step)]
        return before[-1] if before else (self.guards[0] if self.guards else None)

    def checkpoint(self, key: str) -> Checkpoint | None:
        """The checkpoint of a manifest key."""
        return next((item for item in self.checkpoints if item.reference.key == key), None)

    def next_id(self, incident: str | None) -> str:
        """The identity of the next effect: its index within the incident, or within the run outside one."""
        scope = incident or "run"
        return f"{scope}#{self.effects.get(scope, 0) + 1}"


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
        return state
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
    return state


def _directive(state: RunState, record: JournalRecord) -> RunState:
    directive = _read(Directive, record.after, "directive")
    if directive.attempt > state.attempt:
        attempt = Attempt(
            number=directive.attempt,
            world=directive.world,
            # Without a restore the run begins anew from its seed: nothing of the earlier attempts survives.
            parent=state.attempt if directive.restore else None,
            branch_step=directive.restore.step if directive.restore else 0,
        )
        state = replace(state, attempts=(*state.attempts, attempt))
        if state.incident is not None and directive.restore is not None:
            incident = msgspec.structs.replace(state.incident, restoring_attempt=directive.attempt)
            state = replace(state, incident=incident)
    return replace(state, directive=directive)


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
    times = state.rollback_times
    if (record.after or {}).get("counted"):
        times = (*times, datetime.fromisoformat(record.time))
    return replace(state, incident=incident, rollback_times=times)


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


_FOLDS: dict[JournalAction, Callable[[RunState, JournalRecord], RunState]] = {
    JournalAction.TAKEOVER: _takeover,
    JournalAction.POLICY_ACCEPTED: _policy_accepted,
    JournalAction.START_WORLD: _start_world,
    JournalAction.END_WORLD: _end_world,
    JournalAction.WORLD_LOST: _world_lost,
    JournalAction.WORLD_RESTORED: _world_restored,
    JournalAction.DIRECTIVE: _directive,
    JournalAction.COMPLETED: _directive,
    JournalAction.STOPPED: _stopped,
    JournalAction.COMMITTED: _checkpoint_state(CheckpointState.COMMITTED),
    JournalAction.VERIFIED: _checkpoint_state(CheckpointState.VERIFIED),
    JournalAction.CERTIFIED: _checkpoint_state(CheckpointState.CERTIFIED),
    JournalAction.QUARANTINED: _checkpoint_state(CheckpointState.QUARANTINED),
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
}
