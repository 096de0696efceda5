"""Ways in which public reports say that a resume went wrong: each is refused by the probe behind a restore, and named.

Only one part of the rank at a time is made to do the wrong thing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest
import torch
from probed_rank import STEP, alone, refused, runtime, saved
from stored_slices import manifest_of, rewritten
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference, Reason
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.data.byte_windows import ByteWindows
from trimtab_trainer.errors import DataUnreadable
from trimtab_trainer.loop import Trainee
from trimtab_trainer.optim import MuonClip, RateOverride
from trimtab_trainer.restoration import restore
from trimtab_trainer.runtime import Runtime

__all__ = ["alone", "runtime", "saved"]


def test_a_sound_restore_passes_and_trains_on_from_its_step(runtime: Runtime, saved: CheckpointReference) -> None:
    restore(runtime, saved, SkipLedger())
    assert (runtime.state.step, runtime.state.restored) == (STEP, saved)


def test_a_schedule_that_starts_again_is_refused(runtime: Runtime, saved: CheckpointReference) -> None:
    trainee = cast("Trainee", runtime.trainee)
    rate: Callable[[int, RateOverride | None], float] = trainee.learning_rate

    def from_its_start(step: int, override: RateOverride | None) -> float:
        return rate(step - STEP, override)

    with patch.object(trainee, "learning_rate", from_its_start):
        told = refused(runtime, saved)
    assert told.reason == Reason.PROBE_FAILED
    assert "the learning rate after the restore would be" in told.detail


def test_an_optimizer_that_starts_anew_is_refused(runtime: Runtime, saved: CheckpointReference) -> None:
    def anew(self: MuonClip, state: Mapping[str, Any]) -> None:
        """Takes over nothing."""

    with patch.object(MuonClip, "load_state_dict", anew):
        told = refused(runtime, saved)
    assert told.reason == Reason.PROBE_FAILED
    assert "the optimizer has made 10 updates, the manifest says 7" in told.detail


def test_moments_that_stay_empty_are_refused_although_the_count_is_right(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    whole = MuonClip.load_state_dict

    def without_moments(self: MuonClip, state: Mapping[str, Any]) -> None:
        whole(self, state)
        for name, value in TrainingState(runtime.training_state.model, self).flat().items():
            if name.startswith("optimizer.") and isinstance(value, torch.Tensor):
                value.zero_()

    with patch.object(MuonClip, "load_state_dict", without_moments):
        told = refused(runtime, saved)
    assert told.reason == Reason.PROBE_FAILED
    assert "the state in place has checksum" in told.detail


def test_a_checkpoint_loaded_into_another_model_than_the_one_that_trains_is_refused(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    elsewhere = Trainee(runtime.config).model
    runtime.training_state = TrainingState(elsewhere, runtime.training_state.optimizer)
    told = refused(runtime, saved)
    assert told.reason == Reason.PROBE_FAILED
    assert "has losses" in told.detail


def test_windows_that_are_read_from_another_place_are_refused(runtime: Runtime, saved: CheckpointReference) -> None:
    whole = ByteWindows.sample_digests

    def next_one(self: ByteWindows, window: int) -> tuple[str, ...]:
        return whole(self, window + 1)

    with patch.object(ByteWindows, "sample_digests", next_one):
        told = refused(runtime, saved)
    assert told.reason == Reason.CONFIG_MISMATCH
    assert "has other bytes than when the checkpoint was saved" in told.detail


def test_data_that_cannot_be_read_now_say_nothing_of_the_checkpoint(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    def away(self: ByteWindows, window: int) -> str:
        message = f"s3://data/shard: window {window}: the store does not answer"
        raise DataUnreadable(message)

    with patch.object(ByteWindows, "sample_digests", away), pytest.raises(DataUnreadable, match="does not answer"):
        restore(runtime, saved, SkipLedger())
    assert runtime.state.restored is None


def rounded(runtime: Runtime, saved: CheckpointReference, off: float) -> CheckpointReference:
    """The same checkpoint, of whose losses it says that they were this much greater."""
    evaluation = manifest_of(runtime.store, saved).evaluation
    losses = tuple(None if loss is None else loss + off for loss in evaluation.losses)
    return rewritten(runtime.store, saved, evaluation=msgspec.structs.replace(evaluation, losses=losses))


def test_the_same_processor_must_give_the_same_bits(runtime: Runtime, saved: CheckpointReference) -> None:
    told = refused(runtime, rounded(runtime, saved, 6.6e-6))
    assert told.reason == Reason.PROBE_FAILED
    assert "has losses" in told.detail


@pytest.mark.parametrize("changed", ["processor", "trainer"])
def test_another_processor_or_trainer_may_add_up_in_another_order(
    runtime: Runtime, saved: CheckpointReference, changed: str
) -> None:
    near = rounded(runtime, saved, 6.6e-6)
    if changed == "processor":
        runtime.processors = ("another CPU",)
    else:
        runtime.fingerprints = replace(runtime.fingerprints, code="e" * 64)
    restore(runtime, near, SkipLedger())
    assert runtime.state.restored == near
    runtime.state.restored = None
    assert "has losses" in refused(runtime, rounded(runtime, near, 0.01)).detail


def as_before(runtime: Runtime, saved: CheckpointReference, **changes: Any) -> CheckpointReference:
    """The same checkpoint with a probe of an older version: measured without dropout, of a window hashed whole."""
    evaluation = manifest_of(runtime.store, saved).evaluation
    older: dict[str, Any] = {"samples_sha256": "", "window_sha256": runtime.data.window_digest(evaluation.window)}
    as_then = msgspec.structs.replace(evaluation, mode="Evaluation", **(older | changes))
    return rewritten(runtime.store, saved, evaluation=as_then)


def test_a_checkpoint_of_an_older_version_is_held_against_what_that_measured(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    older = as_before(runtime, saved)
    restore(runtime, older, SkipLedger())
    assert runtime.state.restored == older
    runtime.state.restored = None
    told = refused(runtime, as_before(runtime, saved, window_sha256="0" * 64))
    assert "has other bytes than when the checkpoint was saved" in told.detail
