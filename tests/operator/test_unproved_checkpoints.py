"""Checkpoints that are what was saved, and behave otherwise where they are restored: what runs them may be to blame."""

from dataclasses import replace

from played_trainer import Scenario
from run_checks import check
from run_fates import DAMAGED, crash, finished_healthy, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_operator.run_state import CheckpointState, RunPhase

EVERY = frozenset(range(100))


def quarantined(run: ScriptedRun) -> list[int]:
    return [one.reference.step for one in run.state.checkpoints if one.state is CheckpointState.QUARANTINED]


def test_one_is_passed_over_without_being_condemned() -> None:
    run = play(replace(DAMAGED, unproved=frozenset({20})))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert [plan.target.step for plan in run.state.closed[0].plans] == [20, 15]
    (failed,) = records(run, "RestoreFailed")
    assert (failed.after or {})["why"] == "ProbeFailed: window 9 has losses [2.5], recorded were [2.25]"
    assert 20 not in [(one.after or {})["checkpoint"]["step"] for one in records(run, "Quarantined")]


def test_after_two_a_human_is_asked_and_no_further_one_is_tried() -> None:
    run = play(replace(DAMAGED, unproved=EVERY), at_least=60)
    state = run.state
    assert state.phase is RunPhase.NEEDS_HUMAN
    assert "2 checkpoints hold what was saved and behave otherwise" in state.question
    assert "compare spec.trainer.image, the nodes' processors and the data with before" in state.question
    assert len(records(run, "RestoreFailed")) == 2
    assert not set(quarantined(run)) & {15, 20}


def test_after_a_crash_the_run_fails_with_its_checkpoints_and_goes_on_once_it_is_edited() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.ticks == 20:
            crash(run)
        if run.ticks == 60:
            run.scenario, run.generation = replace(run.scenario, unproved=frozenset()), 2

    run = play(Scenario(unproved=EVERY), on_tick=fate, at_least=65)
    (failed,) = records(run, "Failed")
    assert "2 checkpoints hold what was saved and behave otherwise" in str(failed.reason)
    assert not records(run, "Quarantined")
    tried = [attempt.branch_step for attempt in finished_healthy(run).attempts[1:]]
    assert tried == [15, 10, 10]


def test_a_run_that_has_checkpoints_never_begins_anew_without_a_word() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.ticks == 20:
            crash(run)
        if run.ticks == 60:
            run.generation = 2

    run = play(Scenario(unrestorable=EVERY), on_tick=fate, at_least=80)
    assert run.state.phase is RunPhase.FAILED
    assert run.state.failure.startswith("none of the run's")
    assert run.state.failure.endswith("to begin anew from the seed, start a new TrainingJob")
    assert len(run.state.attempts) > 1
    assert all(one.parent is not None for one in run.state.attempts[1:])
