"""Runs that a rule pauses, and people who answer: resume, roll back, stop; and what is refused."""

from dataclasses import replace

import msgspec
import pytest
from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, actions, at, crash, last_directive, records
from run_states import incident, latch, run_state
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Action, Directive, Reason
from trimtab_contract.journal import JournalRecord
from trimtab_operator.commands import Append
from trimtab_operator.observation import Limits, Observation, Pods, PodsState, Request
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import CheckpointState, RequestAction, RequestState, Resumption, RunPhase

PAUSED = replace(DAMAGED, action="Pause")
HELD_STEP = 27


def answered(*answers: tuple[str, str], **changes: object) -> ScriptedRun:
    run = play(replace(PAUSED, answers=answers, **changes))  # pyright: ignore[reportArgumentType] fields vary
    check(run)
    return run


def answers(run: ScriptedRun) -> list[tuple[str, str]]:
    return [(one.action.value, one.state.value) for one in run.state.requests]


def test_a_paused_run_holds_until_somebody_answers() -> None:
    run = play(PAUSED)
    check(run)
    state = run.state
    assert state.phase is RunPhase.HOLDING
    assert state.incident is not None
    assert state.incident.held_step == HELD_STEP
    assert last_directive(run).action is Action.HOLD
    (held,) = records(run, "Held")
    assert "trimtab job resume demo" in str((held.reason or {})["message"])
    assert not records(run, "Diagnosed")
    assert run.living == [1]


def test_what_was_trained_before_the_hold_of_a_paused_run_is_not_given_up() -> None:
    run = play(PAUSED)
    assert {one.state for one in run.state.checkpoints if one.attempt == 1} <= {
        CheckpointState.COMMITTED,
        CheckpointState.VERIFIED,
        CheckpointState.CERTIFIED,
    }


def test_a_resumed_run_goes_on_where_it_held_and_completes() -> None:
    run = play(replace(PAUSED, damaged=frozenset({24, 25, 26}), answers=(("Held", "Resume"),)))
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert [(one.attempt, one.step) for one in state.resumptions] == [(1, HELD_STEP)]
    assert [incident.outcome for incident in state.closed] == ["Resumed"]
    assert surviving_windows(run) == list(range(run.scenario.steps))
    (asked,) = records(run, "RunRequested")
    assert (asked.on_behalf_of, asked.outcome) == ("ada", "Accepted")
    assert answers(run) == [("Resume", "Done")]


def test_a_rule_that_breaches_on_pauses_again_after_a_streak_of_its_own() -> None:
    """Windows 24 to 29 are bad: three records make a streak, and three more make the next one."""
    run = answered(("Held", "Resume"), ("Held", "Resume"))
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert [(one.latch.first_bad_step, one.latch.fired_step) for one in state.closed] == [(25, 27), (28, 30)]
    assert len({one.name for one in state.closed}) == 2


def test_a_rollback_that_a_person_asks_for_skips_the_damage_and_costs_no_budget() -> None:
    run = answered(("Held", "Rollback"), max_rollbacks=0)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    assert actions(run, "Held", "RunRequested", "Diagnosed", "TargetSelected") == [
        "Held",
        "RunRequested",
        "Diagnosed",
        "TargetSelected",
        "Diagnosed",
    ]
    assert (state.rollback_times, state.rollbacks_asked) == ((), 1)
    assert not set(surviving_windows(run)) & SKIPPED
    assert [one.outcome for one in state.closed] == ["Recovered"]
    suspect = [one for one in state.checkpoints if one.attempt == 1 and one.reference.step == 25]
    assert [one.state for one in suspect] == [CheckpointState.QUARANTINED]
    assert answers(run) == [("Rollback", "Done")]


@pytest.mark.parametrize("when", ["Held", "IncidentOpened", "WorldRunning", "StartWorld"])
def test_a_person_stops_a_run_in_any_phase(when: str) -> None:
    run = answered((when, "Stop"))
    assert run.state.phase is RunPhase.STOPPED
    assert run.world.message is not None
    assert run.world.message.reason is Reason.STOPPED
    (stopped,) = records(run, "Stopped")
    assert stopped.on_behalf_of == "ada"
    assert answers(run) == [("Stop", "Done")]


def test_a_run_without_a_world_is_stopped_before_it_starts() -> None:
    def suspend(run: ScriptedRun) -> None:
        run.suspend = True
        if run.ticks == 3:
            run.ask("Stop")

    run = play(replace(PAUSED, bad_config=True), on_tick=suspend)
    assert not run.violations
    assert run.state.phase is RunPhase.STOPPED


def test_a_failed_run_can_be_stopped_for_good() -> None:
    run = answered(("Failed", "Stop"), bad_config=True)
    assert run.state.phase is RunPhase.STOPPED
    assert answers(run) == [("Stop", "Done")]


@pytest.mark.parametrize("action", ["Rollback", "Stop"])
def test_a_stronger_rule_takes_a_paused_run_over(action: str) -> None:
    def fire(run: ScriptedRun) -> None:
        incident = run.state.incident
        if incident is not None and incident.held_step is not None and run.stronger is None:
            run.stronger = msgspec.structs.replace(incident.latch, rule="worse", action=action)

    run = play(replace(PAUSED, probation=8), on_tick=fire)
    check(run)
    assert records(run, "Upgraded")
    assert run.state.phase is (RunPhase.COMPLETED if action == "Rollback" else RunPhase.STOPPED)
    (incident,) = run.state.closed
    assert (incident.latch.rule, incident.outcome) == ("worse", "Recovered" if action == "Rollback" else "Stopped")


def test_a_pause_within_a_probation_goes_back_into_it() -> None:
    """The rollback leaves damage further on, on which the same rule only pauses by then."""

    def soften(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "ExtentFound":
            run.scenario = replace(run.scenario, action="Pause", answers=(("Held", "Resume"),))

    damage = frozenset({24, 25, 26, 37, 38, 39})
    run = play(Scenario(damaged=damage, probation=16, margin=3), on_record=soften)
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    (asked,) = records(run, "RunRequested")
    assert (asked.after or {})["phase"] == "Probation"
    assert [(one.relapses, one.outcome) for one in state.closed] == [(1, "Recovered")]
    assert len(records(run, "IncidentOpened")) == 1


def test_a_paused_run_whose_world_is_lost_waits_all_the_same_and_goes_on_in_a_new_one() -> None:
    paused = replace(PAUSED, damaged=frozenset({24, 25, 26}))
    run = play(paused, on_tick=at({33: crash}), at_least=60, ticks=80)
    check(run)
    assert run.state.phase is RunPhase.HOLDING
    assert run.living == []

    def answer(run: ScriptedRun) -> None:
        if run.ticks == 33:
            crash(run)
        # By now the data is mended: the new world trains the same steps again.
        if run.ticks == 60:
            run.scenario = replace(run.scenario, damaged=frozenset())
            run.ask("Resume")

    run = play(paused, on_tick=answer, at_least=70)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert answers(run) == [("Resume", "Done")]
    assert list(run.worlds) == [1, 2]


def test_a_held_step_that_was_not_finite_is_passed_when_a_person_resumes() -> None:
    scenario = Scenario(nonfinite=frozenset({(1, 20)}), action="Pause", answers=(("Held", "Resume"),))
    run = play(scenario)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    (released,) = [one for one in records(run, "Directive") if (one.after or {})["directive"]["release"] is not None]
    assert (released.after or {})["directive"]["release"] == 20


def test_a_person_settles_what_was_judged_and_no_record_that_comes_late() -> None:
    """The world held behind step 186, and the operator has read its records up to step 184."""
    state = replace(
        run_state(phase=RunPhase.HOLDING),
        incident=incident(held_step=186, latch=latch(action="Pause", first_bad_step=181)),
        directive=Directive(epoch=1, seq=28, world=1, attempt=1, action=Action.HOLD, incident="demo-a1-s181"),
    )
    asked = Request(uid="u", name="n", action=RequestAction.RESUME, by="ada", reason="seen")
    observation = Observation(
        job="demo",
        now="2026-01-01T00:00:00+00:00",
        limits=Limits(max_rollbacks=1, max_restarts=1, window_seconds=1, certify_steps=1, generation=1, suspend=False),
        pods=Pods(world=1, state=PodsState.LIVE),
        judged_step=184,
        requests=(asked,),
    )
    command = advance(state, observation)
    assert isinstance(command, Append)
    assert (command.draft.after or {})["resumption"] == Resumption(attempt=1, step=184)


# A person who was asked -----------------------------------------------------------------------------------------------

SPENT = Scenario(latent=(12, 28), max_rollbacks=1)


def test_a_spent_budget_does_not_bind_the_person_who_is_asked() -> None:
    run = play(replace(SPENT, answers=(("NeedsHuman", "Rollback"),)))
    check(run)
    state = run.state
    assert len(state.rollback_times) == 1
    (first, second, *_) = [record.after or {} for record in records(run, "TargetSelected")]
    assert (first["counted"], second["counted"]) == (True, False)
    assert state.rollbacks_asked == 1
    assert second["plan"]["target"]["step"] < first["plan"]["target"]["step"]
    assert answers(run)[0] == ("Rollback", "Done")


def test_a_rollback_asked_for_goes_behind_the_plan_that_did_not_help() -> None:
    run = play(replace(DAMAGED, damaged=frozenset(range(24, 200)), answers=(("NeedsHuman", "Rollback"),)))
    check(run)
    assert [plan.target.step for plan in run.state.incident.plans] == [20, 15]  # pyright: ignore[reportOptionalMemberAccess] asserted by the check of phases
    assert run.state.phase is RunPhase.NEEDS_HUMAN


def test_a_person_who_is_asked_may_let_the_held_state_train_on() -> None:
    run = play(replace(SPENT, answers=(("NeedsHuman", "Resume"),), latent=(22, 28), max_rollbacks=0))
    check(run)
    state = run.state
    assert state.closed[0].outcome == "Resumed"
    assert answers(run) == [("Resume", "Done")]
    assert state.attempt == 1


def test_a_person_who_is_asked_may_stop() -> None:
    run = play(replace(SPENT, answers=(("NeedsHuman", "Stop"),)))
    check(run)
    assert run.state.phase is RunPhase.STOPPED
    assert [one.outcome for one in run.state.closed] == ["Stopped"]


# What is refused ------------------------------------------------------------------------------------------------------


def refusal(run: ScriptedRun) -> str:
    (refused,) = [one for one in run.state.requests if one.state is RequestState.REFUSED]
    return refused.message


LEGAL_WHEN = {
    "StartWorld": ("Pending", "Skip and Stop"),
    "WorldRunning": ("Watching", "Hold, Rollback, Skip and Stop"),
    "TargetSelected": ("Restoring", "Skip and Stop"),
    "Restored": ("DiagnosingRestored", "Stop"),
}


@pytest.mark.parametrize("action", ["Resume", "Approve", "Reject"])
@pytest.mark.parametrize("when", LEGAL_WHEN)
def test_a_run_that_nobody_is_asked_about_takes_no_answer(action: str, when: str) -> None:
    run = play(replace(DAMAGED, answers=((when, action),)))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    phase, legal = LEGAL_WHEN[when]
    assert refusal(run) == f"{action} is refused in phase {phase}; what is legal there: {legal}"


@pytest.mark.parametrize("when", ["StartWorld", "TargetSelected"])
def test_a_run_that_starts_or_is_taken_back_already_is_not_rolled_back(when: str) -> None:
    run = play(replace(DAMAGED, answers=((when, "Rollback"),)))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert refusal(run).startswith("Rollback is refused in phase ")
    assert refusal(run).endswith("what is legal there: Skip and Stop")


def test_a_hold_that_a_rule_rolls_back_is_not_resumed() -> None:
    run = play(replace(DAMAGED, answers=(("IncidentOpened", "Resume"),)))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert refusal(run) == (
        "Resume is refused in phase Holding: the rule that fired asks for Rollback; what is legal there: Skip and Stop"
    )


@pytest.mark.parametrize("action", ["Resume", "Rollback", "Stop"])
def test_a_run_that_has_ended_takes_no_requests(action: str) -> None:
    run = play(replace(DAMAGED, action="Stop", answers=(("Stopped", action),)), at_least=60)
    check(run)
    assert refusal(run) == f"{action} is refused in phase Stopped; what is legal there: nothing"


def test_a_request_for_an_earlier_job_of_the_name_is_refused() -> None:
    run = play(PAUSED, on_tick=lambda run: run.ask("Resume", outlived=True) if run.ticks == 5 else None)
    check(run)
    assert run.state.phase is RunPhase.HOLDING
    assert "before this TrainingJob existed" in refusal(run)


def test_a_person_cannot_resume_a_run_whose_world_is_gone_while_they_were_asked() -> None:
    run = play(SPENT, on_tick=at({80: crash, 100: lambda run: run.ask("Resume")}), at_least=110)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert refusal(run) == (
        "Resume is refused in phase NeedsHuman: no world holds that could go on; "
        "what is legal there: Rollback, Skip and Stop"
    )


def test_a_run_that_no_rule_stopped_has_nothing_to_go_back_behind() -> None:
    stuck = frozenset((attempt, 20) for attempt in range(1, 9))

    def fate(run: ScriptedRun) -> None:
        if run.world.alive and run.world.step == 20 and run.state.phase is not RunPhase.NEEDS_HUMAN:
            run.world.die(Reason.STUCK_NON_FINITE)

    scenario = Scenario(nonfinite=stuck, fires_on_nonfinite=False, answers=(("NeedsHuman", "Rollback"),))
    run = play(scenario, on_tick=fate)
    check(run)
    assert "no rule has fired, so nothing is known to be damaged and the plan would change nothing" in refusal(run)


def test_a_request_is_answered_once_however_often_it_is_seen() -> None:
    run = answered(("Held", "Rollback"))
    assert len(records(run, "RunRequested")) == 1
    assert [one.id for one in records(run, "RunRequested")] == ["request/request-1"]


def test_requests_are_answered_in_the_order_in_which_they_were_made() -> None:
    def both(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "Held":
            run.ask("Stop")
            run.ask("Resume")

    run = play(PAUSED, on_record=both, at_least=60)
    check(run)
    assert answers(run) == [("Stop", "Done"), ("Resume", "Refused")]
