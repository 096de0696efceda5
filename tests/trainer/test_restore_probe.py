"""Ways in which public reports say that a resume went wrong: each is refused by the probe behind a restore, and named.

Real model, optimizer, data, S3 and a real world of one rank; only one part at a time is made to do the wrong thing.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from checkpoint_ranks import RUN, image
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_contract.checkpoints import decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.config_record import OLDER_MANIFEST
from trimtab_contract.data_position import Order, SkipLedger
from trimtab_contract.directives import Action, CheckpointReference, Diagnose, Directive, Reason
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.archive import Archivist
from trimtab_trainer.checkpointing import Checkpointer, RestoreFailure, TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import DataConfig, Environment, ScheduleConfig, TrainerConfig
from trimtab_trainer.data import BatchLog
from trimtab_trainer.data.byte_windows import ByteWindows
from trimtab_trainer.errors import DataUnreadable, PeerLost, RestoreFailed
from trimtab_trainer.execution import DirectiveExecutor
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.optim import MuonClip, RateOverride
from trimtab_trainer.restoration import restore
from trimtab_trainer.runtime import Fingerprints, Runtime
from trimtab_trainer.telemetry import Vitals
from trimtab_trainer.world_state import WorldState

ROOT, STEP = "runs", 7
MODEL = TransformerConfig(width=16, layers=1, heads=2, sequence=16)


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A world of this process."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    with patch.dict(os.environ, place):
        world = World(60)
    yield world
    dist.destroy_process_group()


@pytest.fixture
def runtime(alone: World, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[Runtime]:
    """A rank that has made some updates and stands behind step 7."""
    data = tmp_path / "data.bin"
    data.write_bytes(np.random.default_rng(5).integers(97, 123, size=20_000, dtype=np.uint8).tobytes())
    config = TrainerConfig(
        data=DataConfig(path=str(data)),
        steps=50,
        global_batch=4,
        model=MODEL,
        schedule=ScheduleConfig(warmup_steps=20),
    )
    store = ObjectStore(
        object_store.new_bucket(),
        endpoint=object_store.endpoint,
        access_key=ADMIN.access_key,
        secret_key=ADMIN.secret_key,
    )
    trainee, vitals = Trainee(config), Vitals()
    checkpointer = Checkpointer(
        store,
        root=ROOT,
        run=RUN,
        rank=0,
        world_size=1,
        processes_per_node=1,
        host="host",
        exchange=alone.gather_text,
        coordination=alone.store,
        staging=tmp_path / "staging",
        on_progress=vitals.advance,
    )
    yield Runtime(
        environment=environment(),
        config=config,
        world=alone,
        state=WorldState(attempt=1, steps=config.steps, ready=True),
        vitals=vitals,
        trainee=trainee,
        training_state=TrainingState(trainee.model, trainee.optimizer),
        data=windows(data),
        batch_log=BatchLog(store, ROOT, RUN, 0),
        store=store,
        checkpointer=checkpointer,
        faults=FaultInjector((), 0, dict(trainee.named_parameters())),
        archivist=Archivist((), 60),
        hosts=("host",),
        processors=("a CPU",),
        spokesman=None,
        terminating=threading.Event(),
        fingerprints=Fingerprints(config="c" * 64, code="d" * 64),
    )
    checkpointer.close()


def environment() -> Environment:
    return Environment(
        run=RUN,
        world=1,
        rank=0,
        world_size=1,
        processes_per_node=1,
        hostname="host",
        redis_url="redis://127.0.0.1:9/0",
        redis_username="nobody",
        redis_password="nothing",
        checkpoint_bucket="bucket",
        checkpoint_root=ROOT,
        s3_endpoint="http://127.0.0.1:9",
        checkpoint_every=1,
        progress_deadline=60,
    )


def windows(path: Path, **order: Any) -> ByteWindows:
    return ByteWindows(path, sequence=MODEL.sequence, global_batch=4, **order)


def train(runtime: Runtime, steps: int) -> list[float]:
    """Some updates of the real optimizer, after which the moments are not empty any more; the losses of these steps."""
    trainee, losses = cast("Trainee", runtime.trainee), list[float]()
    for step in range(runtime.state.step + 1, runtime.state.step + steps + 1):
        samples = runtime.data.read(step - 1)
        trainee.optimizer.set_lr(trainee.rates.factor(step, None))
        for parameter in trainee.model.parameters():
            parameter.grad = None
        identities = runtime.data.positions(step - 1)
        output = trainee.model(samples[:, :-1], samples[:, 1:], sample_ids=identities)
        assert output.loss is not None
        output.loss.backward()
        runtime.step_computed(step - 1, output.loss.detach())
        losses.append(float(output.loss.detach()))
        trainee.optimizer.step(output.attention.max_logit)
        runtime.state.step = step
    return losses


@pytest.fixture
def saved(runtime: Runtime) -> CheckpointReference:
    """The checkpoint of step 7, from which the rank has gone on."""
    train(runtime, STEP)
    reference = runtime.save_now("Final")
    assert reference is not None
    train(runtime, 3)
    return reference


def refused(runtime: Runtime, reference: CheckpointReference) -> RestoreFailed:
    with pytest.raises(RestoreFailed) as caught:
        restore(runtime, reference, SkipLedger())
    assert runtime.state.restored is None
    return caught.value


def test_a_sound_restore_passes_and_trains_on_from_its_step(runtime: Runtime, saved: CheckpointReference) -> None:
    restore(runtime, saved, SkipLedger())
    assert (runtime.state.step, runtime.state.restored) == (STEP, saved)


def test_a_drain_waits_for_the_save_that_is_on_its_way_before_it_takes_another_copy(
    runtime: Runtime, object_store: ObjectStoreServer
) -> None:
    train(runtime, 2)
    object_store.freeze()
    runtime.save("Periodic")
    train(runtime, 1)
    landed: list[bool] = []
    whole = Checkpointer.save

    def counted(self: Checkpointer, *state: Any, **about: Any) -> bool:
        landed.append(self.flush(0))
        return whole(self, *state, **about)

    with patch.object(Checkpointer, "save", counted):
        threading.Timer(0.5, object_store.thaw).start()
        saved = runtime.save_now("Terminated")
    assert saved is not None
    assert (saved.step, landed) == (3, [True])


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
    manifest = msgspec.structs.replace(decode_manifest(runtime.store.get(saved.key)), config=None)
    runtime.store.put(saved.key, encode_manifest(manifest))
    older = refused(runtime, msgspec.structs.replace(saved, sha256=sha256_hex(encode_manifest(manifest))))
    assert older.detail.endswith(OLDER_MANIFEST)
    assert "model.width" not in older.detail


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
    manifest = decode_manifest(runtime.store.get(saved.key))
    losses = tuple(None if loss is None else loss + off for loss in manifest.evaluation.losses)
    evaluation = msgspec.structs.replace(manifest.evaluation, losses=losses)
    body = encode_manifest(msgspec.structs.replace(manifest, evaluation=evaluation))
    runtime.store.put(saved.key, body)
    return msgspec.structs.replace(saved, sha256=sha256_hex(body))


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


def kept_as_evidence(runtime: Runtime) -> list[tuple[int, int]]:
    """Attempt and step of every suspect state in the store."""
    runtime.wait_for_saves()
    bodies = [runtime.store.get(key) for key in runtime.store.list(ROOT) if key.endswith(MANIFEST_NAME)]
    found = [manifest for manifest in map(decode_manifest, bodies) if manifest.trigger == "Suspect"]
    return sorted((manifest.attempt, manifest.step) for manifest in found)


def hold(seq: int, *, attempt: int = 1, incident: str | None = "i-1", **rest: Any) -> Directive:
    return Directive(epoch=1, seq=seq, world=1, attempt=attempt, action=Action.HOLD, incident=incident, **rest)


def test_a_state_is_kept_as_evidence_when_an_incident_restores_over_it_and_not_when_a_person_holds(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    executor = DirectiveExecutor(runtime)
    executor.obey(hold(1))
    executor.obey(hold(2, incident="i-2"))
    assert kept_as_evidence(runtime) == []
    executor.obey(hold(3, attempt=2, restore=saved))
    assert runtime.state.step == STEP
    # A second restore takes the place of what is in the store already, and one outside an incident of nothing suspect.
    executor.obey(hold(4, attempt=3, restore=saved))
    train(runtime, 1)
    executor.obey(hold(5, attempt=4, restore=saved, incident=None))
    assert kept_as_evidence(runtime) == [(1, STEP + 3)]


def test_a_state_that_an_incident_has_measured_is_kept_while_that_goes_on_and_once(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    executor = DirectiveExecutor(runtime)
    executor.obey(hold(1, diagnose=Diagnose(windows=(1, 2), control=(0,))))
    assert kept_as_evidence(runtime) == [(1, STEP + 3)]
    executor.obey(hold(2, attempt=2, restore=saved))
    assert kept_as_evidence(runtime) == [(1, STEP + 3)]


@pytest.mark.parametrize("others_are_gone", [False, True])
def test_nobody_leaves_before_all_ranks_know_that_their_save_is_complete(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, others_are_gone: bool
) -> None:
    known: list[CheckpointReference | None] = []
    agree = runtime.world.agree

    def meeting(values: Sequence[int]) -> list[int]:
        known.append(runtime.last_saved)
        if others_are_gone and values == [0]:
            raise PeerLost("they left")
        return agree(values)

    monkeypatch.setattr(runtime.world, "agree", meeting)
    train(runtime, STEP)
    reference = runtime.save_now("Terminated")
    assert reference is not None
    assert known[-1] == reference, "they meet when it is complete, and not before"


def periodic(runtime: Runtime) -> CheckpointReference:
    """The checkpoint of the step that the rank stands behind, stored and told of."""
    runtime.wait_for_saves()
    assert runtime.last_saved is not None
    return runtime.last_saved


def forward_passes(runtime: Runtime, act: Callable[[], object]) -> int:
    """How often the model was run while something was done."""
    model, seen = cast("Trainee", runtime.trainee).model, list[int]()
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    act()
    handle.remove()
    return len(seen)


def test_the_step_behind_a_periodic_save_measures_it_and_no_forward_pass_does(runtime: Runtime) -> None:
    train(runtime, STEP)
    assert forward_passes(runtime, lambda: runtime.save("Periodic")) == 0
    with pytest.raises(TimeoutError):
        until_saved(runtime, 0.5)
    losses = list[float]()
    assert forward_passes(runtime, lambda: losses.extend(train(runtime, 1))) == 1
    until_saved(runtime, 30)
    recorded = decode_manifest(runtime.store.get(periodic(runtime).key)).evaluation
    assert (recorded.mode, recorded.window, recorded.losses) == ("Training", STEP, tuple(losses))
    train(runtime, 2)
    restore(runtime, periodic(runtime), SkipLedger())
    assert runtime.state.step == STEP


def until_saved(runtime: Runtime, within: float) -> None:
    """Wait until a checkpoint is known to be stored, without telling the save anything."""
    deadline = time.monotonic() + within
    while runtime.last_saved is None:
        runtime.collect_checkpoint_events()
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint was stored")
        time.sleep(0.02)


@pytest.mark.parametrize("told", ["nothing", "another window"])
def test_a_loop_that_does_not_say_its_loss_costs_a_forward_pass_and_gets_the_same(runtime: Runtime, told: str) -> None:
    train(runtime, STEP)
    runtime.save("Periodic")
    loss = None if told == "nothing" else torch.tensor(1.0)
    assert forward_passes(runtime, lambda: runtime.step_computed(STEP + 1, loss)) == 1
    recorded = decode_manifest(runtime.store.get(periodic(runtime).key)).evaluation
    assert recorded.losses == tuple(train(runtime, 1))


def test_what_waits_to_be_measured_is_measured_before_anybody_waits_for_the_save(runtime: Runtime) -> None:
    train(runtime, STEP)
    runtime.save("Periodic")
    assert forward_passes(runtime, lambda: periodic(runtime)) == 1
    runtime.save("Suspect")
    assert forward_passes(runtime, runtime.wait_for_saves) == 0


def test_a_step_that_was_not_finite_says_nothing_of_the_checkpoint_before_it(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    train(runtime, STEP)
    runtime.save("Periodic")
    runtime.step_computed(STEP, torch.tensor(torch.nan))
    reference = periodic(runtime)
    assert decode_manifest(runtime.store.get(reference.key)).evaluation.losses == (None,)
    restore(runtime, reference, SkipLedger())
    assert "nothing is known of the loss behind step 7" in caplog.text


def as_before(runtime: Runtime, saved: CheckpointReference, **changes: Any) -> CheckpointReference:
    """The same checkpoint with a probe of an older version: measured without dropout, of a window hashed whole."""
    manifest = decode_manifest(runtime.store.get(saved.key))
    window = manifest.evaluation.window
    older: dict[str, Any] = {"samples_sha256": "", "window_sha256": runtime.data.window_digest(window)}
    evaluation = msgspec.structs.replace(manifest.evaluation, mode="Evaluation", **(older | changes))
    body = encode_manifest(msgspec.structs.replace(manifest, evaluation=evaluation))
    runtime.store.put(saved.key, body)
    return msgspec.structs.replace(saved, sha256=sha256_hex(body))


def test_a_checkpoint_of_an_older_version_is_held_against_what_that_measured(
    runtime: Runtime, saved: CheckpointReference
) -> None:
    older = as_before(runtime, saved)
    restore(runtime, older, SkipLedger())
    assert runtime.state.restored == older
    runtime.state.restored = None
    told = refused(runtime, as_before(runtime, saved, window_sha256="0" * 64))
    assert "has other bytes than when the checkpoint was saved" in told.detail


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
