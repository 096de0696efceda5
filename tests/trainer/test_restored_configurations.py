"""A checkpoint of another configuration: what may differ, and that what may not is named with both values."""

from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest
from checkpoint_ranks import image
from probed_rank import MODEL, STEP, alone, periodic, refused, runtime, saved, train, windows
from stored_slices import rewritten
from trimtab_contract.config_record import OLDER_MANIFEST
from trimtab_contract.data_position import Order, SkipLedger
from trimtab_contract.directives import CheckpointReference, Reason
from trimtab_trainer.checkpointing import RestoreFailure, TrainingState
from trimtab_trainer.config import ScheduleConfig
from trimtab_trainer.loop import Trainee
from trimtab_trainer.restoration import restore
from trimtab_trainer.runtime import Fingerprints, Runtime

__all__ = ["alone", "runtime", "saved"]


def test_another_order_of_batches_is_the_configurations_fault_and_not_the_checkpoints(
    runtime: Runtime, saved: CheckpointReference, tmp_path: Path
) -> None:
    runtime.data = windows(tmp_path / "data.bin", order=Order.SHUFFLED, seed=1)
    told = refused(runtime, saved)
    assert told.reason == Reason.CONFIG_MISMATCH
    assert "order" in told.detail


def test_every_field_that_makes_another_model_is_named_with_both_values_and_nothing_is_touched(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    before, config = image(runtime.training_state), runtime.config
    # The tensors look alike, and as few ranks could take the loss for near enough.
    model = replace(config.model, heads=1, norm_epsilon=1e-5, dropout=0.1)
    runtime.config = replace(config, model=model, seed=3, optimizer=replace(config.optimizer, decay=0.2))
    told = refused(runtime, saved)
    assert told.reason == Reason.CONFIG_MISMATCH
    assert told.detail == "seed: was 0, is 3; model.heads: was 2, is 1; model.normEpsilon: was 1e-06, is 1e-05"
    assert image(runtime.training_state) == before


def test_what_may_differ_does_not_keep_a_checkpoint_from_being_restored(
    runtime: Runtime, saved: CheckpointReference, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.config = replace(runtime.config, optimizer=replace(runtime.config.optimizer, decay=0.2))
    restore(runtime, saved, SkipLedger())
    assert "restored under another configuration: optimizer.decay: was 0.1, is 0.2" in caplog.text


def test_a_schedule_that_was_edited_is_named_where_the_learning_rate_is_another_one(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    trainee = cast("Trainee", runtime.trainee)
    runtime.config = replace(runtime.config, schedule=ScheduleConfig(warmup_steps=10))
    runtime.fingerprints = Fingerprints(config="e" * 64, code="d" * 64)
    with patch.object(trainee, "rates", runtime.config.rates):
        told = refused(runtime, saved)
    assert told.reason == Reason.CONFIG_MISMATCH
    assert told.detail.startswith("the learning rate after the restore would be")
    assert told.detail.endswith("; schedule.warmupSteps: was 20, is 10")


def test_of_tensors_of_another_shape_the_fields_are_named_or_it_is_said_that_an_older_checkpoint_does_not_tell(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    runtime.config = replace(runtime.config, model=replace(MODEL, width=32))
    trainee = Trainee(runtime.config)
    runtime.training_state = TrainingState(trainee.model, trainee.optimizer)
    told = refused(runtime, saved)
    assert told.reason == RestoreFailure.STRUCTURE_MISMATCH
    assert told.detail.startswith("model.width: was 16, is 32; ")
    older = refused(runtime, rewritten(runtime.store, saved, config=None))
    assert older.detail.endswith(OLDER_MANIFEST)
    assert "model.width" not in older.detail


def test_dropout_may_change_between_the_save_and_the_restore(runtime: Runtime) -> None:
    before, changed = (replace(MODEL, dropout=dropout) for dropout in (0.3, 0.0))
    runtime.config, model = replace(runtime.config, model=before), cast("Trainee", runtime.trainee).model
    with patch.object(model, "config", before):
        train(runtime, STEP)
        runtime.save("Periodic")
        train(runtime, 1)
        reference = periodic(runtime)
    runtime.config = replace(runtime.config, model=changed)
    restore(runtime, reference, SkipLedger())
    assert runtime.state.restored == reference
