"""The fold of a run's journal: each record's effect on RunState.

`fold(state, record)` is total and pure: the same records always give the same state, so a new operator continues
exactly where the journal ends. Records of fenced operators must be taken out before (`contract.journal.effective`).
What a record changes stands in `folds/`, by the kind of thing it is about; the run as a whole is here.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec
from trimtab_contract.journal import JournalRecord, Phase

from trimtab_operator.folds import checkpoints, incidents, read_backs, requests, worlds
from trimtab_operator.folds.values import read
from trimtab_operator.notices import KEPT_NOTICES, notice_of
from trimtab_operator.run_state import (
    AcceptedGuard,
    AutomationHold,
    CheckpointState,
    JournalAction,
    PendingEffect,
    RunPhase,
    RunState,
)


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
        folded = checkpoints.deleting if record.phase is Phase.INTENT else checkpoints.deleted
        return folded(state, record)
    if action is JournalAction.READ_BACK:
        folded = read_backs.read_back_ordered if record.phase is Phase.INTENT else read_backs.read_back_over
        return folded(state, record)
    if record.phase is Phase.RESULT:
        if state.pending is not None and state.pending.id == record.id:
            state = replace(state, pending=None)
        return requests.with_requests_done(state, record.time)
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
        state = incidents.in_phase(state, RunPhase(after["phase"]), record.time)
    notice = notice_of(record)
    if notice is not None:
        state = replace(state, owed=(*state.owed, notice)[-KEPT_NOTICES:])
    return requests.with_requests_done(state, record.time)


def _policy_accepted(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, guards=(*state.guards, read(AcceptedGuard, record.after, "guard")))


def _metric_missing(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    return replace(state, blind=state.blind | {(str(after["policy"]), str(after["metric"]))})


def _rule_fired(state: RunState, record: JournalRecord) -> RunState:
    after = record.after or {}
    return replace(state, fired=state.fired | {(str(after["rule"]), int(after["attempt"]), int(after["step"]))})


def _stopped(state: RunState, record: JournalRecord) -> RunState:
    return requests.closed(worlds.directed(state, record), RunPhase.STOPPED.value, record.time)


def _failed(state: RunState, record: JournalRecord) -> RunState:
    """The run is over until somebody edits it, and so is an open incident: what it skipped stays skipped."""
    after = record.after or {}
    state = requests.closed(state, RunPhase.FAILED.value, record.time)
    if state.world is not None:
        state = replace(state, world=msgspec.structs.replace(state.world, live=False))
    return replace(state, failure=str(after.get("message", "")), failed_generation=int(after.get("generation", 0)))


def _needs_human(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, question=str((record.reason or {}).get("message", "")))


def _reopened(state: RunState, record: JournalRecord) -> RunState:
    # What could not be restored under another image or configuration may be tried again under the new one.
    return replace(state, failure="", failed_generation=0, restarts=0, stuck_steps=(), restore_failures=())


def _snapshot(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, snapshot=record.seq)


def _automation_held(state: RunState, record: JournalRecord) -> RunState:
    return replace(state, automation=read(AutomationHold, record.after, "hold"))


def _automation_released(state: RunState, _record: JournalRecord) -> RunState:
    return replace(state, automation=None)


def _notice_sent(state: RunState, record: JournalRecord) -> RunState:
    sent = str((record.after or {})["notice"])
    return replace(state, owed=tuple(notice for notice in state.owed if notice.id != sent))


_FOLDS: dict[JournalAction, Callable[[RunState, JournalRecord], RunState]] = {
    JournalAction.TAKEOVER: worlds.taken_over,
    JournalAction.POLICY_ACCEPTED: _policy_accepted,
    JournalAction.START_WORLD: worlds.world_started,
    JournalAction.END_WORLD: worlds.world_told_to_end,
    JournalAction.WORLD_LOST: worlds.world_lost,
    JournalAction.WORLD_RESTORED: worlds.world_restored,
    JournalAction.DIRECTIVE: worlds.directed,
    JournalAction.DIRECTIVE_REFUSED: worlds.directive_refused,
    JournalAction.COMPLETED: worlds.directed,
    JournalAction.STOPPED: _stopped,
    JournalAction.COMMITTED: checkpoints.checkpoint_in(CheckpointState.COMMITTED),
    JournalAction.VERIFIED: checkpoints.checkpoint_in(CheckpointState.VERIFIED),
    JournalAction.CERTIFIED: checkpoints.checkpoint_in(CheckpointState.CERTIFIED),
    JournalAction.QUARANTINED: checkpoints.checkpoint_in(CheckpointState.QUARANTINED),
    JournalAction.METRIC_MISSING: _metric_missing,
    JournalAction.RULE_FIRED: _rule_fired,
    JournalAction.INCIDENT_OPENED: incidents.incident_opened,
    JournalAction.RELAPSED: incidents.relapsed,
    JournalAction.PROBATION_EXTENDED: incidents.probation_extended,
    JournalAction.UPGRADED: incidents.changed(incidents.upgraded),
    JournalAction.HELD: incidents.run_held,
    JournalAction.DIAGNOSED: incidents.changed(incidents.diagnosed),
    JournalAction.TARGET_SELECTED: incidents.target_selected,
    JournalAction.RESTORED: incidents.restored,
    JournalAction.RESTORE_FAILED: incidents.restore_failed,
    JournalAction.EXTENT_FOUND: incidents.changed(incidents.extent_found),
    JournalAction.SKIPPED: requests.skipped,
    JournalAction.INCIDENT_CLOSED: incidents.incident_closed,
    JournalAction.NEEDS_HUMAN: _needs_human,
    JournalAction.FAILED: _failed,
    JournalAction.REOPENED: _reopened,
    JournalAction.RUN_REQUESTED: requests.run_requested,
    JournalAction.SNAPSHOT: _snapshot,
    JournalAction.AUTOMATION_HELD: _automation_held,
    JournalAction.AUTOMATION_RELEASED: _automation_released,
    JournalAction.NOTICE_SENT: _notice_sent,
}
