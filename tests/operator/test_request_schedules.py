"""What people ask is answered once and done once, whenever it is asked, and whichever operators die or go on."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played_trainer import Scenario
from run_checks import check, decisions, story, surviving_windows
from scripted_operator import ScriptedOperator, play
from scripted_world import ScriptedRun
from trimtab_contract.directives import LearningRateOverride
from trimtab_contract.journal import effective
from trimtab_operator.errors import Fenced
from trimtab_operator.incidents import Wishes
from trimtab_operator.run_state import RequestAction, RequestState, RunPhase

HEALTHY = Scenario(steps=20)
DAMAGED = Scenario(steps=30, damaged=frozenset(range(14, 18)))
SCENARIOS = {
    "held": replace(HEALTHY, answers=(("WorldRunning", "Hold"), ("Held", "Resume"))),
    "skipped": replace(HEALTHY, answers=(("WorldRunning", "Skip", Wishes(skip=(15, 16))),)),
    "approved": replace(DAMAGED, approval=99, answers=(("TargetSelected", "Approve"),)),
    "rejected": replace(DAMAGED, approval=99, answers=(("TargetSelected", "Reject"), ("NeedsHuman", "Stop"))),
}


def answered_once(run: ScriptedRun) -> None:
    """One answer a request, and an end of each: nothing is left half done where nothing is waited for."""
    answers = Counter(one.id for one in effective(run.announced) if one.action == "RunRequested")
    assert set(answers.values()) <= {1}
    assert set(answers) <= {f"request/{one.uid}" for one in run.requests}
    state = run.state
    known = {one.uid for one in state.requests}
    if state.phase in {RunPhase.COMPLETED, RunPhase.STOPPED}:
        assert not [one for one in state.requests if one.state is RequestState.ACCEPTED]
    unanswered = [one for one in run.requests if one.uid not in known]
    # A run that is over has no operator's turn left for what comes after its end.
    assert not unanswered or state.ended


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_kills_in_a_row_anywhere_change_no_answer(name: str) -> None:
    undisturbed = play(SCENARIOS[name])
    check(undisturbed)
    for number in range(undisturbed.operations + 2):
        run = play(SCENARIOS[name], kills=[(number, "after"), (number + 1, "after")])
        check(run)
        answered_once(run)
        assert (story(run), decisions(run)) == (story(undisturbed), decisions(undisturbed))
        if undisturbed.state.phase is RunPhase.COMPLETED:
            assert surviving_windows(run) == surviving_windows(undisturbed)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_operator_that_goes_on_beside_the_next_one_changes_no_answer(name: str) -> None:
    undisturbed = play(SCENARIOS[name])
    for number in range(0, undisturbed.operations, 2):
        run = together(SCENARIOS[name], number)
        check(run)
        answered_once(run)
        assert decisions(run) == decisions(undisturbed)
        assert run.state.phase is undisturbed.state.phase


def together(scenario: Scenario, taken_over_at: int) -> ScriptedRun:
    """The first operator does not know that a second one leads, from the given act on; both take turns."""
    run = ScriptedRun(scenario)
    operators = [ScriptedOperator(run)]
    quiet = 0
    while run.ticks < 300 and quiet < 12:
        before = (len(run.store.bodies), len(run.records), len(run.acks))
        if run.operations >= taken_over_at and len(operators) == 1:
            operators.append(ScriptedOperator(run))
        for operator in list(operators):
            try:
                operator.turn()
            except Fenced:
                operators = [one for one in operators if one is not operator] or [ScriptedOperator(run)]
        run.tick()
        quiet = quiet + 1 if before == (len(run.store.bodies), len(run.records), len(run.acks)) else 0
    return run


WISHES = st.sampled_from(
    [
        Wishes(),
        Wishes(unchanged=True),
        Wishes(step=5, unchanged=True),
        Wishes(step=10, skip=(15, 17)),
        Wishes(skip=(12, 14)),
        Wishes(skip=(22, 25)),
        Wishes(learning_rate=LearningRateOverride(scale=0.5, until_step=4)),
    ]
)
REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([action.value for action in RequestAction]), WISHES),
    min_size=1,
    max_size=5,
)
KILLS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["before", "after", "lost"])), max_size=3)
RUNS = st.sampled_from(
    [
        HEALTHY,
        DAMAGED,
        replace(DAMAGED, action="Pause"),
        replace(DAMAGED, approval=20),
        replace(DAMAGED, approval=20, unrestorable=frozenset({10})),
        replace(DAMAGED, downtime=3),
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(scenario=RUNS, requests=REQUESTS, kills=KILLS)
def test_whatever_is_asked_whenever_and_whoever_dies_each_request_is_answered_once(
    scenario: Scenario, requests: list[tuple[int, str, Wishes]], kills: Iterable[tuple[int, str]]
) -> None:
    def ask(run: ScriptedRun) -> None:
        for tick, action, wishes in requests:
            if tick == run.ticks:
                run.ask(action, wishes=wishes)

    run = play(scenario, kills=kills, on_tick=ask, at_least=62, ticks=400)
    # A directive that was delayed by a kill may come too late for its windows: then the trainer refuses it.
    check(run, refuses=bool(run.refusals))
    answered_once(run)
