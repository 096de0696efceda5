"""Puts the parts of one rank together."""

import hashlib
import logging
import tempfile
import threading
import time
from pathlib import Path

from trimtab_contract.keys import records_prefix, stacks_object

from trimtab_trainer.adapters.redis import Bus
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.archive import Archivist, RecordArchive
from trimtab_trainer.checkpointing import Checkpointer, TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import Environment, TrainerConfig
from trimtab_trainer.courier import Courier
from trimtab_trainer.data import BatchLog, ByteWindows
from trimtab_trainer.directives import Inbox
from trimtab_trainer.errors import BadConfig, StoreRefused, StoreUnavailable
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.loop import Trainee
from trimtab_trainer.runtime import Fingerprints, Runtime, Spokesman
from trimtab_trainer.telemetry import Outbox, Reporter, Vitals
from trimtab_trainer.watchdog import Watchdog
from trimtab_trainer.world_state import WorldState

logger = logging.getLogger(__name__)


def open_data(config: TrainerConfig, environment: Environment) -> ByteWindows:
    """Open the data file for this rank's share; raises BadConfig."""
    return ByteWindows(
        Path(config.data.path),
        sequence=config.model.sequence,
        global_batch=config.global_batch,
        order=config.data.order,
        seed=config.data.seed,
        rank=environment.rank,
        world_size=environment.world_size,
    )


def open_store(environment: Environment) -> ObjectStore:
    """The checkpoint bucket; raises BadConfig when it refuses. A store that is away may come back."""
    store = ObjectStore(environment.checkpoint_bucket, endpoint=environment.s3_endpoint)
    try:
        store.list(records_prefix(environment.checkpoint_root, environment.run, environment.world))
    except StoreRefused as error:
        raise BadConfig((str(error),)) from error
    except StoreUnavailable as error:
        logger.warning("the object store does not answer yet: %s", error)
    return store


def assemble(
    environment: Environment,
    config: TrainerConfig,
    config_sha256: str,
    trainee: Trainee,
    data: ByteWindows,
    store: ObjectStore,
    world: World,
    terminating: threading.Event,
) -> Runtime:
    """Build and start everything but the training loop itself."""
    root, run = environment.checkpoint_root, environment.run
    vitals = Vitals()
    batch_log = BatchLog(store, root, run, environment.rank)
    archive = RecordArchive(store, root, run, config.telemetry.queue_records)
    archivist = Archivist((archive.flush, batch_log.flush), config.telemetry.archive_seconds)
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
        on_progress=vitals.advance,
    )
    watchdog = Watchdog(
        vitals,
        environment.progress_deadline,
        lambda stacks: store.put(stacks_object(root, run, environment.world, world.rank, int(time.time())), stacks),
    )
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
        training_state=TrainingState(trainee.model, trainee.optimizer),
        data=data,
        batch_log=batch_log,
        store=store,
        checkpointer=checkpointer,
        faults=FaultInjector(config.faults, environment.rank, dict(trainee.named_parameters())),
        archivist=archivist,
        hosts=tuple(world.gather_text(environment.hostname)),
        spokesman=spokesman,
        terminating=terminating,
        fingerprints=Fingerprints(config=config_sha256, code=code_sha256()),
    )


def code_sha256() -> str:
    """The SHA-256 of this program's own source, file by file in name order."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _spokesman(
    environment: Environment, config: TrainerConfig, vitals: Vitals, archive: RecordArchive, archivist: Archivist
) -> Spokesman:
    outbox, inbox = Outbox(config.telemetry.queue_records), Inbox(environment.world)
    reporter = Reporter(outbox, vitals, time.time)
    bus = Bus(environment.redis_url, environment.redis_username, environment.redis_password, environment.run)
    courier = Courier(bus, outbox, reporter, inbox, config.telemetry, on_absent=archivist.wake)
    courier.start()
    return Spokesman(courier, reporter, inbox, archive)
