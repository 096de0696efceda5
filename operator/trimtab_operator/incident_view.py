"""A GuardIncident from the fold of the journal: what began it, the plans, and how it stands. Pure."""

from typing import Any

from trimtab_operator.incidents import Incident, Latch, Measurement, Plan, SkipRange
from trimtab_operator.phases.approval import plan_words
from trimtab_operator.resources import API_VERSION
from trimtab_operator.resources.guard_incident import IncidentPhase
from trimtab_operator.run_state import RunPhase, RunState
from trimtab_operator.story import printable
from trimtab_operator.workload import TrainingJobView

Status = dict[str, Any]

_PHASES = frozenset(phase.value for phase in IncidentPhase)


def incident_object(job: TrainingJobView, incident: Incident) -> Status:
    """A GuardIncident with its immutable trigger and the plans so far."""
    latch = incident.latch
    return {
        "apiVersion": API_VERSION,
        "kind": "GuardIncident",
        "metadata": {
            "name": incident.name,
            "namespace": job.namespace,
            "labels": {"trimtab.dev/job": job.name},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "TrainingJob",
                    "name": job.name,
                    "uid": job.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "job": {"name": job.name, "uid": job.uid},
            "trigger": {
                **_cause(latch),
                "action": latch.action,
                "attempt": latch.attempt,
                "firstBadStep": latch.first_bad_step,
                "firedStep": latch.fired_step,
                "message": printable(latch.message),
            },
            "plans": incident_plans(incident),
        },
    }


def incident_plans(incident: Incident) -> list[Status]:
    """The plans of an incident, oldest first."""
    return [_plan(plan) for plan in incident.plans]


def incident_status(incident: Incident, state: RunState) -> Status:
    """How an incident stands and what is planned; once it is closed, what was done."""
    over = bool(incident.outcome) or (incident.plan is not None and bool(incident.plan.rejected))
    skipped, plan = _skipped(incident), incident.carried_out if over else incident.plan
    phases = [one for one in incident.phases if one.phase in _PHASES]
    return {
        "phase": IncidentPhase.CLOSED.value if incident.outcome else state.phase.value,
        "heldStep": incident.held_step,
        "finding": incident.finding.value if incident.finding else None,
        "findingReason": printable(incident.finding_why, 1000) or None,
        "missingEvidence": [printable(lacks, 500) for lacks in incident.missing] or None,
        "measured": _measured(incident) or None,
        "doubts": [printable(doubt, 500) for doubt in incident.doubts] or None,
        "skipped": {"first": skipped.first, "last": skipped.last, "bad": skipped.bad} if skipped else None,
        "failedPlans": _failed_plans(incident) or None,
        "target": plan.target.step if plan else None,
        "skip": _skip(incident),
        "approval": _approval(incident),
        "message": printable(incident_message(incident, state), 1000),
        "relapses": incident.relapses,
        "phases": [{"phase": one.phase, "time": one.time} for one in phases] or None,
        "resumedTime": next((one.time for one in reversed(phases) if one.phase == IncidentPhase.PROBATION), None),
        "outcome": incident.outcome or None,
        "closedTime": incident.closed_at or None,
    }


def incident_message(incident: Incident, state: RunState) -> str:
    """What an incident waits for, while it waits for a person; else what began it."""
    if incident.outcome or state.incident is None or state.incident.name != incident.name:
        return incident.latch.message
    if state.phase is RunPhase.AWAITING_APPROVAL and incident.plan is not None:
        plan = incident.plan
        waits = f"plan {plan.number} waits for approval until {incident.deadline[:19]}Z: {plan_words(plan)}"
        return f"{waits}; approve or reject {plan.hash}"
    return state.question if state.phase is RunPhase.NEEDS_HUMAN else incident.latch.message


def _measured(incident: Incident) -> list[Status]:
    """The numbers of both states, as far as they were measured."""
    states = (("Held", incident.suspect), ("Restored", incident.restored))
    return [_numbers(state, measured) for state, measured in states if measured is not None]


def _numbers(state: str, measured: Measurement) -> Status:
    numbers = {
        "controlMean": measured.control_mean,
        "controlStd": measured.control_std,
        "threshold": measured.threshold,
    }
    return {
        "state": state,
        "control": measured.control,
        "controlNonFinite": measured.control_nonfinite,
        "controlBad": measured.control_bad,
        "flagged": len(measured.flagged),
        "bad": len(measured.bad),
        **{name: _text(number) for name, number in numbers.items() if number is not None},
    }


def _failed_plans(incident: Incident) -> list[Status]:
    found = ((plan.number, _why_failed(incident, plan)) for plan in incident.plans)
    return [{"number": number, "reason": printable(why, 500)} for number, why in found if why]


def _why_failed(incident: Incident, plan: Plan) -> str:
    why = plan.failed or plan.relapsed or plan.rejected
    left = not why and bool(incident.outcome) and plan.number > incident.restored_plan
    return "it was not carried out" if left else why


def _skipped(incident: Incident) -> SkipRange | None:
    return incident.skipped if incident.outcome else incident.extent


def _skip(incident: Incident) -> str | None:
    skipped = _skipped(incident)
    if skipped is not None:
        return f"{skipped.first}-{skipped.last}"
    plan = incident.plan
    if plan is None or plan.bound is None or plan.rejected or incident.extent_done or incident.outcome:
        return None
    return f"{plan.bound[0]}-{plan.bound[1]} at most"


def _approval(incident: Incident) -> Status | None:
    plan = incident.plan
    if plan is None or not incident.deadline:
        return None
    return {"planHash": plan.hash, "deadline": incident.deadline, "approvedBy": plan.approved_by or None}


def _cause(latch: Latch) -> Status:
    """The rule that fired, or the person who asked: a GuardIncident has one of them."""
    if latch.asked is not None:
        asked = latch.asked
        return {
            "request": {
                "name": asked.request,
                "uid": asked.uid,
                "action": asked.action,
                "by": asked.by,
                "reason": printable(asked.reason, 1024),
            }
        }
    policy, flagged = latch.policy, latch.flagged
    return {
        "policy": {
            "kind": policy.kind,
            "name": policy.name,
            "uid": policy.uid,
            "generation": policy.generation,
            "hash": policy.hash,
        }
        if policy
        else None,
        "rule": latch.rule,
        "ruleText": latch.rule_text,
        "metric": latch.metric,
        "observed": _text(latch.observed),
        "threshold": _text(latch.threshold) if latch.threshold is not None else None,
        "flagged": {"first": flagged[0], "last": flagged[1]} if flagged else None,
    }


def _plan(plan: Plan) -> Status:
    target, bound, rate = plan.target, plan.bound, plan.learning_rate
    return {
        "number": plan.number,
        "target": {"step": target.step, "key": target.key, "sha256": target.sha256},
        **({"skipBound": {"first": bound[0], "last": bound[1]}} if bound else {}),
        **({"learningRate": {"scale": f"{rate.scale:g}", "untilStep": rate.until_step}} if rate else {}),
        **({"hash": plan.hash} if plan.hash else {}),
    }


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
