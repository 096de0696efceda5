"""Non-finite steps through the state machine: rolled back where a rule acts, released where none does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import actions, crash, finished_healthy, last_directive, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Action, Reason
from trimtab_contract.journal import JournalRecord
from trimtab_operator.run_state import RunPhase


def test_a_non_finite_step_that_a_rule_acts_on_is_rolled_back() -> None:
    run = play(Scenario(nonfinite=frozenset({(1, 23)})))
    check(run)
    (incident,) = run.state.closed
    assert incident.latch.rule == "non-finite"
    assert run.state.phase is RunPhase.COMPLETED
    assert 22 not in surviving_windows(run)


def test_a_self_hold_that_no_rule_explains_is_released_by_name_once() -> None:
    run = play(Scenario(nonfinite=frozenset({(1, 23)}), fires_on_nonfinite=False))
    finished_healthy(run)
    released = [one for one in records(run, "Directive") if (one.after or {})["directive"].get("release")]
    assert [(one.after or {})["directive"]["release"] for one in released] == [23]
    assert "no enforced rule fires on the withheld step 23" in str(released[0].reason)
    assert not run.state.closed


def test_a_release_is_for_one_hold_the_next_attempt_asks_again() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.world.attempt == 1 and run.world.step == 24:
            crash(run)

    run = play(Scenario(nonfinite=frozenset({(1, 23), (2, 23)}), fires_on_nonfinite=False), on_tick=fate)
    finished_healthy(run)
    released = [(one.after or {})["directive"] for one in records(run, "Directive")]
    assert [(one["attempt"], one["release"]) for one in released if one["release"]] == [(1, 23), (2, 23)]


def test_a_world_that_held_by_itself_before_anybody_saw_it_run_is_released_too() -> None:
    """The operator dies after it has started the world, and comes back when the world's first words are history."""
    scenario = Scenario(nonfinite=frozenset({(1, 2)}), fires_on_nonfinite=False, downtime=12)
    finished_healthy(play(scenario, kills=[(8, "after")]))


def stuck_at(step: int) -> Callable[[ScriptedRun], None]:
    """Every update of a step is withheld, until the world ends."""

    def fate(run: ScriptedRun) -> None:
        if run.living and run.world.step == step:
            run.world.die(Reason.STUCK_NON_FINITE, "20 steps in a row")

    return fate


def test_a_world_stuck_once_is_followed_by_one_that_trains() -> None:
    met: set[int] = set()

    def fate(run: ScriptedRun) -> None:
        if run.world.step == 13 and not met:
            met.add(run.world.number)
            stuck_at(13)(run)

    state = finished_healthy(play(Scenario(), on_tick=fate))
    assert state.stuck_steps == (13,)


def test_after_a_world_stuck_twice_at_the_same_step_the_next_one_holds_for_a_human() -> None:
    run = play(Scenario(), on_tick=stuck_at(13))
    check(run)
    state = run.state
    assert state.phase is RunPhase.NEEDS_HUMAN
    assert state.question == "every update was withheld as non-finite, twice at step 13"
    assert run.living == [3]
    directive = last_directive(run)
    assert (directive.action, directive.world) == (Action.HOLD, 3)
    assert (run.world.step, state.restored_attempt) == (10, 3)
    assert not [step for attempt, step in run.records if attempt == 3]
    assert actions(run, "NeedsHuman", "StartWorld", "WorldRestored")[-3:] == [
        "NeedsHuman",
        "StartWorld",
        "WorldRestored",
    ]


def breaks(*steps: int) -> Callable[[ScriptedRun, JournalRecord], None]:
    """The checkpoints of these steps are damaged when a human is asked."""

    def fate(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "NeedsHuman":
            run.scenario = replace(run.scenario, unrestorable=frozenset(steps))

    return fate


def test_a_world_that_holds_for_a_human_takes_an_older_checkpoint_where_the_newest_cannot_be_restored() -> None:
    run = play(Scenario(), on_tick=stuck_at(13), on_record=breaks(10))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert (run.world.number, run.world.step) == (3, 5)
    assert run.living == [3]


def test_a_world_that_holds_for_a_human_and_can_restore_nothing_goes_on_holding() -> None:
    run = play(Scenario(), on_tick=stuck_at(13), on_record=breaks(*range(100)))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert run.living == [3]


@pytest.mark.parametrize("way", ["before", "after", "lost"])
def test_an_operator_killed_anywhere_brings_a_stuck_run_to_the_same_rest(way: str) -> None:
    undisturbed = play(Scenario(steps=20), on_tick=stuck_at(13))
    for number in range(undisturbed.operations):
        run = play(Scenario(steps=20), on_tick=stuck_at(13), kills=[(number, way)])
        check(run)
        assert run.state.phase is RunPhase.NEEDS_HUMAN, number
        assert (run.living, run.world.step, run.state.restored_attempt) == ([3], 10, 3), number


def test_a_world_that_holds_for_a_human_and_is_lost_is_not_replaced() -> None:
    def fate(run: ScriptedRun) -> None:
        stuck_at(13)(run)
        if run.ticks == 70:
            crash(run)

    run = play(Scenario(), on_tick=fate, at_least=75)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert list(run.worlds) == [1, 2, 3]
    assert not run.living


def test_a_suspended_run_that_waits_for_a_human_has_no_held_world() -> None:
    def fate(run: ScriptedRun) -> None:
        stuck_at(13)(run)
        run.suspend = run.ticks > 60

    run = play(Scenario(), on_tick=fate, at_least=70)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert not run.living


def test_a_world_stuck_twice_before_anybody_saw_it_run_asks_a_human_once() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.world.alive:
            run.world.die(Reason.STUCK_NON_FINITE)

    run = play(Scenario(), on_tick=fate)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert len(records(run, "NeedsHuman")) == 1
    assert list(run.worlds) == [1, 2, 3]
