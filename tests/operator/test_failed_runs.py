"""A failed run waits for an edit of its job and for nothing else."""

from played_trainer import Scenario
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_operator.run_state import JournalAction, RunPhase

BAD = Scenario(steps=12, bad_config=True)


def edited_policies(run: ScriptedRun) -> None:
    if run.ticks == 8:
        run.policy_generation += 1


def edited_policies_then_job(run: ScriptedRun) -> None:
    edited_policies(run)
    if run.ticks == 12:
        run.generation += 1


def test_a_failed_run_takes_no_policy_up() -> None:
    run = play(BAD, on_tick=edited_policies, at_least=14)
    accepted = [one for one in run.announced if one.action == JournalAction.POLICY_ACCEPTED]
    assert run.state.phase is RunPhase.FAILED
    assert len(accepted) == 1


def test_a_run_that_is_reopened_is_judged_by_the_policies_of_then() -> None:
    run = play(BAD, on_tick=edited_policies_then_job, at_least=14)
    assert run.state.phase is RunPhase.COMPLETED
    assert [guard.policies[0].generation for guard in run.state.guards] == [1, 2]
    actions = [one.action for one in run.announced]
    assert actions.index(JournalAction.REOPENED) < len(actions) - 1 - actions[::-1].index(JournalAction.POLICY_ACCEPTED)
