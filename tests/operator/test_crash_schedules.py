"""The operator interrupted around every append and every effect, once and in all pairs: the same story every time.

These are the runs that nobody has a hand in; `test_attended_schedules` has those of people. What is interrupted, how,
and what must come of it is in `crash_scenarios`.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from crash_scenarios import DAMAGED, PAIRED_WAYS, SCENARIOS, UNATTENDED, WAYS, Enumeration, same, search
from run_checks import check, surviving_windows
from schedule_search import Violation
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Reason
from trimtab_operator.run_state import RunPhase
from wrong_operators import (
    ActsBeforeItsIntent,
    ForgetsTheSkipOnRetry,
    ReportsDoneWhatFailed,
    SettlesAfterDeciding,
    TrustsWhatIsQuarantined,
)


@pytest.fixture(scope="module")
def enumeration() -> Iterator[Enumeration]:
    """Prints what all scenarios of this module come to."""
    found = Enumeration()
    yield found
    print(f"\nunattended runs: {found}")


@pytest.mark.parametrize("name", UNATTENDED)
def test_one_interruption_or_two_anywhere_change_nothing(name: str, enumeration: Enumeration) -> None:
    enumeration.add(name)


@pytest.mark.parametrize("downtime", [3, 25])
def test_an_operator_that_stays_away_for_a_while_comes_to_the_same_decisions(downtime: int) -> None:
    found = search(replace(DAMAGED, downtime=downtime), ("after",))
    print(f"away for {downtime} ticks: {found.schedules(1)[1][0]} schedules")


def test_runs_known_from_where_they_stand_end_as_those_that_are_played_to_the_end() -> None:
    """The search takes for known what stands where a run stood; a sample of its schedules, drawn anew, is played."""
    seed = 20261129
    chance = random.Random(seed)
    for name in SCENARIOS:
        undisturbed = play(SCENARIOS[name])
        for _ in range(3):
            first, second = sorted(chance.sample(range(undisturbed.operations + 2), 2))
            kills = [(first, chance.choice(PAIRED_WAYS)), (second, chance.choice(PAIRED_WAYS))]
            same(play(SCENARIOS[name], kills=kills), undisturbed)
    print(f"{3 * len(SCENARIOS)} schedules of two interruptions, drawn with seed {seed}")


@pytest.mark.parametrize("name", ["damaged", "target-fails", "control-bad"])
def test_a_world_that_dies_while_no_operator_is_there_changes_neither_targets_nor_skip(name: str) -> None:
    scenario = replace(SCENARIOS[name], downtime=4)
    undisturbed = play(scenario)
    assert undisturbed.opened_at is not None
    points = range(undisturbed.opened_at, undisturbed.operations)
    for number in points:

        def fate(run: ScriptedRun, number: int = number) -> None:
            if run.operations > number and len(run.worlds) == 1 and run.world.alive:
                run.world.die(Reason.PEER_LOST)

        run = play(scenario, kills=[(number, "after")], on_tick=fate)
        check(run)
        assert run.state.phase is RunPhase.COMPLETED
        assert surviving_windows(run) == surviving_windows(undisturbed)
        assert _essence(run) == _essence(undisturbed)
    print(f"{name}: {len(points)} schedules of an operator and a world")


def _essence(run: ScriptedRun) -> list[tuple[object, ...]]:
    """What must be the same even where another attempt did it."""
    return [
        (one.latch.rule, one.latch.first_bad_step, [plan.target.step for plan in one.plans], one.extent, one.outcome)
        for one in run.state.closed
    ]


def test_three_operators_that_die_at_once_change_nothing() -> None:
    undisturbed = play(DAMAGED)
    for number in range(0, undisturbed.operations, 3):
        same(play(DAMAGED, kills=[(number + more, "before") for more in range(3)]), undisturbed)


# The checker itself: operators that are wrong in one way are caught --------------------------------------------------


@pytest.mark.parametrize(
    "operator", [ActsBeforeItsIntent, ForgetsTheSkipOnRetry, SettlesAfterDeciding, ReportsDoneWhatFailed]
)
def test_an_operator_that_is_wrong_in_one_way_is_caught(operator: type[ScriptedOperator]) -> None:
    with pytest.raises(Violation):
        search(DAMAGED, WAYS, operator).schedules(1)


def test_an_operator_that_trusts_what_is_quarantined_is_caught() -> None:
    run = play(DAMAGED, operator=TrustsWhatIsQuarantined)
    with pytest.raises(AssertionError, match="which nobody trusts"):
        check(run)
