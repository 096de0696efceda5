"""Whole runs through the state machine: healthy ones, edited ones, and whatever may happen to one."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played_trainer import Scenario
from run_checks import check
from run_fates import DAMAGED, actions, at, crash, drain, finished_healthy, hang, last_directive
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Action, Reason
from trimtab_operator.run_state import RunPhase


def test_a_healthy_run_completes_without_an_incident() -> None:
    run = play(Scenario())
    state = finished_healthy(run)
    assert state.attempt == 1
    assert not state.closed
    assert set(actions(run)) == {
        "Takeover",
        "PolicyAccepted",
        "StartWorld",
        "WorldRunning",
        "Committed",
        "Completed",
    }
    assert last_directive(run).action is Action.FINISH
    assert run.world.message is not None
    assert run.world.message.reason is Reason.FINISHED


def test_an_edited_policy_judges_from_the_next_record_on_and_restarts_nothing() -> None:
    def edit(run: ScriptedRun) -> None:
        run.policy_generation = 2

    run = play(Scenario(), on_tick=at({20: edit}))
    state = finished_healthy(run)
    assert list(run.worlds) == [1]
    assert [guard.policies[0].generation for guard in state.guards] == [1, 2]
    switched = state.guards[1].from_step
    assert 5 < switched < 25
    for step, generation in ((switched - 1, 1), (switched, 2), (switched + 1, 2)):
        guard = state.guard_at(1, step)
        assert guard is not None
        assert guard.policies[0].generation == generation
    assert state.guard_at(2, 1) == state.guards[1]


FATES = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from(["crash", "drain", "hang", "suspend", "resume", "edit"])), max_size=6
)
SCENARIOS = st.sampled_from(
    [
        Scenario(max_restarts=9),
        replace(DAMAGED, max_restarts=9),
        Scenario(latent=(12, 28), steps=40, max_restarts=9),
        Scenario(mismatch=23, max_restarts=9),
        Scenario(damaged=frozenset({42, 43, 44}), max_restarts=9),
        Scenario(nonfinite=frozenset({(1, 23), (2, 30)}), max_restarts=9),
        replace(DAMAGED, unrestorable=frozenset({20}), control_bad=frozenset({15}), max_restarts=9),
    ]
)


@given(SCENARIOS, FATES, st.lists(st.integers(0, 90), max_size=3), st.integers(0, 9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_whatever_happens_to_worlds_and_operators_the_run_ends_well(
    scenario: Scenario, fates: list[tuple[int, str]], kills: list[int], downtime: int
) -> None:
    by_name: dict[str, Callable[[ScriptedRun], None]] = {"crash": crash, "drain": drain, "hang": hang}

    def fate(run: ScriptedRun) -> None:
        for tick, name in fates:
            if tick != run.ticks or not run.worlds:
                continue
            if name in by_name:
                by_name[name](run)
            elif name == "edit":
                run.generation += 1
            else:
                run.suspend = name == "suspend"
        if run.ticks > 75:
            run.suspend = False

    run = play(replace(scenario, downtime=downtime), kills=[(one, "after") for one in kills], on_tick=fate, at_least=80)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert not run.living
