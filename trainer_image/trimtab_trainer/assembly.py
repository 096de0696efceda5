"""Puts the parts of one rank together."""

import hashlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from trimtab_contract.data_description import encode_data
from trimtab_contract.keys import records_prefix, stacks_object

from trimtab_trainer import runtime
from trimtab_trainer.adapters.redis import Bus
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.archive import Archivist, RecordArchive
from trimtab_trainer.checkpointing import Checkpointer, CheckpointLimits, TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import Environment, TrainerConfig
from trimtab_trainer.courier import Courier
from trimtab_trainer.data import BatchLog, DataReader, Patience, Windows
from trimtab_trainer.devices import CPU, own_device
from trimtab_trainer.directives import Inbox
from trimtab_trainer.errors import BadConfig, StoreRefused, StoreUnavailable
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.loop import Trainee
from trimtab_trainer.memory import for_building, saying_what_to_lower
from trimtab_trainer.optim import routing_table
from trimtab_trainer.processors import processor
from trimtab_trainer.runtime import Fingerprints, Runtime, Spokesman
from trimtab_trainer.telemetry import Outbox, Reporter, Vitals
from trimtab_trainer.watchdog import Watchdog
from trimtab_trainer.world_state import WorldState

logger = logging.getLogger(__name__)

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Foundation:
    """What one rank has before there is a model."""

    environment: Environment
    config: TrainerConfig
    config_sha256: str
    data: Windows
    store: ObjectStore
    vitals: Vitals


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one rank of the reference trainer can build and check alone, before it joins the others."""

    foundation: Foundation
    trainee: Trainee
    faults: FaultInjector

    @property
    def config(self) -> TrainerConfig:
        """The run's configuration."""
        return self.foundation.config


def prepare(environment: Environment, config: TrainerConfig, config_sha256: str) -> Prepared:
    """Build model, data and store; raises BadConfig with all that is wrong with any of them, or DataUnreadable."""
    problems: list[str] = []
    trainee = _tried(lambda: _trainee(config, environment.local_rank), problems)
    foundation = _tried(lambda: lay_foundation(environment, config, config_sha256), problems)
    faults = None
    if trainee is not None:
        parameters = dict(trainee.named_parameters())
        faults = _tried(lambda: FaultInjector(config.faults, environment.rank, parameters), problems)
    if problems or trainee is None or foundation is None or faults is None:
        raise BadConfig(problems)
    return Prepared(foundation, trainee, faults)


def lay_foundation(environment: Environment, config: TrainerConfig, config_sha256: str) -> Foundation:
    """Open data and store; raises BadConfig with all that is wrong with any of them, or DataUnreadable."""
    problems = list(share_problems(config, environment.world_size))
    vitals = Vitals()
    data = _tried(lambda: _data(config, environment, vitals.advance), problems)
    store = _tried(lambda: _store(environment), problems)
    if problems or data is None or store is None:
        raise BadConfig(problems)
    return Foundation(environment, config, config_sha256, data, store, vitals)


def _trainee(config: TrainerConfig, local_rank: int) -> Trainee:
    """Model and optimizer on the rank's device; raises InvalidFields where there is none or the optimizer's settings do
    not fit this model, OutOfMemory."""
    device = own_device(config.device, local_rank)
    try:
        with saying_what_to_lower(for_building(config)):
            return Trainee(config, device)
    except InvalidFields as error:
        raise InvalidFields(f"optimizer: {problem}" for problem in error.problems) from error


def share_problems(config: TrainerConfig, ranks: int) -> Iterator[str]:
    """Whether every rank's share of the global batch can be cut; whether there are such shares, the data say."""
    share, steps = config.global_batch // ranks, config.gradient_accumulation_steps
    if config.global_batch % ranks == 0 and share % steps:
        yield (
            f"gradientAccumulationSteps: {steps} must divide {share}, the samples of globalBatch "
            f"that each of the {ranks} ranks has"
        )


def _tried(build: Callable[[], _Part], problems: list[str]) -> _Part | None:
    """The part, or None with what is wrong added to `problems`."""
    try:
        return build()
    except (BadConfig, InvalidFields) as error:
        problems += error.problems
        return None


def assemble(prepared: Prepared, world: World, terminating: threading.Event) -> Runtime:
    """Build and start everything of the reference trainer but its loop."""
    trainee = prepared.trainee
    if world.rank == 0:
        logger.info("what updates which parameter:\n%s", routing_table(trainee.optimizer.routes))
    trainee.join(world)
    state = TrainingState(trainee.model, trainee.optimizer, trainee.scaler)
    return assemble_around(trainee, state, prepared.faults, prepared.foundation, world, terminating)


def assemble_around(
    trainee: runtime.Trainee,
    training_state: TrainingState,
    faults: FaultInjector,
    foundation: Foundation,
    world: World,
    terminating: threading.Event,
) -> Runtime:
    """Build and start everything but a training loop, around a model of any kind; every rank calls it."""
    environment, config, store = foundation.environment, foundation.config, foundation.store
    root, run = environment.checkpoint_root, environment.run
    vitals = foundation.vitals
    description = encode_data(foundation.data.description) if world.rank == 0 else b""
    batch_log = BatchLog(store, root, run, environment.rank, description=description)
    archive = RecordArchive(store, root, run, config.telemetry.queue_records)
    archivist = Archivist((archive.flush, batch_log.flush), config.telemetry.archive_seconds)

    def prove() -> None:
        archive.flush()
        batch_log.flush()

    checkpointer = Checkpointer(
        store,
        root=root,
        run=run,
        rank=world.rank,
        world_size=world.size,
        processes_per_node=environment.processes_per_node,
        host=environment.hostname,
        exchange=world.gather_text,
        coordination=world.store,
        staging=Path(tempfile.mkdtemp(prefix="trimtab-checkpoints-")),
        source=environment.source,
        on_progress=vitals.advance,
        prove=prove,
        limits=CheckpointLimits(
            max_pending=config.checkpoint.pending_saves,
            upload_bytes_per_second=config.checkpoint.upload_bytes_per_second,
        ),
    )
    watchdog = Watchdog(
        vitals,
        environment.progress_deadline,
        lambda stacks: store.put(stacks_object(root, run, environment.world, world.rank, int(time.time())), stacks),
    )
    processors = tuple(world.gather_text(processor(_device_of(trainee))))
    if world.rank == 0:
        logger.info("%d ranks compute on: %s", world.size, "; ".join(sorted(set(processors))))
    spokesman = _spokesman(environment, config, vitals, archive, archivist) if world.rank == 0 else None
    archivist.start()
    watchdog.start()
    return Runtime(
        environment=environment,
        config=config,
        world=world,
        state=WorldState(attempt=environment.world, steps=config.steps),
        vitals=vitals,
        trainee=trainee,
        training_state=training_state,
        data=foundation.data,
        batch_log=batch_log,
        store=store,
        checkpointer=checkpointer,
        faults=faults,
        archivist=archivist,
        hosts=tuple(world.gather_text(environment.hostname)),
        processors=processors,
        spokesman=spokesman,
        terminating=terminating,
        fingerprints=Fingerprints(config=foundation.config_sha256, code=code_sha256()),
    )


def _device_of(trainee: runtime.Trainee) -> torch.device:
    """Where its parameters are."""
    return next((parameter.device for _, parameter in trainee.named_parameters()), CPU)


def code_sha256() -> str:
    """The SHA-256 of this program's own source, file by file in name order."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _data(config: TrainerConfig, environment: Environment, on_wait: Callable[[], None]) -> Windows:
    """The data, from S3 with the job's own credentials; raises BadConfig or DataUnreadable."""
    reader = DataReader(
        config.data,
        sequence=config.model.sequence,
        global_batch=config.global_batch,
        vocabulary=config.model.vocab_size,
        world_size=environment.world_size,
        store_of=lambda bucket: ObjectStore(bucket, endpoint=environment.s3_endpoint),
        # To wait for the store is no hang, so it counts as progress, and ends all the same.
        patience=Patience(environment.progress_deadline, on_wait),
    )
    return Windows(*reader.opened(), rank=environment.rank, world_size=environment.world_size)


def _store(environment: Environment) -> ObjectStore:
    """The checkpoint bucket. One that refuses is a wrong setting; one that is away may come back."""
    store = ObjectStore(environment.checkpoint_bucket, endpoint=environment.s3_endpoint)
    try:
        store.list(records_prefix(environment.checkpoint_root, environment.run, environment.world))
    except StoreRefused as error:
        raise BadConfig((str(error),)) from error
    except StoreUnavailable as error:
        logger.warning("the object store does not answer yet: %s", error)
    return store


def _spokesman(
    environment: Environment, config: TrainerConfig, vitals: Vitals, archive: RecordArchive, archivist: Archivist
) -> Spokesman:
    outbox, inbox = Outbox(config.telemetry.queue_records), Inbox(environment.world)
    reporter = Reporter(outbox, vitals, time.time)
    bus = Bus(environment.redis_url, environment.redis_username, environment.redis_password, environment.run)
    courier = Courier(bus, outbox, reporter, inbox, config.telemetry, on_absent=archivist.wake)
    courier.start()
    return Spokesman(courier, reporter, inbox, archive)
