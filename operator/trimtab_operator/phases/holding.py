"""Holding and Diagnosing: every rank stands still at one step, and what is suspected is looked at."""

from typing import Any

from trimtab_contract.directives import AckState, Action

from trimtab_operator import drafts, requests
from trimtab_operator.commands import Command
from trimtab_operator.incidents import Finding
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

_P = RunPhase


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
        and latest.state is AckState.HOLDING
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
    """What the evidence from the held state is consistent with."""
    incident = state.incident
    if incident is None:
        return None
    if incident.replicas_agree is False:
        finding, why = Finding.TRANSIENT, "replicas disagree: one of them was damaged, the data is not to blame"
    elif incident.world_lost:
        finding, why = Finding.UNDECIDED, "the suspect state is lost with its pods"
    elif incident.replicas_agree is None:
        finding, why = Finding.UNDECIDED, "the replicas of the suspect state were not compared"
    else:
        finding, why = Finding.UNDECIDED, "replicas agree; nothing proves a transient fault"
    return drafts.record(state, JournalAction.DIAGNOSED, _P.SELECTING, after={"finding": finding.value, "why": why})
