"""Worlds that end, by themselves or told to: what the next one starts from, and when there is none."""

from collections.abc import Callable

import pytest
from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, at, crash, drain, finished_healthy, hang, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.run_state import RunPhase


def test_a_crashed_world_is_followed_by_one_from_the_newest_checkpoint() -> None:
    run = play(Scenario(), on_tick=at({20: crash}))
    state = finished_healthy(run)
    assert list(run.worlds) == [1, 2]
    assert state.restarts == 1
    lost_at = max(step for attempt, step in run.records if attempt == 1)
    assert state.attempts[1].branch_step == lost_at // 5 * 5


def test_a_drained_world_loses_no_step_and_counts_for_no_restart() -> None:
    run = play(Scenario(), on_tick=at({20: drain}))
    state = finished_healthy(run)
    assert state.restarts == 0
    assert state.attempts[1].branch_step == max(step for attempt, step in run.records if attempt == 1)


def test_a_hung_world_is_ended_once_and_counts() -> None:
    run = play(Scenario(), on_tick=at({20: hang}))
    state = finished_healthy(run)
    assert len(records(run, "EndWorld")) == 1
    assert state.restarts == 1
    assert [(one.after or {})["reason"] for one in records(run, "WorldLost")] == ["Hung"]


def test_spent_restarts_fail_the_run_and_an_edit_gives_it_another_chance() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.ticks < 80 and run.world.step % 5 == 3:
            crash(run)
        if run.ticks == 90:
            run.generation = 2

    run = play(Scenario(max_restarts=2), on_tick=fate, at_least=95)
    state = finished_healthy(run)
    (failed,) = records(run, "Failed")
    assert "2 restarts are spent (budget.maxRestarts); the last world ended as Crashed" in str(failed.reason)
    assert len(records(run, "Reopened")) == 1
    assert state.restarts <= 2


def test_a_bad_config_fails_at_once_and_heals_with_the_next_generation() -> None:
    def edit(run: ScriptedRun) -> None:
        run.generation = 2

    failed = play(Scenario(bad_config=True))
    assert failed.state.phase is RunPhase.FAILED
    assert failed.state.failure == "BadConfig: model.width must be at least 1"
    assert list(failed.worlds) == [1]
    finished_healthy(play(Scenario(bad_config=True), on_tick=at({10: edit})))


def test_a_suspended_run_has_no_world_and_goes_on_where_it_was() -> None:
    def switch(run: ScriptedRun) -> None:
        run.suspend = 20 <= run.ticks < 40
        if 30 <= run.ticks < 40:
            assert not run.living

    run = play(Scenario(), on_tick=switch, at_least=45)
    state = finished_healthy(run)
    assert len(records(run, "EndWorld")) == 1
    assert state.restarts == 0
    assert list(run.worlds) == [1, 2]


def test_a_run_suspended_while_a_human_is_asked_gives_its_pods_back() -> None:
    def switch(run: ScriptedRun) -> None:
        run.suspend = run.ticks > 60

    run = play(Scenario(damaged=frozenset(range(24, 200))), on_tick=switch, at_least=70)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert not run.living


def test_a_failed_run_leaves_no_pods_that_hold_for_ever() -> None:
    """No checkpoint can be restored after a crash: the held world is ended, and an edit starts the run again."""
    run = play(Scenario(unrestorable=frozenset(range(100))), on_tick=at({20: crash}))
    check(run)
    assert run.state.phase is RunPhase.FAILED
    assert not run.living


def test_a_run_that_crashes_under_its_plan_for_ever_fails_in_the_end() -> None:
    def fate(run: ScriptedRun, record: JournalRecord) -> None:
        started = record.action == "StartWorld" and record.phase is Phase.RESULT and record.incident
        if started or record.action == "TargetSelected":
            crash(run)

    run = play(DAMAGED, on_record=fate)
    check(run)
    assert run.state.phase is RunPhase.FAILED
    assert [incident.outcome for incident in run.state.closed] == ["Failed"]
    assert len(run.worlds) == 1 + run.scenario.max_restarts
    assert not run.living


def test_a_run_whose_first_world_died_before_its_first_checkpoint_begins_anew() -> None:
    run = play(Scenario(initial=False), on_tick=at({4: crash}))
    state = finished_healthy(run)
    assert state.attempts[1].parent is None
    assert state.owner(1) == 2


@pytest.mark.parametrize(
    "phase",
    [
        RunPhase.WATCHING,
        RunPhase.HOLDING,
        RunPhase.DIAGNOSING,
        RunPhase.SELECTING,
        RunPhase.RESTORING,
        RunPhase.DIAGNOSING_RESTORED,
        RunPhase.PROBATION,
    ],
)
@pytest.mark.parametrize("end", [crash, drain, hang])
def test_a_world_lost_in_any_phase_changes_neither_plan_nor_skip(
    phase: RunPhase, end: Callable[[ScriptedRun], None]
) -> None:
    lost: list[int] = []

    def fate(run: ScriptedRun, record: JournalRecord) -> None:
        in_phase = (record.after or {}).get("phase") == phase.value
        if in_phase and not lost:
            lost.append(run.world.number)
            end(run)

    run = play(DAMAGED, on_record=fate)
    check(run)
    state = run.state
    assert lost == [1]
    assert state.phase is RunPhase.COMPLETED
    assert len(run.worlds) == 2
    incident = state.closed[0]
    undisturbed = play(DAMAGED).state.closed[0]
    assert [plan.target.step for plan in incident.plans] == [plan.target.step for plan in undisturbed.plans]
    assert incident.extent == undisturbed.extent
    assert set(surviving_windows(run)) & SKIPPED == set()
    directives = [(one.after or {})["directive"] for one in records(run, "StartWorld")]
    if phase in {RunPhase.SELECTING, RunPhase.RESTORING}:
        assert directives[1]["action"] == "Hold"
        assert directives[1]["restore"]["step"] == 20
        assert directives[1]["diagnose"] is not None


def test_a_world_lost_in_probation_starts_from_the_new_lineage_and_probation_goes_on() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.world.alive and run.world.attempt == 2 and run.world.step == 27:
            crash(run)

    run = play(DAMAGED, on_tick=fate)
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert state.attempts[2].branch_step == 25
    assert state.attempts[2].parent == 2
    assert len(records(run, "IncidentOpened")) == 1
    assert [incident.outcome for incident in state.closed] == ["Recovered"]
