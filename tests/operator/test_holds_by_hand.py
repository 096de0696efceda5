"""A person holds a run that no rule stopped: it waits like after a Pause, and the trail names who asked."""

from dataclasses import replace

import pytest
from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, at, crash, last_directive, records
from run_states import SETTINGS, latch
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Action
from trimtab_contract.journal import JournalRecord
from trimtab_operator.incidents import Wishes
from trimtab_operator.run_state import RunPhase
from trimtab_operator.story import sentence

HEALTHY = Scenario(steps=30)
UNCHANGED = Wishes(unchanged=True)


def held(*after: str, tick: int = 12) -> ScriptedRun:
    """A healthy run that is held, and what is asked when it holds."""
    scenario = replace(HEALTHY, answers=tuple(("Held", action) for action in after))

    def ask(run: ScriptedRun) -> None:
        if run.ticks == tick:
            run.ask("Hold")

    # The scenario counts requests, and the hold is the first of them.
    scenario = replace(scenario, answers=(("never", ""), *scenario.answers))
    run = play(scenario, on_tick=ask, at_least=60)
    check(run)
    return run


def test_a_held_run_stands_still_until_a_person_says_how_it_goes_on() -> None:
    run = held()
    state = run.state
    assert state.phase is RunPhase.HOLDING
    assert last_directive(run).action is Action.HOLD
    assert state.incident is not None
    assert state.incident.held_step == run.world.step
    assert run.living == [1]
    assert [(one.action, one.state) for one in state.requests] == [("Hold", "Done")]


def test_the_trail_of_a_held_run_names_who_asked_and_why_and_no_rule() -> None:
    run = held()
    latch = run.state.incident.latch if run.state.incident else None
    assert latch is not None
    assert latch.asked is not None
    assert (latch.asked.by, latch.asked.reason, latch.policy, latch.flagged) == (
        "ada",
        "seen and understood",
        None,
        None,
    )
    (asked,) = records(run, "RunRequested")
    assert asked.on_behalf_of == "ada"
    assert asked.incident == run.state.incident_names[0]
    assert sentence(asked).startswith("ada asks for Hold (seen and understood), which is accepted: every rank holds")
    (stopped,) = records(run, "Held")
    assert "ada asks for Hold (seen and understood)" in sentence(stopped)
    assert not records(run, "IncidentOpened")


def test_a_held_run_that_is_resumed_trains_what_it_would_have_trained() -> None:
    run = held("Resume")
    assert run.state.phase is RunPhase.COMPLETED
    assert surviving_windows(run) == list(range(30))
    assert [one.outcome for one in run.state.closed] == ["Resumed"]
    assert run.state.attempt == 1


def test_a_held_run_can_be_stopped() -> None:
    run = held("Stop")
    assert run.state.phase is RunPhase.STOPPED
    assert [one.outcome for one in run.state.closed] == ["Stopped"]


def test_a_hold_in_a_probation_goes_back_into_it() -> None:
    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if (record.after or {}).get("phase") == "Probation" and not run.requests:
            run.ask("Hold")
        if record.action == "Held" and len(run.requests) == 1:
            run.ask("Resume")

    run = play(replace(DAMAGED, probation=10), on_record=ask, at_least=60)
    check(run)
    state = run.state
    assert state.phase is RunPhase.COMPLETED
    (incident,) = state.closed
    assert (incident.outcome, incident.relapses, len(incident.plans)) == ("Recovered", 0, 1)
    assert [one.action for one in state.requests] == ["Hold", "Resume"]


def test_a_run_that_holds_already_is_not_held_again() -> None:
    run = play(replace(DAMAGED, action="Pause", answers=(("Held", "Hold"),)))
    check(run)
    assert run.state.requests[0].message == (
        "Hold is refused in phase Holding; what is legal there: Resume, Rollback, Skip and Stop"
    )


def test_a_rule_that_rolls_back_takes_over_a_run_that_a_person_holds() -> None:
    """The rule fires on a record from before the hold that is read late."""
    firing = latch(first_bad_step=9, flagged=(8, 10), remediation=SETTINGS)

    def fire(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "Held":
            run.stronger = firing

    run = play(
        replace(HEALTHY, damaged=frozenset({8, 9})),
        on_tick=at({12: lambda run: run.ask("Hold")}),
        on_record=fire,
        at_least=60,
    )
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert records(run, "Upgraded")
    assert not set(surviving_windows(run)) & {8, 9}
    assert [one.latch.asked for one in run.state.closed] == [None]


def test_a_held_run_whose_world_is_lost_waits_all_the_same() -> None:
    run = play(HEALTHY, on_tick=at({12: lambda run: run.ask("Hold"), 20: crash}), at_least=60)
    check(run)
    assert run.state.phase is RunPhase.HOLDING
    assert run.living == []


@pytest.mark.parametrize("unchanged", [True, False])
def test_a_held_run_goes_back_only_where_a_person_says_what_shall_change_or_that_nothing_shall(unchanged: bool) -> None:
    wishes = UNCHANGED if unchanged else Wishes()

    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "Held" and len(run.requests) == 1:
            run.ask("Rollback", wishes=wishes)

    run = play(HEALTHY, on_tick=at({12: lambda run: run.ask("Hold")}), on_record=ask, at_least=60)
    check(run)
    if unchanged:
        assert run.state.phase is RunPhase.COMPLETED
        assert surviving_windows(run) == list(range(30))
        assert run.state.attempt == 2
        assert "nothing is changed" in sentence(records(run, "RunRequested")[-1])
    else:
        assert run.state.phase is RunPhase.HOLDING
        assert "the plan would change nothing" in run.state.requests[-1].message


def test_a_hold_and_a_rollback_that_a_stop_overtakes_are_not_called_done() -> None:
    for action, wishes in (("Hold", Wishes()), ("Rollback", Wishes(step=5, unchanged=True))):

        def ask(run: ScriptedRun, action: str = action, wishes: Wishes = wishes) -> None:
            if run.ticks == 12:
                run.ask(action, wishes=wishes)
                run.ask("Stop")

        run = play(HEALTHY, on_tick=ask)
        check(run)
        asked, stopped = run.state.requests
        assert run.state.phase is RunPhase.STOPPED
        assert (asked.state, stopped.state) == ("Abandoned", "Done")
        assert asked.message.endswith("this did not come about, for the run was Stopped before")
