"""A rank whose restores are probed: real model, optimizer, data and S3, and a real world of one rank.

Import `alone`, `runtime` and `saved` into a test module to use them.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from checkpoint_ranks import RUN
from object_store_fixture import ADMIN, ObjectStoreServer
from scripted_session import lone_world
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.archive import Archivist
from trimtab_trainer.checkpointing import Checkpointer, TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import DataConfig, Environment, ScheduleConfig, TrainerConfig
from trimtab_trainer.data import BatchLog
from trimtab_trainer.data.byte_windows import ByteWindows
from trimtab_trainer.errors import RestoreFailed
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.restoration import restore
from trimtab_trainer.runtime import Fingerprints, Runtime
from trimtab_trainer.telemetry import Vitals
from trimtab_trainer.world_state import WorldState

ROOT, STEP = "runs", 7
MODEL = TransformerConfig(width=16, layers=1, heads=2, sequence=16)


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A world of this process."""
    with lone_world() as world:
        yield world


@pytest.fixture
def runtime(alone: World, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[Runtime]:
    """A rank that has made no update yet."""
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


def periodic(runtime: Runtime) -> CheckpointReference:
    """The checkpoint of the step that the rank stands behind, stored and told of."""
    runtime.wait_for_saves()
    assert runtime.last_saved is not None
    return runtime.last_saved


def refused(runtime: Runtime, reference: CheckpointReference) -> RestoreFailed:
    with pytest.raises(RestoreFailed) as caught:
        restore(runtime, reference, SkipLedger())
    assert runtime.state.restored is None
    return caught.value
