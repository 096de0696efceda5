"""`status` of TrainingJob and GuardIncident from the fold of the journal: caches for people. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab_contract.directives import AckState
from trimtab_contract.metrics import MetricRecord

from trimtab_operator.guards import GuardProblem
from trimtab_operator.incident_view import incident_message
from trimtab_operator.observation import Blocker, MissingMetric, Pods, PodsState
from trimtab_operator.reasons import ConditionType, Reason
from trimtab_operator.requests import how_to_answer
from trimtab_operator.run_state import RESTORABLE, AnsweredRequest, RequestAction, RunPhase, RunState
from trimtab_operator.starting import world_waits
from trimtab_operator.story import printable
from trimtab_operator.workload import TrainingJobView

Status = dict[str, Any]
ConditionRow = tuple[ConditionType, bool, Reason, str]
"""Type, whether it holds, reason, message."""

SUSPENDED = "suspended: spec.suspend is true"
"""What a job says that waits because it was asked to."""

_NEEDED = frozenset(
    {
        ConditionType.READY.value,
        ConditionType.GUARDED.value,
        ConditionType.POLICY_UNSATISFIABLE.value,
        ConditionType.METRIC_MISSING.value,
    }
)
"""Conditions about what a run needs while it goes on."""
_PODS_STUCK = frozenset({Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_NOT_STARTED, Reason.UNSCHEDULABLE})
_TOLD_AT_ONCE = frozenset({ConditionType.ANCHOR_PENDING.value, ConditionType.CHECKPOINTS_BEHIND.value})
"""Conditions that are only there while something is wrong, and are an Event, too, when they come."""
_TRAINS = frozenset({RunPhase.WATCHING, RunPhase.PROBATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is to be reported of a run beside the fold of its journal; a sentence is empty while all is well."""

    pods: Pods
    blockers: tuple[Blocker, ...] = ()
    outdated: tuple[GuardProblem, ...] = ()
    """Policies of which not the newest text judges, and why."""
    missing_metrics: tuple[MissingMetric, ...] = ()
    last: MetricRecord | None = None
    """The last judged record."""
    heard: AckState | None = None
    """What the newest world last said of itself, None before its first word."""
    finish_pending: str = ""
    """What a finished world has waited for too long."""
    anchor_pending: str = ""
    """Why the end of the journal is not known outside its bucket."""
    automation_held: str = ""
    """Why no rollback and no restart begins."""
    deletion_pending: str = ""
    """Why checkpoints that nothing needs are still there."""
    checkpoints_behind: str = ""
    """What the trainer says of checkpoints that do not get stored."""
    reading_back: str = ""
    """Which checkpoints a Job reads back, and what keeps it from that."""

    def when_over(self) -> "Situation":
        """The same without what a run needs only while it goes on."""
        return replace(self, blockers=(), outdated=(), missing_metrics=(), checkpoints_behind="")


def job_status(
    job: TrainingJobView, state: RunState, situation: Situation, *, now: str, before: Sequence[Status]
) -> Status:
    """The TrainingJob's status. `before` are the conditions it shows now: unchanged ones keep their times."""
    guard = state.guards[-1] if state.guards else None
    over = state.ended or state.phase is RunPhase.FAILED
    seen = situation.when_over() if over else situation
    conditions = [
        condition(row, job.generation, now, before)
        for row in (
            *_conditions(job, state, seen, before),
            *_guard_conditions(state, seen, before),
            *_end_conditions(state, seen.finish_pending),
            *_anchor_conditions(seen.anchor_pending),
            *_deletion_conditions(seen.deletion_pending),
            *_behind_conditions(seen.checkpoints_behind),
            *_reading_conditions(seen.reading_back),
            # A run that is over waits for nobody, whether the breaker is still open or not.
            *(() if over else _automation_conditions(seen.automation_held, before)),
        )
    ]
    status: Status = {
        "observedGeneration": job.generation,
        "phase": shown_phase(state, seen.pods).value,
        "attempt": state.attempt,
        "world": state.world.number if state.world else 0,
        "rollbacks": len(state.rollback_times) + state.rollbacks_asked,
        "restarts": state.restarts,
        "checkpoint": _newest_checkpoint(state),
        "incident": state.incident.name if state.incident else None,
        "message": printable(_message(job, state, seen), 1000) or None,
        "journal": {"seq": state.seq, "hash": state.head},
        "conditions": _as_at_the_end(conditions, before) if over else conditions,
    }
    if guard is not None:
        status["policies"] = [
            {
                "kind": one.kind,
                "name": one.name,
                "uid": one.uid,
                "generation": one.generation,
                "hash": one.hash,
            }
            for one in guard.policies
        ]
    last = seen.last
    if last is not None:
        loss = last.scalars.get("loss")
        status["step"] = last.step
        status["loss"] = None if loss is None else f"{loss:.4f}" if math.isfinite(loss) else str(loss)
    return status


def _as_at_the_end(conditions: Sequence[Status], before: Sequence[Status]) -> list[Status]:
    """Nothing a run needed is looked at once it is over: what is said of it stays as it was."""
    kept = {one["type"]: one for one in before if one["type"] in _NEEDED}
    return [*(one for one in conditions if one["type"] not in kept), *kept.values()]


def shown_phase(state: RunState, pods: Pods) -> RunPhase:
    """The phase as people see it: a run that would train waits for a world, or for one that cannot start: Pending."""
    stuck = pods.state is PodsState.STARTING and pods.trouble_reason in _PODS_STUCK
    return RunPhase.PENDING if state.phase in _TRAINS and (stuck or not state.world_lives) else state.phase


def newly_wrong(conditions: Sequence[Status], before: Sequence[Status]) -> tuple[tuple[Reason, str], ...]:
    """Reason and message of what keeps a run from going on and was not shown before.

    A message about pods changes with every try of the kubelet, so only another reason makes it new.
    """
    known = {one.get("type"): one for one in before}
    found: list[tuple[Reason, str]] = []
    for one in conditions:
        told = ("reason", "message") if one["type"] == ConditionType.READY else ("reason",)
        wrong = one["status"] == "False" and one["message"]
        if wrong and (one["type"] == ConditionType.READY or one["reason"] in _PODS_STUCK):
            shown = known.get(one["type"], {})
            if shown.get("status") != "False" or any(shown.get(name) != one[name] for name in told):
                found.append((Reason(one["reason"]), one["message"]))
        elif one["type"] in _TOLD_AT_ONCE and one["type"] not in known:
            found.append((Reason(one["reason"]), one["message"]))
    return tuple(found)


def request_status(request: AnsweredRequest) -> Status:
    """What became of a person's request."""
    return {
        "state": request.state.value,
        "message": printable(request.message, 1000),
        "answeredTime": request.time,
        "doneTime": request.done_at or None,
    }


def _newest_checkpoint(state: RunState) -> str | None:
    own = [one for one in state.checkpoints if not one.of_source]
    usable = [one for one in own if one.state in RESTORABLE and state.surviving(one)]
    return f"{usable[-1].reference.step} {usable[-1].state.value}" if usable else None


def _message(job: TrainingJobView, state: RunState, seen: Situation) -> str:
    if state.failure:
        return state.failure
    if state.phase is RunPhase.NEEDS_HUMAN:
        return _question(job, state)
    if state.phase is RunPhase.STOPPED:
        return _stopped_by(state)
    if state.phase is RunPhase.AWAITING_APPROVAL and state.incident is not None:
        return (
            f"{incident_message(state.incident, state)} with `trimtab job approve {job.name} --reason WHY` or `reject`"
        )
    suspended = (SUSPENDED,) if job.spec.suspend else ()
    if shown_phase(state, seen.pods) is RunPhase.PENDING and (suspended or seen.blockers):
        return "; ".join((*suspended, *(blocker.message for blocker in seen.blockers)))
    if state.automation is not None and not state.ended:
        return state.automation.message
    if state.incident is not None:
        paused = state.phase is RunPhase.HOLDING and state.incident.paused and state.incident.held_step is not None
        question = (f"the run is paused: {how_to_answer(job.name)}",) if paused else ()
        return "; ".join((*suspended, state.incident.latch.message, *question))
    return world_waits(state, seen.pods, seen.heard) or seen.pods.trouble


def _question(job: TrainingJobView, state: RunState) -> str:
    how = how_to_answer(job.name)
    return state.question if how in state.question else f"{state.question}; {how}"


def _stopped_by(state: RunState) -> str:
    asked = next((one for one in reversed(state.requests) if one.action is RequestAction.STOP), None)
    return f"stopped: {asked.by} asked for it" if asked is not None else "stopped: a rule asks for it"


def _conditions(job: TrainingJobView, state: RunState, seen: Situation, before: Sequence[Status]) -> list[ConditionRow]:
    first = seen.blockers[0] if seen.blockers else None
    waiting = "; ".join(blocker.message for blocker in seen.blockers)
    incident = state.incident
    rows: list[ConditionRow] = [
        (ConditionType.READY, first is None, first.reason if first else Reason.READY, waiting),
        (ConditionType.RUNNING, *_running(job, state, seen)),
        (
            ConditionType.INCIDENT_OPEN,
            incident is not None,
            Reason.INCIDENT_OPENED if incident else Reason.NO_INCIDENT,
            incident.latch.message if incident else "",
        ),
    ]
    suspended = job.spec.suspend
    # A job that was never suspended was not resumed, either.
    if suspended or ConditionType.SUSPENDED.value in _shown(before):
        why = SUSPENDED if suspended else ""
        rows.append((ConditionType.SUSPENDED, suspended, Reason.SUSPENDED if suspended else Reason.RESUMED, why))
    return rows


def _running(job: TrainingJobView, state: RunState, seen: Situation) -> tuple[bool, Reason, str]:
    """Whether a world trains or holds; else the first reason why none does, and what that waits for."""
    pods, blockers = seen.pods, seen.blockers
    waits = world_waits(state, pods, seen.heard) or pods.trouble
    if state.world_lives and pods.state is PodsState.LIVE:
        return True, Reason.WORLD_RUNNING, waits
    if state.ended:
        return False, Reason.FINISHED, ""
    if state.phase is RunPhase.FAILED:
        return False, Reason.FAILED, state.failure
    if job.spec.suspend:
        return False, Reason.SUSPENDED, SUSPENDED
    if state.world_lives:
        starting = pods.trouble_reason or Reason.WORLD_STARTING
        return False, starting if pods.state is PodsState.STARTING else Reason.WORLD_LOST, waits
    if blockers:
        return False, blockers[0].reason, blockers[0].message
    return False, Reason.WORLD_LOST if state.world else Reason.WORLD_STARTING, pods.trouble


def _shown(before: Sequence[Status]) -> frozenset[object]:
    """The types of the conditions that the object shows already."""
    return frozenset(one.get("type") for one in before)


def _guard_conditions(state: RunState, seen: Situation, before: Sequence[Status]) -> list[ConditionRow]:
    outdated, missing_metrics = seen.outdated, seen.missing_metrics
    guarded = bool(state.guards and state.guards[-1].policies)
    in_force = Reason.POLICIES_IN_FORCE if guarded else Reason.NO_POLICIES
    reason = outdated[0].reason if outdated else in_force
    why = "; ".join(problem.message for problem in outdated)
    rows: list[ConditionRow] = [(ConditionType.GUARDED, guarded and not outdated, reason, why)]
    unmet = [one.message for one in (*seen.blockers, *outdated) if one.reason is Reason.POLICY_UNSATISFIABLE]
    shown = _shown(before)
    # Said only where it was wrong once: a healthy job has nothing to show here.
    if unmet or ConditionType.POLICY_UNSATISFIABLE.value in shown:
        reason = Reason.POLICY_UNSATISFIABLE if unmet else Reason.POLICY_SATISFIABLE
        rows.append((ConditionType.POLICY_UNSATISFIABLE, bool(unmet), reason, "; ".join(unmet)))
    if missing_metrics or ConditionType.METRIC_MISSING.value in shown:
        reason = Reason.METRIC_MISSING if missing_metrics else Reason.METRIC_SEEN
        why = "; ".join(one.message for one in missing_metrics)
        rows.append((ConditionType.METRIC_MISSING, bool(missing_metrics), reason, why))
    return rows


def _end_conditions(state: RunState, finish_pending: str) -> list[ConditionRow]:
    rows: list[ConditionRow] = []
    if finish_pending:
        rows.append((ConditionType.FINISH_PENDING, True, Reason.FINISH_PENDING, finish_pending))
    if state.phase is RunPhase.PROBATION and state.incident is not None and state.incident.doubts:
        differs = f"no rule fires, but {'; '.join(state.incident.doubts)}"
        rows.append((ConditionType.PROBATION_EXTENDED, True, Reason.PROBATION_EXTENDED, differs))
    if state.phase is RunPhase.NEEDS_HUMAN:
        rows.append((ConditionType.NEEDS_HUMAN, True, Reason.NEEDS_HUMAN, state.question))
    if state.phase is RunPhase.AWAITING_APPROVAL and state.incident is not None:
        waits = incident_message(state.incident, state)
        rows.append((ConditionType.NEEDS_HUMAN, True, Reason.APPROVAL_REQUIRED, waits))
    if state.phase is RunPhase.COMPLETED:
        rows.append((ConditionType.COMPLETE, True, Reason.COMPLETED, "every step is trained and judged"))
    if state.phase is RunPhase.FAILED:
        rows.append((ConditionType.FAILED, True, Reason.FAILED, state.failure))
    return rows


def _automation_conditions(held: str, before: Sequence[Status]) -> list[ConditionRow]:
    """Said while automation is held, and that it was let go."""
    if held:
        return [(ConditionType.AUTOMATION_HELD, True, Reason.BREAKER_TRIPPED, held)]
    shown = ConditionType.AUTOMATION_HELD.value in _shown(before)
    return [(ConditionType.AUTOMATION_HELD, False, Reason.BREAKER_RELEASED, "")] if shown else []


def _anchor_conditions(anchor_pending: str) -> list[ConditionRow]:
    return [(ConditionType.ANCHOR_PENDING, True, Reason.ANCHOR_NOT_WRITTEN, anchor_pending)] if anchor_pending else []


def _deletion_conditions(deletion_pending: str) -> list[ConditionRow]:
    row = (ConditionType.DELETION_PENDING, True, Reason.NOT_DELETED, deletion_pending)
    return [row] if deletion_pending else []


def _behind_conditions(checkpoints_behind: str) -> list[ConditionRow]:
    row = (ConditionType.CHECKPOINTS_BEHIND, True, Reason.CHECKPOINTS_BEHIND, printable(checkpoints_behind, 1000))
    return [row] if checkpoints_behind else []


def _reading_conditions(reading_back: str) -> list[ConditionRow]:
    row = (ConditionType.READING_BACK, True, Reason.READ_BACK_ORDERED, printable(reading_back, 1000))
    return [row] if reading_back else []


def condition(row: ConditionRow, generation: int, now: str, before: Sequence[Status]) -> Status:
    """A `metav1.Condition`; it keeps its transition time while its status stays the same."""
    kind, holds, reason, message = row
    value = "True" if holds else "False"
    known = next((one for one in before if one.get("type") == kind.value), None)
    changed = known is None or known.get("status") != value
    return {
        "type": kind.value,
        "status": value,
        "reason": reason.value,
        "message": printable(message, 1000),
        "observedGeneration": generation,
        "lastTransitionTime": now if changed or known is None else known["lastTransitionTime"],
    }
