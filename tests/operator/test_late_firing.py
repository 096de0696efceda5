"""A rule that fires while nobody looked: what is decided never depends on how many records are read at once."""

from dataclasses import replace

import msgspec
import pytest
from run_states import SETTINGS, attempts, incident, latch, reference, run_state
from trimtab_contract.directives import Action, Directive
from trimtab_operator.commands import Append
from trimtab_operator.observation import Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import JournalAction, RunPhase, RunState

HELD_STEP = 190
LAST_STEP_OF_PROBATION = HELD_STEP + SETTINGS.probation_steps
LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)


def in_probation() -> RunState:
    target = reference(170)
    opened = msgspec.structs.replace(incident(targets=(target,)), held_step=HELD_STEP)
    return run_state(
        phase=RunPhase.PROBATION,
        attempts=attempts((None, 0), (1, 170)),
        directive=Directive(epoch=1, seq=28, world=1, attempt=2, action=Action.RUN, restore=target),
        restored_attempt=2,
        incident=opened,
        incident_names=(opened.name,),
    )


def next_action(state: RunState, first_bad_step: int, judged_step: int) -> JournalAction:
    observation = Observation(
        job="demo",
        now="2026-01-01T00:00:00+00:00",
        limits=LIMITS,
        pods=Pods(world=1, state=PodsState.LIVE),
        judged_step=judged_step,
        firing=latch(attempt=2, first_bad_step=first_bad_step),
    )
    command = advance(state, observation)
    assert isinstance(command, Append)
    return command.draft.action


@pytest.mark.parametrize("judged_step", [LAST_STEP_OF_PROBATION + 3, LAST_STEP_OF_PROBATION + 500])
def test_a_firing_behind_a_probation_closes_it_and_opens_an_incident_of_its_own(judged_step: int) -> None:
    state = in_probation()
    assert next_action(state, LAST_STEP_OF_PROBATION + 1, judged_step) is JournalAction.INCIDENT_CLOSED
    closed = replace(state, phase=RunPhase.WATCHING, incident=None)
    assert next_action(closed, LAST_STEP_OF_PROBATION + 1, judged_step) is JournalAction.INCIDENT_OPENED


@pytest.mark.parametrize("judged_step", [LAST_STEP_OF_PROBATION - 1, LAST_STEP_OF_PROBATION + 500])
def test_a_firing_within_a_probation_is_a_relapse_however_late_it_is_read(judged_step: int) -> None:
    assert next_action(in_probation(), LAST_STEP_OF_PROBATION - 3, judged_step) is JournalAction.RELAPSED
