"""While the breaker over all runs is open nothing begins, what holds keeps holding, and no person is kept waiting."""

from dataclasses import replace

from played_trainer import Scenario
from run_checks import check
from run_fates import DAMAGED, actions, at, crash, finished_healthy, last_directive, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Action
from trimtab_operator.run_state import AutomationHold, RequestAction, RunPhase
from trimtab_operator.story import event_of

TRIP = AutomationHold(id="breaker-100", message="3 runs failed within 300 s (a, b, c)", since=100.0, runs=("a", "b"))
NOT_ALL_READ = AutomationHold(id="", message="journals are still read")


def held(run: ScriptedRun) -> None:
    run.automation = TRIP


def free(run: ScriptedRun) -> None:
    run.automation = None


def test_a_run_that_holds_waits_before_its_plan_and_its_journal_says_why() -> None:
    run = play(DAMAGED, on_tick=held)
    check(run)
    assert run.state.phase is RunPhase.SELECTING
    assert last_directive(run).action is Action.HOLD, "the weights are not protected"
    assert not records(run, "TargetSelected")
    (waits,) = records(run, "AutomationHeld")
    assert (waits.reason or {})["message"] == TRIP.message
    told = event_of(waits)
    assert told is not None
    assert told[1] == "BreakerTripped"


def test_it_goes_on_by_itself_when_the_others_are_quiet() -> None:
    run = play(DAMAGED, on_tick=at({1: held, 60: free}), at_least=70)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    story = actions(run, "AutomationHeld", "AutomationReleased", "TargetSelected")
    assert story == ["AutomationHeld", "AutomationReleased", "TargetSelected"]
    assert run.state.automation is None


def test_a_lost_world_is_not_replaced_until_then() -> None:
    run = play(Scenario(steps=20), on_tick=at({2: held, 8: crash, 30: free}), at_least=40)
    finished_healthy(run)
    story = actions(run, "StartWorld", "WorldLost", "AutomationHeld", "AutomationReleased")
    assert story == ["StartWorld", "WorldLost", "AutomationHeld", "AutomationReleased", "StartWorld"]


def test_the_first_world_of_a_new_job_starts() -> None:
    run = play(Scenario(steps=10), on_tick=held)
    finished_healthy(run)
    assert not records(run, "AutomationHeld")


def test_a_world_that_people_ended_is_started_again_when_they_say_so() -> None:
    def suspend(run: ScriptedRun) -> None:
        run.automation, run.suspend = TRIP, 8 <= run.ticks < 20

    run = play(Scenario(steps=20), on_tick=suspend, at_least=30)
    finished_healthy(run)
    assert not records(run, "AutomationHeld")


def test_a_person_lets_one_run_go_on_while_the_others_wait() -> None:
    run = play(replace(DAMAGED, answers=(("AutomationHeld", "Resume"),)), on_tick=held)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    (request,) = run.state.requests
    assert request.action is RequestAction.RESUME
    assert request.message == "the run does not wait for the other runs any more"
    assert len(records(run, "AutomationHeld")) == 1
    assert not run.state.resumptions, "what fired was taken for settled"


def test_an_operator_that_has_not_read_every_journal_begins_nothing_and_writes_nothing() -> None:
    def unread(run: ScriptedRun) -> None:
        run.automation = NOT_ALL_READ

    run = play(DAMAGED, on_tick=unread)
    assert run.state.phase is RunPhase.SELECTING
    assert not records(run, "AutomationHeld")


def test_a_hold_that_the_journal_knows_outlives_an_operator_that_has_not_read_every_journal() -> None:
    def unread(run: ScriptedRun) -> None:
        run.automation = TRIP if run.ticks < 60 else NOT_ALL_READ

    run = play(DAMAGED, on_tick=unread, at_least=70)
    assert run.state.automation == TRIP
    assert not records(run, "AutomationReleased")
