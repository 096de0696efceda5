"""A person takes a run back: to which checkpoint, with what changed, and what is refused before anything is touched."""

from dataclasses import replace

import msgspec
import pytest
from played_trainer import RUN, Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, actions, at, crash, last_directive, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Directive, LearningRateOverride, Reason
from trimtab_contract.journal import JournalRecord
from trimtab_operator.incidents import Wishes
from trimtab_operator.run_state import CheckpointState, RequestState, RunPhase
from trimtab_operator.story import sentence

HEALTHY = Scenario(steps=30)
TICK = 22
"""The run is at step 18 or so, with checkpoints of steps 0, 5, 10 and 15."""


def asked(wishes: Wishes, scenario: Scenario = HEALTHY, *, tick: int = TICK) -> ScriptedRun:
    run = play(scenario, on_tick=at({tick: lambda run: run.ask("Rollback", wishes=wishes)}), at_least=60)
    check(run)
    return run


def targets(run: ScriptedRun) -> list[int]:
    return [plan.target.step for incident in run.state.closed for plan in incident.plans]


def key_of(step: int, attempt: int = 1) -> str:
    return f"{RUN}/checkpoints/{step:012d}-a{attempt:06d}-x/manifest.json"


def restoring(run: ScriptedRun) -> Directive:
    """The directive with which the run goes on behind its restore."""
    (resumed,) = [one for one in records(run, "Directive") if (one.after or {}).get("phase") == "Probation"]
    return msgspec.convert((resumed.after or {})["directive"], type=Directive)


def test_a_run_that_trains_goes_back_before_the_windows_that_a_person_wants_skipped() -> None:
    run = asked(Wishes(skip=(12, 13)))
    assert run.state.phase is RunPhase.COMPLETED
    assert targets(run) == [10]
    assert surviving_windows(run) == [window for window in range(32) if window not in {12, 13}]
    assert actions(run, "Held", "Diagnosed", "TargetSelected", "Restored", "ExtentFound", "IncidentClosed") == [
        "Held",
        "Diagnosed",
        "TargetSelected",
        "Restored",
        "ExtentFound",
        "IncidentClosed",
    ]
    assert [(one.action, one.state) for one in run.state.requests] == [("Rollback", "Done")]


def test_what_a_person_names_is_what_is_restored_and_what_changes() -> None:
    rate = LearningRateOverride(scale=0.5, until_step=8)
    run = asked(Wishes(step=5, learning_rate=rate))
    assert targets(run) == [5]
    assert restoring(run).lr == LearningRateOverride(scale=0.5, until_step=13)
    assert restoring(run).skip == ()
    assert surviving_windows(run) == list(range(30))


def test_a_checkpoint_can_be_named_by_its_manifest() -> None:
    run = asked(Wishes(key=key_of(10), unchanged=True))
    assert targets(run) == [10]
    assert surviving_windows(run) == list(range(30))


def test_a_pure_rollback_is_recorded_as_such() -> None:
    run = asked(Wishes(unchanged=True))
    (request, *_) = records(run, "RunRequested")
    assert sentence(request).endswith(
        "the run goes back to the newest trustworthy checkpoint before the damage, and trains the same steps again: "
        "nothing is changed"
    )
    assert (request.after or {})["wishes"]["unchanged"] is True
    (plan,) = run.state.closed[0].plans
    assert (plan.bound, plan.learning_rate) == (None, None)


def test_a_rollback_by_hand_costs_no_budget_and_is_counted() -> None:
    run = asked(Wishes(unchanged=True), replace(HEALTHY, max_rollbacks=0))
    assert run.state.phase is RunPhase.COMPLETED
    assert (run.state.rollback_times, run.state.rollbacks_asked) == ((), 1)


def test_checkpoints_that_a_rollback_by_hand_leaves_behind_are_not_called_damaged() -> None:
    run = asked(Wishes(step=5, unchanged=True))
    assert {one.state for one in run.state.checkpoints} <= {
        CheckpointState.COMMITTED,
        CheckpointState.VERIFIED,
        CheckpointState.CERTIFIED,
    }


def test_a_paused_run_is_measured_all_the_same_where_a_person_names_only_the_checkpoint() -> None:
    run = play(replace(DAMAGED, action="Pause", answers=(("Held", "Rollback", Wishes(step=10)),)))
    check(run)
    assert targets(run) == [10]
    assert run.state.closed[0].extent is not None
    assert not set(surviving_windows(run)) & SKIPPED


def test_a_paused_run_skips_what_a_person_names_in_place_of_what_is_measured() -> None:
    wishes = Wishes(skip=(22, 33))
    run = play(replace(DAMAGED, action="Pause", answers=(("Held", "Rollback", wishes),)))
    check(run)
    assert last_directive(run).skip == ((22, 33),)
    assert run.state.phase is RunPhase.COMPLETED


def test_a_run_in_probation_goes_behind_the_plan_that_it_is_in() -> None:
    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if (record.after or {}).get("phase") == "Probation" and not run.requests:
            run.ask("Rollback", wishes=Wishes(unchanged=True))

    run = play(replace(DAMAGED, probation=10), on_record=ask, at_least=60)
    check(run)
    (incident,) = run.state.closed
    assert [plan.target.step for plan in incident.plans] == [20, 15]
    assert (incident.outcome, incident.relapses) == ("Recovered", 0)
    assert not set(surviving_windows(run)) & SKIPPED


def test_a_rollback_of_a_run_whose_world_is_gone_starts_the_next_one_there() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.ticks == TICK:
            crash(run)
            run.ask("Rollback", wishes=Wishes(step=5, unchanged=True))

    run = play(HEALTHY, on_tick=fate, at_least=60)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert targets(run) == [5]
    assert list(run.worlds) == [1, 2]


def test_where_the_checkpoint_that_a_person_names_cannot_be_restored_no_other_takes_its_place() -> None:
    run = asked(Wishes(step=10, unchanged=True), replace(HEALTHY, unrestorable=frozenset({10})))
    state = run.state
    assert state.phase is RunPhase.NEEDS_HUMAN
    assert state.question.startswith("the checkpoint that a person named, of step 10, cannot be restored: quarantined")


def test_where_the_usual_choice_cannot_be_restored_the_next_older_one_is_taken() -> None:
    run = asked(Wishes(skip=(12, 13)), replace(HEALTHY, unrestorable=frozenset({10})))
    assert run.state.phase is RunPhase.COMPLETED
    assert targets(run) == [10, 5]


def test_a_run_that_was_stuck_goes_back_when_a_person_says_what_changes() -> None:
    stuck = frozenset((attempt, 20) for attempt in range(1, 3))

    def fate(run: ScriptedRun) -> None:
        if run.world.alive and run.world.step == 20 and run.world.number < 3:
            run.world.die(Reason.STUCK_NON_FINITE)

    answers = (("NeedsHuman", "Rollback", Wishes(skip=(19, 20))),)
    run = play(Scenario(nonfinite=stuck, fires_on_nonfinite=False, answers=answers), on_tick=fate, at_least=90)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert not set(surviving_windows(run)) & {19, 20}
    (incident,) = run.state.closed
    assert incident.latch.asked is not None


# What is refused ------------------------------------------------------------------------------------------------------

REFUSED = {
    "nothing said": (
        Wishes(),
        "no rule has fired, so nothing is known to be damaged",
    ),
    "only a checkpoint": (Wishes(step=5), "the plan would change nothing"),
    "unknown step": (
        Wishes(step=7, unchanged=True),
        "no checkpoint is of step 7; the newest are of steps 0, 5, 10, 15",
    ),
    "ahead of the run": (Wishes(step=400, unchanged=True), "no checkpoint is of step 400"),
    "unknown manifest": (
        Wishes(key="elsewhere/manifest.json", unchanged=True),
        "no checkpoint of this run has the manifest elsewhere/manifest.json",
    ),
    "trained before the target": (
        Wishes(step=15, skip=(12, 13)),
        "RangeAlreadyTrained: behind step 15 the run goes on with window 15, so windows 12 to 13 begin in",
    ),
    "behind the end": (
        Wishes(step=5, skip=(30, 40)),
        "the run ends with window 29, so windows 30 to 40",
    ),
    "more than the run": (Wishes(step=5, skip=(6, 40)), "are 35, and the whole run trains on 30"),
}


@pytest.mark.parametrize(("wishes", "why"), REFUSED.values(), ids=REFUSED)
def test_a_rollback_that_cannot_be_is_refused_before_anything_is_touched(wishes: Wishes, why: str) -> None:
    run = asked(wishes)
    (request,) = run.state.requests
    assert request.state is RequestState.REFUSED
    assert request.message.startswith("Rollback is refused: ")
    assert why in request.message
    assert run.state.phase is RunPhase.COMPLETED
    assert run.state.attempt == 1
    assert not records(run, "Held")


def second(first: Wishes, then: Wishes, **changes: object) -> str:
    """Why a second rollback is refused, asked for when the first one is over."""

    def ask(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action == "IncidentClosed" and len(run.requests) == 1:
            run.ask("Rollback", wishes=then)

    scenario = replace(HEALTHY, **changes)  # pyright: ignore[reportArgumentType] fields vary
    run = play(scenario, on_tick=at({TICK: lambda run: run.ask("Rollback", wishes=first)}), on_record=ask, at_least=80)
    check(run)
    request = run.state.requests[1]
    assert request.state is RequestState.REFUSED
    return request.message


def test_a_checkpoint_of_an_abandoned_attempt_is_refused() -> None:
    message = second(Wishes(step=5, unchanged=True), Wishes(key=key_of(15), unchanged=True))
    assert "the checkpoint of step 15 cannot be restored: taken in attempt 1, which is no part of" in message


def test_a_quarantined_checkpoint_is_refused() -> None:
    """The run has gone back behind it because it could not be restored."""
    named = Wishes(key=key_of(10), unchanged=True)
    message = second(Wishes(skip=(12, 13)), named, unrestorable=frozenset({10}))
    assert "the checkpoint of step 10 cannot be restored: " in message


def test_windows_that_are_skipped_already_are_refused() -> None:
    message = second(Wishes(skip=(12, 14)), Wishes(step=5, skip=(12, 13)))
    assert "windows 12 to 13 are skipped already, as part of 12 to 14" in message


def test_a_checkpoint_from_behind_the_first_bad_step_is_refused() -> None:
    run = play(replace(DAMAGED, action="Pause", answers=(("Held", "Rollback", Wishes(step=25)),)))
    check(run)
    assert run.state.phase is RunPhase.HOLDING
    assert "the checkpoint of step 25 was taken behind the first bad step 25" in run.state.requests[0].message
