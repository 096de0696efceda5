"""`kill -9` of the operator in every phase of an incident: its successor decides what it would have decided."""

import time

import pytest
from journal_tail import JournalTail
from node_processes import PodProcess, leader, step_until
from training_jobs import Namespace, guard_policy
from trimtab_contract.directives import Action
from trimtab_operator.journal_fold import fold_all
from trimtab_operator.run_state import RunPhase
from undisturbed_runs import INCIDENTS, commands, damaged_job, decisions

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HELD_PHASES = (
    RunPhase.HOLDING,
    RunPhase.DIAGNOSING,
    RunPhase.SELECTING,
    RunPhase.RESTORING,
    RunPhase.DIAGNOSING_RESTORED,
)
"""Phases in which the world holds: it waits for the successor."""


def test_the_successor_comes_to_the_same_decisions_in_every_phase(namespace: Namespace, undisturbed: Namespace) -> None:
    """One run meets a kill in each held phase, then one in probation, then one before anybody holds.

    A phase may be over before anybody has looked; each incident is another chance for those that are still wanted.
    """
    namespace.apply(guard_policy(), damaged_job("damaged"))
    tail, operator = JournalTail(namespace, "damaged"), leader(namespace.cluster)
    wanted = list(HELD_PHASES)
    for number in range(1, INCIDENTS - 1):
        wanted = [phase for phase in wanted if not _killed_in(tail, operator, number, phase)]
    assert not wanted, f"not met: {wanted}"
    assert _killed_in(tail, operator, INCIDENTS - 1, RunPhase.PROBATION)
    _wait_for_incident(tail, INCIDENTS)
    _kill(tail, operator)
    namespace.wait_phase("damaged", "Completed")

    trail, expected = namespace.trail("damaged"), undisturbed.trail("damaged")
    assert decisions(trail) == decisions(expected)
    assert commands(trail) == commands(expected)
    takeovers = [index for index, record in enumerate(trail.records) if record.action == "Takeover"]
    epochs = [record.actor.epoch for record in trail.records]
    assert epochs == sorted(epochs)
    assert all(epochs[index] > epochs[index - 1] for index in takeovers[1:])
    interrupted = [fold_all(trail.records[:index]).phase for index in takeovers[1:]]
    assert {*HELD_PHASES, RunPhase.PROBATION} <= set(interrupted)
    assert {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods("damaged")} == {"1"}


def _wait_for_incident(tail: JournalTail, number: int) -> None:
    tail.wait(f"incident {number}", lambda seen: seen.count("IncidentOpened") >= number)


def _killed_in(tail: JournalTail, operator: PodProcess, number: int, phase: RunPhase) -> bool:
    """Let the operator work in slow motion until an incident is in `phase`, and kill it there; False if it passed."""
    pid = operator.only_pid
    _wait_for_incident(tail, number)
    step_until(pid, lambda: _reached(tail, phase) or _passed(tail, number, phase))
    # What was on its way to the store when the process was stopped arrives now.
    time.sleep(0.05)
    tail.poll()
    if tail.state.phase is not phase:
        print(f"incident {number}: {phase} was over before it was seen, now {tail.state.phase}")
        operator.wake()
        return False
    _kill(tail, operator)
    if phase is RunPhase.RESTORING:
        _kill(tail, operator)
    return True


def _reached(tail: JournalTail, phase: RunPhase) -> bool:
    state = tail.poll()
    if phase is RunPhase.HOLDING:
        # Held in earnest: without a Hold in Redis the run would train on, and through the next damaged stretches.
        return state.phase is phase and tail.directive is not None and tail.directive.action is Action.HOLD
    return state.phase is phase


_ORDER: tuple[RunPhase, ...] = (*HELD_PHASES, RunPhase.PROBATION, RunPhase.WATCHING)


def _passed(tail: JournalTail, number: int, phase: RunPhase) -> bool:
    return tail.count("IncidentClosed") >= number or _ORDER.index(tail.state.phase) > _ORDER.index(phase)


def _kill(tail: JournalTail, operator: PodProcess) -> None:
    """Kill the operator and wait until its successor has taken the run over."""
    takeovers, started = tail.count("Takeover"), time.monotonic()
    phase = tail.poll().phase
    operator.kill()
    tail.wait("a Takeover", lambda seen: seen.count("Takeover") > takeovers)
    print(f"killed in {phase}: taken over after {time.monotonic() - started:.1f} s")
