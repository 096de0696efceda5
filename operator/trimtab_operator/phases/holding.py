"""Holding and Diagnosing: every rank stands still at one step, and what is suspected is looked at."""

from typing import Any

from trimtab_contract.directives import AckState, Action
from trimtab_contract.evidence import ProbeEvidence

from trimtab_operator import diagnosis, drafts, requests
from trimtab_operator.commands import Command
from trimtab_operator.incidents import Incident
from trimtab_operator.observation import Observation
from trimtab_operator.progress import DIAGNOSIS_SECONDS
from trimtab_operator.run_state import JournalAction, RunPhase, RunState
from trimtab_operator.suspects import suspects

_P = RunPhase
_STANDING = frozenset({AckState.HOLDING, AckState.RESTORED, AckState.DIAGNOSED})
"""A world that is held before it has trained a step behind a restore says still what it said of that."""


def holding(state: RunState, observation: Observation) -> Command | None:
    """Hold every rank, freeze the evidence, and go on to the diagnosis, or wait for a person after a Pause."""
    incident, directive = state.incident, state.directive
    if incident is None or directive is None:
        return None
    if incident.latch.action == "Stop":
        stop = drafts.instruct(state, observation, Action.STOP, incident=incident.name)
        return drafts.intend(state, JournalAction.STOPPED, stop, _P.STOPPED, drafts.firing_reason(incident.latch))
    if incident.paused and incident.held_step is not None:
        return None
    if not state.world_lives:
        return _held(state, observation, step=observation.judged_step, lost=True, agree=None)
    if directive.action is not Action.HOLD or directive.incident != incident.name:
        hold = drafts.instruct(state, observation, Action.HOLD, incident=incident.name)
        return drafts.intend(state, JournalAction.DIRECTIVE, hold, reason=drafts.firing_reason(incident.latch))
    latest = observation.acks.latest
    if (
        latest is not None
        and latest.state in _STANDING
        and latest.attempt == state.attempt
        and (latest.epoch, latest.seq) >= directive.order
        and observation.judged_step >= min(latest.step, incident.latch.fired_step)
    ):
        agree = latest.replicas.agree if latest.replicas else None
        return _held(state, observation, step=latest.step, lost=False, agree=agree)
    return None


def _held(state: RunState, observation: Observation, *, step: int, lost: bool, agree: bool | None) -> Command:
    latest = observation.acks.latest
    differing = list(latest.replicas.differing) if latest and latest.replicas and not lost else []
    nonfinite = list(latest.nonfinite) if latest and latest.nonfinite is not None and not lost else None
    reason: dict[str, Any] = {"differing": differing} if differing else {}
    after: dict[str, Any] = {"step": step, "lost": lost, "replicas_agree": agree, "nonfinite_state": nonfinite}
    withheld = observation.withheld
    if withheld is not None and withheld.step == step and not lost:
        after["withheld"] = withheld
    suspected = suspects(latest, observation.pods.places) if latest is not None and not lost else ()
    if suspected:
        after["suspects"] = suspected
    paused = state.incident is not None and state.incident.paused
    if paused and state.incident is not None:
        why = state.incident.latch.message
        reason["message"] = f"the run is paused, for {why}; {requests.how_to_answer(observation.job)}"
        after["paused"] = True
    return drafts.record(
        state,
        JournalAction.HELD,
        None if paused else _P.DIAGNOSING,
        evidence=observation.frozen_evidence,
        reason=reason or None,
        after=after,
    )


def diagnosing(state: RunState, observation: Observation) -> Command | None:
    """Let the held world measure what is suspected, for a bounded time, and say what that is consistent with."""
    incident, directive = state.incident, state.directive
    if incident is None or directive is None:
        return None
    if incident.replicas_agree is False:
        return _found(state, observation, incident)
    if observation.suspect is not None:
        return _found(state, observation, incident, probe=observation.suspect)
    flagged = incident.latch.flagged
    missing = _missing(state, observation, incident)
    if missing or flagged is None:
        return _found(state, observation, incident, missing=missing)
    if directive.diagnose is not None:
        return None
    windows = diagnosis.held_windows(flagged, state.doubtful)
    ask = drafts.instruct(state, observation, Action.HOLD, incident=incident.name, diagnose=windows)
    first, last = windows.windows
    message = f"measure windows {first} to {last} and {len(windows.control)} control windows on the held state"
    return drafts.intend(state, JournalAction.DIRECTIVE, ask, reason={"message": message})


def _missing(state: RunState, observation: Observation, incident: Incident) -> str:
    """Why the held state will not be measured; empty while it may."""
    if incident.world_lost or not state.world_lives:
        return "the suspect state is lost with its pods"
    if state.refused is not None:
        return f"the held state was not measured: {state.refused.detail}"
    if observation.suspect_problem:
        return f"the measurement of the held state cannot be used: {observation.suspect_problem}"
    if observation.diagnosis_late:
        return f"the held state was not measured within {DIAGNOSIS_SECONDS:.0f} s"
    return ""


def _found(
    state: RunState,
    observation: Observation,
    incident: Incident,
    *,
    probe: ProbeEvidence | None = None,
    missing: str = "",
) -> Command:
    found = diagnosis.diagnose_held(incident, probe, missing)
    return drafts.record(
        state,
        JournalAction.DIAGNOSED,
        _P.SELECTING,
        evidence=observation.suspect_evidence if probe is not None else (),
        after=diagnosis.content(found),
    )
