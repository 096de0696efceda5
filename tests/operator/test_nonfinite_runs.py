"""Non-finite steps through the state machine: rolled back where a rule acts, released where none does."""

from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import crash, finished_healthy, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Reason
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
    finished_healthy(play(scenario, kills=[(4, "after")]))


def test_a_world_stuck_twice_at_the_same_step_asks_a_human() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.world.alive and run.world.step == 13:
            run.world.die(Reason.STUCK_NON_FINITE, "20 steps in a row")

    run = play(Scenario(), on_tick=fate)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert "twice at step 13" in str(run.announced[-1].reason)
    assert list(run.worlds) == [1, 2]


def test_a_world_stuck_twice_before_anybody_saw_it_run_asks_a_human_once() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.world.alive:
            run.world.die(Reason.STUCK_NON_FINITE)

    run = play(Scenario(), on_tick=fate)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert len(records(run, "NeedsHuman")) == 1
