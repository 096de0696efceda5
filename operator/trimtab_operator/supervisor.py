"""One reconciler per TrainingJob: started when the job is seen, restarted when it fails, ended when the job is gone."""

import asyncio
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog
from trimtab_contract.anchors import Anchor
from trimtab_contract.errors import ContractError
from trimtab_contract.journal import JournalRecord, parse_record
from trimtab_contract.keys import RunId, redis_user, redis_user_namespace

from trimtab_operator.errors import Fenced, InvalidResource, JournalBroken, OperatorError, TemporaryError
from trimtab_operator.journal import wall_time
from trimtab_operator.policy_reporter import report_policy
from trimtab_operator.reconciler import Ports, RunReconciler
from trimtab_operator.resources import parse_journal_anchor
from trimtab_operator.run_state import JournalAction
from trimtab_operator.tasks import end_tasks

RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits after the first, second, … failure in a row; an outage ends with everything as it was."""

LASTING_FAILURES = len(RETRY_SECONDS)
"""After so many failures in a row people are told of one that may go by itself."""

UNANCHORED_END_SECONDS = 24 * 3600.0
"""How long an operator that starts still anchors an end of which no anchor tells. Later the run's namespace has gone,
as a rule, and its journal need not be read at every start for ever."""

log = structlog.stdlib.get_logger(__name__)


class Supervisor:
    """All runs of this operator. `failed` resolves with the error that must end the process."""

    def __init__(self, ports: Ports) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ports = ports
        self._runs: dict[RunId, RunReconciler] = {}
        self._tasks: dict[RunId, asyncio.Task[None]] = {}
        self._reports: set[asyncio.Task[None]] = set()
        ports.oversight.wake_all = lambda: self.wake(None)
        ports.oversight.wake = self._wake_run

    @property
    def runs(self) -> Mapping[RunId, RunReconciler]:
        """The runs looked after now."""
        return self._runs

    def see(self, body: Mapping[str, Any]) -> None:
        """A TrainingJob exists or changed: start its reconciler, or wake it."""
        metadata = body["metadata"]
        try:
            run = RunId(metadata["namespace"], metadata["name"], metadata["uid"])
        except ContractError as error:
            log.warning("training job ignored", error=str(error))
            return
        if run in self._runs:
            self._runs[run].wake()
            return
        reconciler = RunReconciler(run, self._ports)
        self._ports.oversight.seen(run)
        self._runs[run] = reconciler
        self._tasks[run] = asyncio.create_task(self._look_after(reconciler), name=str(run))

    def see_policy(self, body: Mapping[str, Any]) -> None:
        """A policy exists or changed: tell its owner what we think of it, and wake the runs it may judge."""
        self.wake(body["metadata"].get("namespace"))
        task = asyncio.create_task(self._report_policy(body))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report_policy(self, body: Mapping[str, Any]) -> None:
        if not self._ports.lease.valid():
            return
        try:
            await report_policy(self._ports.cluster, body)
        except OperatorError as error:
            log.warning("policy status not written", policy=body["metadata"]["name"], error=str(error))

    def wake(self, namespace: str | None, name: str | None = None) -> None:
        """Something near the runs of a namespace (None: of every one), or near one job, changed."""
        for run, reconciler in self._runs.items():
            if namespace in {None, run.namespace} and name in {None, run.name}:
                reconciler.wake()

    def _wake_run(self, run: RunId) -> None:
        if run in self._runs:
            self._runs[run].wake()

    async def resync(self) -> None:
        """For ever: see every job again, so that a lost event delays things and loses nothing."""
        while True:
            try:
                for body in await self._ports.cluster.training_jobs():
                    self.see(body)
                self._ports.oversight.listed()
                self._ports.oversight.refresh()
                for body in await self._ports.cluster.guard_policies():
                    await self._report_policy(body)
                await self._sweep_users()
            except TemporaryError as error:
                log.warning("resync failed", error=str(error))
            await asyncio.sleep(self._ports.resync_seconds)

    async def end_orphans(self) -> None:
        """Runs whose TrainingJob went away while no operator looked get their last record."""
        # In this order: a run with a journal whose job is not listed afterwards is gone, and not merely new.
        anchors = await self._anchors()
        runs = sorted({*await self._ports.journal.runs(), *anchors})
        living = {str(body["metadata"]["uid"]) for body in await self._ports.cluster.training_jobs()}
        for run in runs:
            if run.uid in living or run in self._runs or not self._ports.watches(run.namespace):
                continue
            anchor = anchors.get(run)
            if anchor is not None and anchor.ended:
                continue  # nothing of its journal, which may be long, need be looked at
            try:
                await self._end_orphan(run, anchor)
            except (Fenced, TemporaryError):
                raise
            except (OperatorError, ContractError) as error:
                log.warning("an orphaned run cannot be ended", run=str(run), error=str(error))

    async def _anchors(self) -> dict[RunId, Anchor]:
        found: dict[RunId, Anchor] = {}
        for body in await self._ports.cluster.journal_anchors():
            try:
                run, anchor = parse_journal_anchor(body)
            except InvalidResource as error:
                log.warning("an anchor is passed over", error=str(error))
            else:
                found[run] = anchor
        return found

    async def _end_orphan(self, run: RunId, anchor: Anchor | None) -> None:
        body = await self._ports.journal.last(run)
        last = parse_record(body) if body is not None else None
        ended = last is not None and last.action == JournalAction.RUN_ENDED
        if anchor is None and (last is None or (ended and _age(last) > UNANCHORED_END_SECONDS)):
            return
        reconciler = RunReconciler(run, self._ports)
        if ended:
            await reconciler.finish_end()
            return
        await reconciler.take_over()
        await reconciler.end("Deleted")

    async def close(self) -> None:
        """End every reconciler."""
        await end_tasks(*self._tasks.values(), *self._reports)

    async def _look_after(self, reconciler: RunReconciler) -> None:
        try:
            await self._keep(reconciler)
        finally:
            await reconciler.close()

    async def _keep(self, reconciler: RunReconciler) -> None:
        failures, opened = 0, False
        while not reconciler.gone:
            try:
                if not opened:
                    await reconciler.open()
                    opened = True
                await reconciler.turn()
                failures = 0
                self._ports.oversight.going_on(reconciler.run)
            except Fenced as error:
                self._fail(error)
                return
            except TemporaryError as error:
                failures += 1
                log.warning("waiting", run=str(reconciler.run), error=str(error))
                if failures >= LASTING_FAILURES:
                    await self._cannot_go_on(reconciler, str(error))
                await _back_off(failures)
                reconciler.wake()
            except JournalBroken as error:
                failures, opened = failures + 1, False
                log.warning("run not taken", run=str(reconciler.run), error=str(error))
                self._ports.oversight.broken(reconciler.run, str(error))
                await reconciler.refuse(error)
                await _back_off(failures + len(RETRY_SECONDS))
            except OperatorError as error:
                failures += 1
                log.warning("cannot go on now", run=str(reconciler.run), error=str(error))
                await self._cannot_go_on(reconciler, str(error))
                await _back_off(failures + len(RETRY_SECONDS))
                reconciler.wake()
            except Exception:
                failures += 1
                log.exception("defect", run=str(reconciler.run))
                await self._cannot_go_on(reconciler, "a defect of the operator, whose log says more")
                await _back_off(failures + len(RETRY_SECONDS))
                reconciler.wake()
        self._runs.pop(reconciler.run, None)
        self._tasks.pop(reconciler.run, None)
        self._ports.oversight.gone(reconciler.run)

    async def _cannot_go_on(self, reconciler: RunReconciler, why: str) -> None:
        self._ports.oversight.failing(reconciler.run)
        await reconciler.cannot_go_on(why)

    def _fail(self, error: Fenced) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def _sweep_users(self) -> None:
        """Remove Redis users whose run is gone."""
        wanted = {redis_user(run) for run in self._runs}
        for user in await self._ports.bus.users():
            namespace = redis_user_namespace(user)
            if namespace is not None and self._ports.watches(namespace) and user not in wanted:
                await self._ports.bus.delete_user(user)


async def _back_off(failures: int) -> None:
    wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]
    await asyncio.sleep(wait * random.uniform(0.75, 1.25))  # noqa: S311 - jitter, not a secret


def _age(record: JournalRecord) -> float:
    """Seconds since a record was written, by the clocks of those who wrote and read it."""
    return (datetime.fromisoformat(wall_time()) - datetime.fromisoformat(record.time)).total_seconds()
