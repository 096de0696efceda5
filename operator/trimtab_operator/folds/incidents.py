"""The fold of an incident: opened, held, diagnosed, planned, restored, relapsed, closed. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from trimtab_contract.journal import JournalRecord

from trimtab_operator.folds.requests import closed
from trimtab_operator.folds.values import read
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
from trimtab_operator.run_state import RunPhase, RunState
from trimtab_operator.suspects import avoided

KEPT_FAILURES = 16
"""So many of a run's newest failures are remembered for the breaker over all runs."""


def in_phase(state: RunState, phase: RunPhase, time: str) -> RunState:
    """The run in a phase; an open incident notes when each began, a relapse also where the phase stays Holding."""
    incident = state.incident
    if incident is not None and (not incident.phases or incident.phases[-1].phase != phase):
        phases = (*incident.phases, PhaseTime(phase=phase.value, time=time))[-KEPT_PHASES:]
        incident = msgspec.structs.replace(incident, phases=phases)
    if incident is not None and phase is RunPhase.PROBATION:
        incident = incident.gone_on()
    return replace(state, phase=phase, incident=incident)


def with_failure(state: RunState, record: JournalRecord) -> RunState:
    """One more failure of the run, for the breaker over all runs."""
    moment = datetime.fromisoformat(record.time).timestamp()
    return replace(state, failures=(*state.failures, moment)[-KEPT_FAILURES:])


def incident_opened(state: RunState, record: JournalRecord) -> RunState:
    """A rule fired, or a person asked: an incident begins."""
    latch = read(Latch, record.after, "latch")
    name = record.incident or ""
    state = replace(
        state,
        incident=Incident(name=name, latch=latch, baseline=latch.healthy),
        incident_names=(*state.incident_names, name),
    )
    return with_failure(state, record) if latch.asked is None else state


def relapsed(state: RunState, record: JournalRecord) -> RunState:
    """A rule fired within probation: the incident goes on with a new latch, and all that was found is found anew."""
    incident = state.incident
    if incident is None:
        return state
    latch = read(Latch, record.after, "latch")
    furthest = incident.furthest or incident.latch.fired_step
    gets_on = latch.first_bad_step > furthest + latch.remediation.margin
    return replace(
        with_failure(state, record),
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


def probation_extended(state: RunState, record: JournalRecord) -> RunState:
    """Probation goes on, for something is doubtful."""
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


def changed(
    change: Callable[[Incident, Mapping[str, Any]], Incident],
) -> Callable[[RunState, JournalRecord], RunState]:
    """The fold of a record that changes the open incident and nothing else."""

    def apply(state: RunState, record: JournalRecord) -> RunState:
        if state.incident is None:
            return state
        return replace(state, incident=change(state.incident, record.after or {}))

    return apply


def upgraded(incident: Incident, after: Mapping[str, Any]) -> Incident:
    """A stronger action is wanted before anything was changed."""
    return msgspec.structs.replace(incident, latch=msgspec.convert(after["latch"], type=Latch))


def held(incident: Incident, after: Mapping[str, Any]) -> Incident:
    """At which step every rank holds, and in which state."""
    return msgspec.structs.replace(
        incident,
        held_step=int(after["step"]),
        replicas_agree=after.get("replicas_agree"),
        world_lost=bool(after["lost"]),
        state_finite=None if after.get("nonfinite_state") is None else not after["nonfinite_state"],
        withheld=read(WithheldStep, after, "withheld") if after.get("withheld") else None,
    )


def run_held(state: RunState, record: JournalRecord) -> RunState:
    """The run is held; nodes of suspect ranks are avoided from now on."""
    after = record.after or {}
    nodes = [str(one["node"]) for one in after.get("suspects") or ()]
    state = replace(state, suspect_nodes=avoided(state.suspect_nodes, nodes))
    return changed(held)(state, record)


def diagnosed(incident: Incident, after: Mapping[str, Any]) -> Incident:
    """What a diagnosis found, and on which measurements."""
    changes: dict[str, Any] = {
        name: read(Measurement, after, name) for name in ("suspect", "restored") if after.get(name) is not None
    }
    return msgspec.structs.replace(
        incident,
        finding=Finding(after["finding"]),
        finding_why=str(after["why"]),
        missing=tuple(after.get("missing") or ()),
        diagnosed_attempt=int(after.get("attempt", 0)),
        **changes,
    )


def target_selected(state: RunState, record: JournalRecord) -> RunState:
    """A plan: what is restored, and whether it counts against the budget."""
    if state.incident is None:
        return state
    plan = read(Plan, record.after, "plan")
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


def restored(state: RunState, record: JournalRecord) -> RunState:
    """The plan's checkpoint is in place."""
    incident = state.incident.put_in_place() if state.incident is not None else None
    return replace(state, incident=incident, restored_attempt=int((record.after or {})["attempt"]))


def restore_failed(state: RunState, record: JournalRecord) -> RunState:
    """A checkpoint could not be put in place; it is not tried for ever, and a plan that names it has failed."""
    after = record.after or {}
    key = str(after["key"])
    if state.incident is not None and state.incident.plans and state.incident.plans[-1].target.key == key:
        failed = msgspec.structs.replace(state.incident.plans[-1], failed=str(after["why"]))
        incident = msgspec.structs.replace(state.incident, plans=(*state.incident.plans[:-1], failed))
        state = replace(state, incident=incident)
    return replace(state, restore_failures=(*state.restore_failures, key), restored_attempt=0)


def extent_found(incident: Incident, after: Mapping[str, Any]) -> Incident:
    """Which windows the damage covers; with a plan of its own where it needs one."""
    extent = msgspec.convert(after["skip"], type=SkipRange | None)
    if "plan" in after:  # a wider one, which waits for its own approval
        plans = (*incident.plans, msgspec.convert(after["plan"], type=Plan))
        incident = msgspec.structs.replace(incident, plans=plans, deadline=str(after["deadline"]))
    return msgspec.structs.replace(incident, extent=extent, extent_done=True)


def incident_closed(state: RunState, record: JournalRecord) -> RunState:
    """The incident is over; doubts that were left stay readable."""
    after = record.after or {}
    if state.incident is not None and "doubts" in after:
        doubts = tuple(str(doubt) for doubt in after["doubts"])
        state = replace(state, incident=msgspec.structs.replace(state.incident, doubts=doubts))
    return closed(state, record.outcome or "", record.time)
