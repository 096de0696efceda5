"""The checkpoint a run was made for: read back and certified before the run completes, wherever that can be."""

from typing import Any

import pytest
from played_trainer import Scenario
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import AckState, Reason
from trimtab_contract.journal import Phase
from trimtab_operator.run_state import CheckpointState, JournalAction, RunPhase

STEPS = 20


def acts(run: ScriptedRun) -> list[str]:
    """What was written of the last step's checkpoint, and the end of the run, in order."""
    told: list[str] = []
    for record in run.announced:
        checkpoint: dict[str, Any] = (record.after or {}).get("checkpoint") or {}
        over = record.action == JournalAction.COMPLETED and record.phase is Phase.INTENT
        if over or checkpoint.get("step") == STEPS:
            told.append(record.action)
    return told


def words(run: ScriptedRun, action: JournalAction) -> str:
    record = next(one for one in reversed(run.announced) if one.action == action and one.phase is not Phase.RESULT)
    return str((record.reason or {}).get("message") or (record.after or {}).get("why"))


@pytest.mark.parametrize("damaged", [frozenset[int](), frozenset({16, 17, 18})])
def test_the_last_checkpoint_is_verified_and_certified_as_final_before_the_run_completes(
    damaged: frozenset[int],
) -> None:
    run = play(Scenario(steps=STEPS, damaged=damaged, read_back=AckState.VERIFIED))
    assert run.violations == []
    assert acts(run)[-4:] == ["Committed", "Verified", "Certified", "Completed"]
    assert words(run, JournalAction.CERTIFIED).startswith("final: ")
    assert words(run, JournalAction.COMPLETED).endswith("the last checkpoint is Certified")


def test_a_last_checkpoint_that_nobody_reads_back_ends_the_run_as_committed_and_it_says_so() -> None:
    run = play(Scenario(steps=STEPS))
    assert run.state.phase is RunPhase.COMPLETED
    assert acts(run) == ["Committed", "Completed"]
    assert "Committed only: nobody has read it back in time" in words(run, JournalAction.COMPLETED)


def test_a_last_checkpoint_that_is_damaged_is_quarantined_and_the_run_completes_at_once() -> None:
    run = play(Scenario(steps=STEPS, read_back=AckState.VERIFY_FAILED))
    assert acts(run) == ["Committed", "Quarantined", "Completed"]
    assert words(run, JournalAction.COMPLETED).endswith("no checkpoint of the last step can be used")


def test_only_the_last_checkpoint_is_certified_as_final() -> None:
    run = play(Scenario(steps=STEPS, certify=1000, read_back=AckState.VERIFIED))
    certified = [one for one in run.state.checkpoints if one.state is CheckpointState.CERTIFIED]
    assert [one.reference.step for one in certified] == [STEPS]


def test_a_trainer_that_says_too_early_that_it_has_finished_completes_nothing() -> None:
    """The word may be forged, or a fault: the run has as many steps as its TrainingJob says."""

    def forge(run: ScriptedRun) -> None:
        if run.world.alive and run.world.step == STEPS // 2:
            run.world.say(AckState.FINISHED)

    run = play(Scenario(steps=STEPS, read_back=AckState.VERIFIED), on_tick=forge)
    assert any(ack.state is AckState.FINISHED and ack.step < STEPS for ack in run.acks), "nothing was forged"
    assert run.violations == []
    assert acts(run)[-4:] == ["Committed", "Verified", "Certified", "Completed"]
    assert words(run, JournalAction.COMPLETED).startswith(f"all {STEPS} steps are trained and judged")
    final = [one.reference.step for one in run.state.checkpoints if one.why.startswith("final: ")]
    assert final == [STEPS]


def test_a_world_that_goes_while_its_last_checkpoint_is_awaited_is_not_started_again() -> None:
    def lose(run: ScriptedRun) -> None:
        if run.acks and run.acks[-1].state is AckState.FINISHED and run.world.alive:
            run.world.die(Reason.PEER_LOST)

    run = play(Scenario(steps=STEPS), on_tick=lose)
    assert run.state.phase is RunPhase.COMPLETED
    assert list(run.worlds) == [1]
