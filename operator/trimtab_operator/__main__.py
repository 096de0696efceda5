"""`python -m trimtab_operator`: settings, Lease, audit store, then kopf."""

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any, cast
from urllib.parse import quote

import kopf
import structlog
from prometheus_client import REGISTRY

from trimtab_operator import handlers, health
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.lease import LeaderLease
from trimtab_operator.adapters.redis import RedisBus
from trimtab_operator.adapters.s3 import S3CheckpointStores, S3Credentials, S3JournalStore, S3Location
from trimtab_operator.adapters.webhook import HttpWebhook
from trimtab_operator.errors import AuditStoreUnfit, Fenced, InvalidSettings, OperatorError, TemporaryError
from trimtab_operator.journal import Identity
from trimtab_operator.notifier import Notifier
from trimtab_operator.oversight import Oversight
from trimtab_operator.reconciler import Ports
from trimtab_operator.settings import Settings, load_settings
from trimtab_operator.supervisor import Supervisor
from trimtab_operator.tasks import end_tasks
from trimtab_operator.telemetry import Telemetry

RETRY_SECONDS = 2.0
END_SECONDS = 8.0
"""What an operator that leads no more may take to let go of everything; then the process ends as it stands."""
MAX_RUNS = 4096
"""Every run waits for its streams on a connection of its own."""

log = structlog.stdlib.get_logger("trimtab_operator")


def main() -> int:
    """Run until told to stop. Exit code 2 for wrong settings, 1 when another operator leads now."""
    try:
        settings = load_settings()
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        return 2
    configure_logging(settings.log_level)
    return asyncio.run(run(settings))


def configure_logging(level: str) -> None:
    """One JSON object a line, whichever library says it; of others only warnings and worse."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper())
    logging.captureWarnings(True)
    for name in ("kopf", "aiohttp", "botocore", "urllib3", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


async def run(settings: Settings) -> int:
    """Wait for the Lease, prove the audit store, then look after every TrainingJob."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # First of all, so that the kubelet hears from a process that waits for everything else.
    proven = asyncio.Event()
    server = await health.serve(settings.health_port, proven.is_set)
    cluster = await KubernetesCluster.connect(namespaces=settings.watch_namespaces)
    lease = LeaderLease(
        cluster, settings.namespace, settings.lease_name, settings.pod_name, duration_seconds=settings.lease_seconds
    )
    audit = S3JournalStore(
        S3Location(settings.audit_bucket, settings.audit_endpoint or ""),
        S3Credentials(settings.audit_access_key_id, settings.audit_secret_access_key.get_secret_value()),
    )
    bus = RedisBus(_redis_url(settings), max_connections=MAX_RUNS)
    try:
        work = asyncio.create_task(_lead(settings, cluster, lease, audit, bus, proven))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            _end_in_time()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return 0
        return _outcome(work)
    finally:
        await lease.release()
        await bus.close()
        await cluster.close()
        await server.cleanup()


def _redis_url(settings: Settings) -> str:
    """The URL with the administrator's name and password in it; never logged."""
    scheme, place = settings.redis_url.split("://", 1)
    user, password = quote(settings.redis_username, safe=""), quote(settings.redis_password.get_secret_value(), safe="")
    return f"{scheme}://{user}:{password}@{place}"


def _outcome(work: asyncio.Task[None]) -> int:
    error = work.exception()
    if isinstance(error, Fenced):
        log.warning("another operator leads now; ending", error=str(error))
        return 1
    if isinstance(error, OperatorError):
        log.error("ending", error=str(error))
        return 1
    if error is not None:
        log.critical("ending by a defect", exc_info=error)
        return 1
    return 0


async def _lead(
    settings: Settings,
    cluster: KubernetesCluster,
    lease: LeaderLease,
    audit: S3JournalStore,
    bus: RedisBus,
    proven: asyncio.Event,
) -> None:
    await _prove(audit)
    proven.set()
    log.info("waiting for the lease", lease=settings.lease_name)
    epoch = await lease.acquire()
    log.info("leading", epoch=epoch)
    webhook = HttpWebhook(settings.webhook_url) if settings.webhook_url is not None else None
    notifier = Notifier(webhook, may_send=lease.valid) if webhook is not None else None
    identity = Identity(settings.service_account, settings.pod_name, settings.pod_uid, settings.image)
    ports = Ports(
        cluster=cluster,
        bus=bus,
        journal=audit,
        stores=S3CheckpointStores(),
        lease=lease,
        identity=identity,
        defaults=settings.workload,
        resync_seconds=settings.resync_seconds,
        namespaces=settings.watch_namespaces,
        signer=settings.signer,
        read_back_jobs=settings.read_back_jobs,
        oversight=Oversight(
            settings.breaker,
            telemetry=Telemetry(REGISTRY),
            notifier=notifier,
            read_backs_at_once=settings.read_back_jobs_at_once,
        ),
    )
    supervisor = Supervisor(ports)
    registry = kopf.OperatorRegistry()
    handlers.register(registry, supervisor)
    namespaces = settings.watch_namespaces
    tasks = [
        asyncio.create_task(lease.keep(), name="lease"),
        asyncio.create_task(supervisor.resync(), name="resync"),
        asyncio.create_task(_end_orphans(supervisor), name="orphans"),
        *((asyncio.create_task(notifier.work(), name="notices"),) if notifier is not None else ()),
    ]
    watch = asyncio.create_task(
        kopf.operator(
            registry=registry,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            # Left to itself kopf asks who the user is, and an arbitrary uid has no name in a container.
            identity=cast("Any", settings.pod_name),
        ),
        name="kopf",
    )
    try:
        await _until_told_to_stop([*tasks, watch, supervisor.failed])
    finally:
        _end_in_time()
        watch.cancel()  # once: it ends tasks of its own, which takes a while
        await asyncio.gather(end_tasks(*tasks), supervisor.close())
        await asyncio.gather(watch, return_exceptions=True)
        if webhook is not None:
            await webhook.close()


def _end_in_time() -> None:
    """Bound the end of the process: one that hangs there answers its probes, and would never be a standby again."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        hanging = sorted(f"{task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(loop))
        log.error("ending although some work does not end", hanging=hanging)
        os._exit(1)

    timer = threading.Timer(END_SECONDS, end)
    timer.daemon = True
    timer.start()


async def _until_told_to_stop(futures: list[asyncio.Future[None]]) -> None:
    """Raise what ends any of them: the Lease lost, a run fenced. Return when kopf, which takes signals over, ends."""
    pending = set(futures)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
        if any(isinstance(future, asyncio.Task) and future.get_name() == "kopf" for future in done):
            return


async def _prove(audit: S3JournalStore) -> None:
    """Wait until the audit store is proved; one that ignores conditions is an error for ever."""
    while True:
        try:
            await audit.probe()
        except AuditStoreUnfit:
            raise
        except (TemporaryError, OperatorError) as error:
            log.warning("audit store not ready", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _end_orphans(supervisor: Supervisor) -> None:
    while True:
        try:
            await supervisor.end_orphans()
        except TemporaryError as error:
            log.warning("orphaned runs not ended yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
