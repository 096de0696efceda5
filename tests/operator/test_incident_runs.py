"""Incidents through the state machine: what is held, restored and skipped, and when a human is asked instead."""

from dataclasses import replace

from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, actions, crash, finished_healthy, last_directive, number_of, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Reason
from trimtab_contract.journal import Phase
from trimtab_operator.incidents import Finding
from trimtab_operator.run_state import CheckpointState, RunPhase


def test_a_damaged_stretch_is_held_rolled_back_in_place_and_skipped_whole() -> None:
    run = play(DAMAGED)
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert list(run.worlds) == [1]
    (incident,) = state.closed
    assert (incident.latch.first_bad_step, incident.latch.fired_step) == (25, 27)
    assert incident.target is not None
    assert incident.target.step == 20
    assert incident.extent is not None
    assert set(range(incident.extent.first, incident.extent.last + 1)) == SKIPPED
    assert incident.outcome == "Recovered"
    assert surviving_windows(run) == [window for window in range(45 + len(SKIPPED)) if window not in SKIPPED]
    assert actions(run, "IncidentOpened", "Held", "Diagnosed", "TargetSelected", "Restored", "ExtentFound") == [
        "IncidentOpened",
        "Held",
        "Diagnosed",
        "TargetSelected",
        "Restored",
        "Diagnosed",
        "ExtentFound",
    ]


def test_checkpoints_between_the_first_bad_step_and_the_hold_are_quarantined() -> None:
    run = play(DAMAGED)
    quarantined = [one for one in run.state.checkpoints if one.state is CheckpointState.QUARANTINED]
    assert [one.reference.step for one in quarantined if one.attempt == 1] == [25]
    assert "between the first bad step 25 and the hold" in quarantined[0].why


def test_differing_replicas_are_transient_and_nothing_is_skipped() -> None:
    run = play(Scenario(mismatch=23))
    state = finished_healthy(run)
    (incident,) = state.closed
    assert incident.finding is Finding.TRANSIENT
    assert incident.extent is None
    assert incident.target is not None
    assert incident.target.step == 15
    assert last_directive(run).skip == ()
    assert not records(run, "ExtentFound")


def test_a_relapse_goes_further_back_and_behind_the_target_that_did_not_help() -> None:
    """The state is spoiled from step 12 on and shows it at step 28: three rollbacks until a sound state is found."""
    run = play(Scenario(latent=(12, 28), steps=40))
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    (incident,) = state.closed
    assert [plan.target.step for plan in incident.plans] == [20, 15, 5]
    assert incident.relapses == 2
    assert len(state.rollback_times) == 3
    assert len(records(run, "IncidentOpened")) == 1
    assert len(records(run, "Relapsed")) == 2


def test_a_target_that_cannot_be_restored_is_quarantined_and_the_next_older_one_is_taken() -> None:
    run = play(replace(DAMAGED, unrestorable=frozenset({20})))
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    (incident,) = state.closed
    assert [(plan.target.step, bool(plan.failed)) for plan in incident.plans] == [(20, True), (15, False)]
    failed = state.checkpoint(incident.plans[0].target.key)
    assert failed is not None
    assert failed.state is CheckpointState.QUARANTINED
    assert "another SHA-256" in failed.why
    assert len(state.rollback_times) == 1
    assert set(surviving_windows(run)) & SKIPPED == set()


def test_a_store_that_is_away_during_the_restore_costs_no_checkpoint_its_trust() -> None:
    run = play(replace(DAMAGED, store_away=frozenset({2, 3})))
    check(run)
    (incident,) = run.state.closed
    assert run.state.phase is RunPhase.COMPLETED
    assert [(plan.target.step, plan.failed) for plan in incident.plans] == [(20, "")]
    known = run.state.checkpoint(incident.plans[0].target.key)
    assert known is not None
    assert known.state is not CheckpointState.QUARANTINED


def test_a_state_on_which_the_control_is_bad_is_quarantined_and_an_older_one_is_taken() -> None:
    run = play(replace(DAMAGED, control_bad=frozenset({20, 15})))
    check(run)
    (incident,) = run.state.closed
    assert run.state.phase is RunPhase.COMPLETED
    assert [plan.target.step for plan in incident.plans] == [20, 15, 10]
    assert "control windows are bad" in incident.plans[0].failed


def test_a_state_is_held_against_what_the_run_was_like_at_its_step_where_its_checkpoints_say() -> None:
    """Early in a run the loss falls so fast that every state a margin ago is above where a rule fires now."""
    falling = ((0, 12.0), (5, 11.0), (10, 10.0), (15, 9.5), (20, 9.0))
    run = play(replace(DAMAGED, control_bad=frozenset({20, 15}), saved_losses=falling))
    check(run)
    (incident,) = run.state.closed
    assert [(plan.target.step, plan.failed) for plan in incident.plans] == [(20, "")]
    climbing = (*falling[:-2], (15, 2.1), (20, 9.0))
    run = play(replace(DAMAGED, control_bad=frozenset({20}), saved_losses=climbing))
    check(run)
    (incident,) = run.state.closed
    assert [plan.target.step for plan in incident.plans] == [20, 15]


def test_when_no_checkpoint_can_be_restored_a_human_is_asked() -> None:
    run = play(replace(DAMAGED, unrestorable=frozenset(range(100))))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert "no trustworthy checkpoint" in str(run.announced[-1].reason)
    assert run.living == [1]


def test_a_human_is_asked_before_an_incident_has_more_plans_than_its_object_can_show() -> None:
    run = play(replace(DAMAGED, checkpoint_every=2, unrestorable=frozenset(range(1, 100))))
    check(run)
    incident = run.state.incident
    assert incident is not None
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert [plan.target.step for plan in incident.plans] == [20, 18, 16, 14, 12, 10, 8, 6]
    assert all(plan.failed for plan in incident.plans)
    assert run.state.question == "none of this incident's 8 plans helped, and an incident holds no more"
    assert run.living == [1]


def test_an_extent_without_an_end_asks_a_human_and_trains_on_nothing() -> None:
    run = play(Scenario(damaged=frozenset(range(24, 200))))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert "no 8 healthy windows in a row" in str(run.announced[-1].reason)
    assert run.state.attempt == 2
    assert not [attempt for attempt, _, _ in run.trained if attempt > 1]
    assert run.living == [1]


def test_a_spent_budget_asks_a_human() -> None:
    run = play(Scenario(latent=(12, 28), max_rollbacks=1))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert "1 rollbacks within the budget's window are spent" in str(run.announced[-1].reason)
    assert len(records(run, "TargetSelected")) == 1


def test_a_stop_rule_stops_the_run_and_closes_its_incident() -> None:
    run = play(replace(DAMAGED, action="Stop"))
    check(run)
    state = run.state
    assert state.phase is RunPhase.STOPPED
    assert [incident.outcome for incident in state.closed] == ["Stopped"]
    assert run.world.message is not None
    assert run.world.message.reason is Reason.STOPPED
    assert not records(run, "TargetSelected")


def test_the_end_of_the_run_is_judged_before_the_processes_may_exit() -> None:
    run = play(Scenario(damaged=frozenset({42, 43, 44})))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    order = actions(run, "IncidentOpened", "Completed")
    assert order == ["IncidentOpened", "Completed"]
    assert not set(surviving_windows(run)) & {42, 43, 44}
    assert list(run.worlds) == [1]


def test_the_end_of_the_run_ends_a_green_probation() -> None:
    run = play(Scenario(damaged=frozenset({40, 41, 42}), probation=500))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert [incident.outcome for incident in run.state.closed] == ["Recovered"]


def test_what_fired_while_nobody_looked_is_dealt_with_before_the_next_world() -> None:
    """A first world that runs into the damage and dies, all while the operator is away."""

    def fate(run: ScriptedRun) -> None:
        if run.world.number == 1 and run.world.step == 30:
            crash(run)

    started = number_of(DAMAGED, "StartWorld", Phase.RESULT)
    run = play(replace(DAMAGED, downtime=45), kills=[(started, "before")], on_tick=fate)
    check(run)
    (incident,) = run.state.closed
    assert incident.latch.attempt == 1
    assert run.state.phase is RunPhase.COMPLETED
    assert actions(run, "StartWorld", "IncidentOpened", "WorldLost") == [
        "StartWorld",
        "IncidentOpened",
        "WorldLost",
        "StartWorld",
    ]


def test_a_second_incident_is_another_one() -> None:
    run = play(Scenario(damaged=frozenset({14, 15, 16, 37, 38, 39}), probation=4, steps=50))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert [incident.outcome for incident in run.state.closed] == ["Recovered", "Recovered"]
    names = [incident.name for incident in run.state.closed]
    assert len(set(names)) == 2
