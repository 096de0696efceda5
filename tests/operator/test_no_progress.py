"""A cause that a rollback does not touch: cured by a lower learning rate, or left to people; never a loop."""

from dataclasses import replace

import msgspec
import pytest
from played_trainer import Scenario
from run_checks import check
from run_fates import actions, last_directive, records
from run_states import attempts, checkpoint, incident, reference, run_state
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Action, Directive, LearningRateOverride
from trimtab_contract.journal import JournalRecord
from trimtab_operator.bookkeeping import next_record
from trimtab_operator.commands import Append
from trimtab_operator.incidents import Finding, Plan, SkipRange
from trimtab_operator.observation import Limits, Observation
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import RunPhase

RATE_TOO_HIGH = Scenario(steps=60, diverges=30, max_rollbacks=100)
"""From step 30 on every state is spoiled, whatever it is trained on, unless the learning rate is lowered."""


LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=10, generation=1, suspend=False)
OBSERVED = Observation(job="demo", now="2026-01-01T00:00:00+00:00", limits=LIMITS)


def targets(run: ScriptedRun) -> list[int]:
    return [plan.target.step for one in (*run.state.closed, run.state.incident) if one for plan in one.plans]


def test_a_naive_rollback_breaks_at_the_same_step_again_and_a_human_is_asked_before_it_loops() -> None:
    run = play(RATE_TOO_HIGH)
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert run.state.question == "3 plans in a row broke again at about step 32: no progress"
    fired = [((one.after or {})["latch"]["first_bad_step"]) for one in records(run, "Relapsed")]
    assert fired == [30, 30, 30]
    assert targets(run) == sorted(targets(run), reverse=True) == [25, 20, 10]
    assert len(run.state.rollback_times) == 3


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_each_relapse_goes_further_back_whatever_the_factor(factor: float) -> None:
    run = play(replace(RATE_TOO_HIGH, margin_factor=factor))
    assert targets(run) == {1.0: [25, 20, 15], 3.0: [25, 15, 0]}[factor]


def test_the_policys_lower_learning_rate_cures_it_at_once() -> None:
    run = play(replace(RATE_TOO_HIGH, rate=(0.1, 100)))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert not records(run, "Relapsed")
    lr = last_directive(run).lr
    assert lr is not None
    assert (lr.scale, lr.until_step) == (0.1, 125)
    resumed = records(run, "Directive")[3]
    assert str((resumed.reason or {})["message"]).endswith("at 0.1 of the learning rate up to step 125")


def test_a_lower_learning_rate_that_ends_too_early_gets_on_by_its_length_until_the_budget_is_spent() -> None:
    run = play(replace(RATE_TOO_HIGH, rate=(0.1, 20), max_rollbacks=3, steps=90))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert run.state.question == "3 rollbacks within the budget's window are spent (budget.maxRollbacks)"
    assert targets(run) == [25, 40, 55]
    assert [one.outcome for one in run.state.closed] == ["Recovered"] * 3


def test_guards_are_armed_from_the_first_step_behind_a_restore_on() -> None:
    """The state diverges directly behind the restored step: the first three records fire."""
    run = play(replace(RATE_TOO_HIGH, diverges=26, margin=1))
    check(run)
    relapse = records(run, "Relapsed")[0]
    latched = (relapse.after or {})["latch"]
    assert (targets(run)[0], latched["first_bad_step"], latched["fired_step"]) == (25, 26, 28)


def test_a_run_that_breaks_a_little_later_each_time_makes_no_progress_either() -> None:
    """Every plan gets it three steps further, within the margin of where it first broke."""

    def later(run: ScriptedRun, record: JournalRecord) -> None:
        if record.action in {"IncidentOpened", "Relapsed"}:
            run.scenario = replace(run.scenario, diverges=(run.scenario.diverges or 0) + 1)

    run = play(RATE_TOO_HIGH, on_record=later)
    check(run)
    assert run.state.question == "3 plans in a row broke again at about step 32: no progress"
    fired = [((one.after or {})["latch"]["first_bad_step"]) for one in records(run, "Relapsed")]
    assert fired == [31, 32, 33]


def test_getting_on_counts_anew() -> None:
    """The state is spoiled until the third plan goes back far enough: no human is asked."""
    run = play(Scenario(latent=(12, 28), steps=40))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    (incident,) = run.state.closed
    assert (incident.relapses, incident.stalls, incident.furthest) == (2, 2, 30)


def test_a_target_behind_which_the_run_broke_twice_is_quarantined() -> None:
    target = reference(170)
    failed = Plan(number=1, target=target, relapsed="loss-spike fired at step 183 behind it")
    earlier = msgspec.structs.replace(incident(), plans=(failed,))
    state = run_state(
        phase=RunPhase.WATCHING, attempts=attempts((None, 0)), checkpoints=(checkpoint(170),), closed=(earlier,)
    )
    assert not isinstance(next_record(state, OBSERVED), Append)
    command = next_record(replace(state, closed=(earlier, earlier)), OBSERVED)
    assert isinstance(command, Append)
    assert command.draft.action == "Quarantined"
    assert (command.draft.after or {})["why"] == "the run broke again behind it 2 times"


def test_a_step_zero_that_did_not_help_twice_is_no_last_resort_for_ever() -> None:
    run = play(replace(RATE_TOO_HIGH, diverges=4, margin=20, steps=30))
    check(run)
    assert run.state.phase is RunPhase.NEEDS_HUMAN
    assert targets(run)[0] == 0
    assert actions(run, "Relapsed") == ["Relapsed"] * 2
    assert run.state.question.startswith("no trustworthy checkpoint at or before")


def test_a_plan_that_changes_nothing_is_refused_and_a_human_is_asked() -> None:
    """Nothing is left to skip: all that was flagged is in the ledger that is in force already."""
    target = reference(170)
    held = msgspec.structs.replace(
        incident(targets=(target,)), extent_done=True, restoring_attempt=2, finding=Finding.UNDECIDED
    )
    directive = Directive(epoch=1, seq=28, world=1, attempt=2, action=Action.HOLD, restore=target, skip=((180, 183),))
    state = run_state(
        phase=RunPhase.DIAGNOSING_RESTORED,
        attempts=attempts((None, 0), (1, 170)),
        incident=held,
        directive=directive,
        checkpoints=(checkpoint(170),),
    )
    command = advance(state, OBSERVED)
    assert isinstance(command, Append)
    assert command.draft.action == "NeedsHuman"
    assert "it changes nothing" in str(command.draft.reason)
    skips = replace(state, incident=msgspec.structs.replace(held, extent=SkipRange(first=184, last=186, bad=3)))
    transient = replace(state, incident=msgspec.structs.replace(held, finding=Finding.TRANSIENT))
    slower = Plan(number=1, target=target, learning_rate=LearningRateOverride(scale=0.5, until_step=190))
    slows = replace(state, incident=msgspec.structs.replace(held, plans=(slower,)))
    for changed in (skips, transient, slows):
        command = advance(changed, OBSERVED)
        assert isinstance(command, Append)
        assert command.draft.action == "Directive"
