"""A person takes windows out that the run has not come to: in any phase before the ledger is a plan's own business."""

from dataclasses import replace

import pytest
from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, at, crash, last_directive, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.journal import JournalRecord
from trimtab_operator.incidents import Wishes
from trimtab_operator.run_state import RequestState, RunPhase
from trimtab_operator.story import sentence

HEALTHY = Scenario(steps=30)
AHEAD = Wishes(skip=(43, 44))


def without(run: ScriptedRun, *skipped: tuple[int, int]) -> bool:
    left_out = {window for first, last in skipped for window in range(first, last + 1)}
    windows = [window for window in range(run.scenario.steps + len(left_out)) if window not in left_out]
    return surviving_windows(run) == windows


def asked(wishes: Wishes, scenario: Scenario = HEALTHY, *, tick: int = 8) -> ScriptedRun:
    run = play(scenario, on_tick=at({tick: lambda run: run.ask("Skip", wishes=wishes)}), at_least=60)
    check(run)
    return run


def test_windows_ahead_are_left_out_and_the_trainers_word_is_waited_for() -> None:
    run = asked(Wishes(skip=(20, 22)))
    assert run.state.phase is RunPhase.COMPLETED
    assert without(run, (20, 22))
    (request,) = run.state.requests
    assert (request.state, request.skip) == (RequestState.DONE, (20, 22))
    (taken,) = records(run, "Skipped")
    assert sentence(taken).startswith("the trainer has taken windows 20 to 22 out, from behind step ")
    assert taken.seq > records(run, "RunRequested")[0].seq
    assert request.done_at == taken.time
    assert run.state.attempt == 1


@pytest.mark.parametrize(
    "when",
    ["StartWorld", "WorldRunning", "IncidentOpened", "Held", "Diagnosed", "TargetSelected", "IncidentClosed"],
)
def test_a_skip_is_taken_in_every_phase_before_the_extent_is_measured_and_survives_the_rollback(when: str) -> None:
    run = play(replace(DAMAGED, answers=((when, "Skip", AHEAD),)), at_least=60)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert without(run, (min(SKIPPED), max(SKIPPED)), (43, 44))
    assert [(one.state, one.skip) for one in run.state.requests] == [(RequestState.DONE, (43, 44))]


def test_a_skip_in_a_probation_leaves_the_incident_alone() -> None:
    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if (record.after or {}).get("phase") == "Probation" and not run.requests:
            run.ask("Skip", wishes=AHEAD)

    run = play(replace(DAMAGED, probation=10), on_record=ask)
    check(run)
    assert without(run, (min(SKIPPED), max(SKIPPED)), (43, 44))
    assert [(one.outcome, one.relapses) for one in run.state.closed] == [("Recovered", 0)]


def test_a_skip_in_a_pause_is_taken_when_the_run_goes_on() -> None:
    answers = (("Held", "Skip", AHEAD), ("RunRequested", "Resume"))
    run = play(replace(DAMAGED, action="Pause", damaged=frozenset({24, 25, 26}), answers=answers))
    check(run)
    assert without(run, (43, 44))
    assert [one.state for one in run.state.requests] == [RequestState.DONE, RequestState.DONE]


def test_a_world_that_is_lost_before_it_heard_of_a_skip_leaves_it_to_the_next_one() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.ticks == 8:
            crash(run)
            run.ask("Skip", wishes=Wishes(skip=(20, 22)))

    run = play(HEALTHY, on_tick=fate)
    check(run)
    assert without(run, (20, 22))
    assert list(run.worlds) == [1, 2]


def test_skips_are_told_one_after_the_other() -> None:
    def ask(run: ScriptedRun) -> None:
        if run.ticks == 8:
            run.ask("Skip", wishes=Wishes(skip=(20, 22)))
            run.ask("Skip", wishes=Wishes(skip=(25, 26)))

    run = play(HEALTHY, on_tick=ask)
    check(run)
    assert without(run, (20, 22), (25, 26))
    assert [len((one.after or {})["requests"]) for one in records(run, "Skipped")] == [1, 1]


REFUSED = {
    "trained": (Wishes(skip=(1, 3)), "RangeAlreadyTrained: behind step "),
    "reaching back": (
        Wishes(skip=(0, 25)),
        "windows 0 to 25 begin in what is trained; go back behind them with Rollback",
    ),
    "behind the end": (Wishes(skip=(30, 31)), "the run ends with window 29, so windows 30 to 31 are none of its"),
    "more than the run": (
        Wishes(skip=(25, 999_999_999_999_999)),
        "are 999999999999975, and the whole run trains on 30: what is skipped cannot be taken back",
    ),
    "no windows": (Wishes(), "it names no windows"),
}


@pytest.mark.parametrize(("wishes", "why"), REFUSED.values(), ids=REFUSED)
def test_a_skip_that_cannot_be_is_refused_before_the_trainer_hears_of_it(wishes: Wishes, why: str) -> None:
    run = asked(wishes)
    (request,) = run.state.requests
    assert request.state is RequestState.REFUSED
    assert request.message.startswith("Skip is refused: ")
    assert why in request.message
    assert last_directive(run).skip == ()
    assert without(run)


def test_windows_that_are_skipped_already_are_refused() -> None:
    def ask(run: ScriptedRun) -> None:
        if run.ticks in {8, 14}:
            run.ask("Skip", wishes=Wishes(skip=(20, 22)))

    run = play(HEALTHY, on_tick=ask)
    check(run)
    assert "windows 20 to 22 are skipped already, as part of 20 to 22" in run.state.requests[1].message


def test_a_skip_while_the_extent_is_measured_is_refused() -> None:
    run = play(replace(DAMAGED, answers=(("Restored", "Skip", AHEAD),)))
    check(run)
    assert run.state.requests[0].message == "Skip is refused in phase DiagnosingRestored; what is legal there: Stop"


@pytest.mark.parametrize("interruption", [None, "before", "after", "lost"])
def test_a_skip_that_the_trainer_refuses_is_refused_and_taken_out_again_and_the_run_goes_on(
    interruption: str | None,
) -> None:
    """A trainer that stands further than it has said."""
    scenario = replace(HEALTHY, refuses_skips=True)

    def ask(run: ScriptedRun) -> None:
        if run.ticks == 8:
            run.ask("Skip", wishes=Wishes(skip=(20, 22)))

    last = play(scenario, on_tick=ask).operations if interruption else 1
    for number in range(last):
        run = play(scenario, on_tick=ask, kills=[(number, interruption)] if interruption else ())
        check(run, refuses=True)
        assert run.state.phase is RunPhase.COMPLETED
        assert without(run)
        assert last_directive(run).skip == ()
        (request,) = run.state.requests
        assert request.state is RequestState.REFUSED
        assert "the windows to skip were trained" in request.message
        assert not records(run, "Skipped")


def test_a_skip_that_the_trainer_refuses_in_a_probation_does_not_end_it() -> None:
    """The plan skips nothing there, as replicas differed: it has lost nothing."""

    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if (record.after or {}).get("phase") == "Probation" and not run.requests:
            run.ask("Skip", wishes=Wishes(skip=(35, 36)))
            run.scenario = replace(run.scenario, refuses_skips=True)

    run = play(Scenario(mismatch=18, probation=10), on_record=ask)
    check(run, refuses=True)
    assert run.state.phase is RunPhase.COMPLETED
    assert [one.outcome for one in run.state.closed] == ["Recovered"]
    assert [one.state for one in run.state.requests] == [RequestState.REFUSED]
