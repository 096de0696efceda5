"""A rule that fires while nobody looked: what is decided never depends on how many records are read at once."""

from dataclasses import replace

import pytest
from trimtab_contract.directives import Action, CheckpointReference, Directive
from trimtab_operator.commands import Append
from trimtab_operator.incidents import Incident, Latch, Plan, PolicyIdentity, RemediationSettings
from trimtab_operator.observation import Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import Attempt, JournalAction, RunPhase, RunState, World

HELD_STEP, PROBATION_STEPS = 190, 20
LAST_STEP_OF_PROBATION = HELD_STEP + PROBATION_STEPS
LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)


def latch(attempt: int, first_bad_step: int) -> Latch:
    return Latch(
        policy=PolicyIdentity(kind="GuardPolicy", namespace="n", name="guard", uid="u", generation=1, hash="0" * 64),
        rule="loss-spike",
        metric="loss",
        action="Rollback",
        observed=9.0,
        threshold=4.0,
        sigma=4.0,
        control_limit=4.0,
        message="loss is 9",
        attempt=attempt,
        first_bad_step=first_bad_step,
        fired_step=first_bad_step + 2,
        flagged=(first_bad_step - 1, first_bad_step + 1),
        remediation=RemediationSettings(
            margin=10, before=1, after=2, probe=32, probation_steps=PROBATION_STEPS, margin_factor=2
        ),
        rule_text={},
    )


def in_probation() -> RunState:
    target = CheckpointReference(key="run/checkpoints/x/manifest.json", sha256="0" * 64, step=170)
    incident = Incident(
        name="demo-a1-s181", latch=latch(1, 181), held_step=HELD_STEP, plans=(Plan(number=1, target=target),)
    )
    return RunState(
        seq=30,
        epoch=1,
        phase=RunPhase.PROBATION,
        attempts=(
            Attempt(number=1, world=1, parent=None, branch_step=0),
            Attempt(number=2, world=1, parent=1, branch_step=170),
        ),
        world=World(number=1),
        directive=Directive(epoch=1, seq=28, world=1, attempt=2, action=Action.RUN, restore=target),
        restored_attempt=2,
        incident=incident,
        incident_names=(incident.name,),
    )


def next_action(state: RunState, first_bad_step: int, judged_step: int) -> JournalAction:
    observation = Observation(
        job="demo",
        now="2026-01-01T00:00:00+00:00",
        limits=LIMITS,
        pods=Pods(world=1, state=PodsState.LIVE),
        judged_step=judged_step,
        firing=latch(2, first_bad_step),
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
