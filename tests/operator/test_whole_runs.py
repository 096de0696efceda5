"""Whole runs through the state machine: what happens, in which order, and what is trained on in the end."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played_trainer import Scenario
from run_checks import check, surviving_windows
from scripted_world import ScriptedRun, play
from trimtab_contract.directives import Action, Directive, Reason, decode
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.incidents import Finding
from trimtab_operator.run_state import CheckpointState, RunPhase, RunState

DAMAGED = Scenario(damaged=frozenset(range(24, 30)))
SKIPPED = set(range(23, 32))


def actions(run: ScriptedRun, *only: str) -> list[str]:
    """The actions of the journal in order, results left out."""
    return [one.action for one in run.announced if one.phase is not Phase.RESULT and (not only or one.action in only)]


def records(run: ScriptedRun, action: str) -> list[JournalRecord]:
    return [one for one in run.announced if one.action == action and one.phase is not Phase.RESULT]


def at(events: dict[int, Callable[[ScriptedRun], None]]) -> Callable[[ScriptedRun], None]:
    """Things that happen at a tick."""
    return lambda run: events.get(run.ticks, lambda _run: None)(run)


def crash(run: ScriptedRun) -> None:
    if run.world.alive:
        run.world.die(Reason.PEER_LOST)


def drain(run: ScriptedRun) -> None:
    if run.world.alive:
        run.world.terminate()


def hang(run: ScriptedRun) -> None:
    run.world.hung = True


def last_directive(run: ScriptedRun) -> Directive:
    assert run.bus is not None
    return decode(Directive, run.bus)


def finished_healthy(run: ScriptedRun) -> RunState:
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert surviving_windows(run) == list(range(run.scenario.steps))
    assert not run.living
    return state


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


def test_when_no_checkpoint_can_be_restored_a_human_is_asked() -> None:
    run = play(replace(DAMAGED, unrestorable=frozenset(range(100))))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert "no trustworthy checkpoint" in str(run.announced[-1].reason)
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


def test_what_fired_while_nobody_looked_is_dealt_with_before_the_next_world() -> None:
    """A first world that runs into the damage and dies, all while the operator is away."""

    def fate(run: ScriptedRun) -> None:
        if run.world.number == 1 and run.world.step == 30:
            crash(run)

    run = play(replace(DAMAGED, downtime=45), kills=[(4, "after")], on_tick=fate)
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


# Worlds that end ------------------------------------------------------------------------------------------------------


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


def test_a_second_incident_is_another_one() -> None:
    run = play(Scenario(damaged=frozenset({14, 15, 16, 37, 38, 39}), probation=4, steps=50))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert [incident.outcome for incident in run.state.closed] == ["Recovered", "Recovered"]
    names = [incident.name for incident in run.state.closed]
    assert len(set(names)) == 2


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
