"""When checkpoints do not get stored, the world says so with every ack, until one does."""

from dataclasses import replace

from trimtab_contract.directives import Ack, AckState, CheckpointReference, decode
from trimtab_trainer.checkpointing import (
    Backlog,
    CheckpointBehind,
    Saved,
    SaveFailed,
    SaveRefusal,
    SaveRefused,
)
from trimtab_trainer.telemetry import Outbox, Reporter, Vitals


def saved(step: int) -> Saved:
    return Saved(CheckpointReference(key=f"checkpoints/{step}/manifest.json", sha256="0" * 64, step=step), "Periodic")


def behind(step: int) -> CheckpointBehind:
    return CheckpointBehind(step, 2, "Periodic")


def test_a_backlog_names_the_last_checkpoint_missed_how_many_and_what_is_stored() -> None:
    backlog = Backlog()
    backlog.note(saved(100), 1)
    assert backlog.sentence == ""
    backlog.note(behind(130), 1)
    backlog.note(SaveFailed(120, "the bucket is full", "Periodic"), 1)
    assert backlog.sentence == (
        "the checkpoint after step 120 was not stored: the bucket is full; 2 missed in a row, "
        "the newest stored is that after step 100"
    )


def test_a_state_that_is_refused_or_not_even_tried_is_missed_as_well() -> None:
    """A moment that is infinite lets the loss look healthy while no checkpoint is taken any more."""
    backlog, moment = Backlog(), "rank 0: optimizer.adamw_second_moment.head.weight: 1 elements"
    backlog.note(saved(100), 1)
    backlog.note(SaveRefused(110, SaveRefusal.NON_FINITE, moment, "Periodic"), 1)
    stored = "the newest stored is that after step 100"
    assert backlog.sentence == (
        f"the checkpoint after step 110 was not stored: the state is not finite ({moment}); 1 missed in a row, {stored}"
    )
    backlog.leave_out(120, 1, "the replicas differ")
    assert backlog.sentence == (
        f"the checkpoint after step 120 was left out: the replicas differ; 2 missed in a row, {stored}"
    )


def test_one_that_was_on_its_way_before_does_not_end_a_backlog_and_a_newer_one_does() -> None:
    backlog = Backlog()
    backlog.note(behind(130), 1)
    assert "none is stored yet" in backlog.sentence
    backlog.note(saved(120), 1)
    assert "step 130" in backlog.sentence
    backlog.note(saved(140), 1)
    assert backlog.sentence == ""
    backlog.note(behind(150), 1)
    assert "1 missed in a row, the newest stored is that after step 140" in backlog.sentence


def test_after_a_rollback_any_stored_checkpoint_ends_it() -> None:
    backlog = Backlog()
    backlog.note(behind(130), 1)
    backlog.note(saved(50), 2)
    assert backlog.sentence == ""


def test_every_ack_repeats_it_also_one_whose_state_is_older() -> None:
    reporter = Reporter(outbox := Outbox(10), Vitals(), lambda: 0.0)
    frame = Ack(
        state=AckState.RUNNING, epoch=1, seq=1, world=1, attempt=1, ranks=1, hosts=(), step=0, progress=0, time=0
    )
    reporter.state(frame)
    outbox.remove(outbox.peek(1))
    reporter.checkpoints("the checkpoint after step 30 was left out")
    wire = reporter.repetition()
    assert wire is not None
    assert decode(Ack, wire).checkpoints_behind == "the checkpoint after step 30 was left out"


def test_what_becomes_of_a_suspect_state_is_no_backlog_and_ends_none() -> None:
    backlog = Backlog()
    backlog.note(SaveFailed(140, "the bucket is full", "Suspect"), 1)
    backlog.note(CheckpointBehind(140, 2, "Suspect"), 1)
    backlog.note(SaveRefused(140, SaveRefusal.REPLICA_MISMATCH, "rank 1", "Suspect"), 1)
    assert backlog.sentence == ""
    backlog.note(behind(130), 1)
    told = backlog.sentence
    backlog.note(replace(saved(140), trigger="Suspect"), 1)
    assert backlog.sentence == told
