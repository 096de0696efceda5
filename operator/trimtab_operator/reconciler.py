"""One run's reconciler: listen, judge, observe, advance, journal, act. It owns the order, and nothing else.

Records are judged as they come, without the API server. A changed verdict, an acknowledgement, an event or the resync
starts a reconcile, which reads the TrainingJob afresh and asks `remediation.advance` for one command after another.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import (
    Bus,
    CheckpointStores,
    Cluster,
    JournalStore,
    KubernetesObject,
    Lease,
)
from trimtab_operator.anchors import RETRY_SECONDS, AnchorKeeper
from trimtab_operator.checkpoint_remover import CheckpointRemover
from trimtab_operator.commands import Append, Command, Draft, Perform
from trimtab_operator.effects import Surroundings, ensure_user, perform, publish
from trimtab_operator.errors import (
    BusUnavailable,
    InvalidResource,
    JournalBroken,
    NotFound,
    OperatorError,
    TemporaryError,
)
from trimtab_operator.finish_watch import FinishWatch, waits_for
from trimtab_operator.guards import load_texts
from trimtab_operator.journal import Identity, RunJournal, wall_time
from trimtab_operator.judge import Judge
from trimtab_operator.listener import RunListener
from trimtab_operator.metric_watch import MetricWatch
from trimtab_operator.observation import MissingMetric, PodsState
from trimtab_operator.observer import Observer, Surveyed
from trimtab_operator.oversight import Oversight
from trimtab_operator.progress import FinalCheckClock
from trimtab_operator.read_back_keeper import ReadBackKeeper
from trimtab_operator.reasons import ConditionType, Reason
from trimtab_operator.remediation import advance
from trimtab_operator.reporter import Reporter
from trimtab_operator.resources import parse_duration
from trimtab_operator.run_state import JournalAction, PendingEffect, RunState
from trimtab_operator.signatures import AnchorSigner
from trimtab_operator.source_reader import SourceReader
from trimtab_operator.status import Situation
from trimtab_operator.workload import TrainingJobView, WorkloadDefaults

STARTING_SECONDS = 3.0
"""How soon a world whose pods are starting is looked at again: pods are not watched, and no event tells of one that
cannot start."""
WORD_SECONDS = 60.0
"""What keeps a run from going on is said no more often than this: errors of an outage differ from one to the next."""
MAX_COMMANDS = 500
"""More commands than one reconcile can ever need, beside those that people's requests and the trainer's checkpoints ask
for, one each of the former and `RECORDS_OF_A_CHECKPOINT` of the latter; reaching it is a defect, and ends it loudly."""
RECORDS_OF_A_CHECKPOINT = 3

_ENDS = frozenset({JournalAction.INCIDENT_CLOSED, JournalAction.COMPLETED})
"""What is written only when the anchor knows all before it, so that whoever reads that it went well can prove it."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside, and who this operator is."""

    cluster: Cluster
    bus: Bus
    journal: JournalStore
    stores: CheckpointStores
    lease: Lease
    identity: Identity
    defaults: WorkloadDefaults
    resync_seconds: float
    namespaces: tuple[str, ...] = ()
    """The only ones whose runs are looked after; empty: all."""
    signer: AnchorSigner | None = None
    read_back_jobs: bool = False
    """Whether checkpoints that no other host of a run can read back are read by a Job."""
    oversight: Oversight = field(default_factory=Oversight)

    def watches(self, namespace: str) -> bool:
        """Whether runs of this namespace are ours; others may share Redis and the audit bucket."""
        return not self.namespaces or namespace in self.namespaces


class LeaseLost(TemporaryError):
    """The right to act has run out for now; nothing may be written until it is renewed."""


class AnchorPending(TemporaryError):
    """The last record of a run is written and cannot be anchored now."""


class RunReconciler:
    """Keeps one run steady until it is deleted."""

    def __init__(self, run: RunId, ports: Ports) -> None:
        self.run = run
        self.gone = False
        self._ports = ports
        self._journal = RunJournal(ports.journal, run, ports.identity)
        self._anchors = AnchorKeeper(ports.cluster, run, ports.signer)
        self._end_written = False
        self._judge = Judge()
        sources = SourceReader(ports.cluster, ports.journal, ports.watches, ports.signer)
        self._observer = Observer(
            run, ports.cluster, ports.journal, ports.stores, sources, read_back_jobs=ports.read_back_jobs
        )
        self._listener = RunListener(run, ports.bus, self._judge, lambda: self.state, lambda: self._observer.store)
        self._reporter = Reporter(ports.cluster)
        self._untold: list[JournalRecord] = []
        self._metrics = MetricWatch()
        self._finish = FinishWatch()
        self._final_check = FinalCheckClock()
        self._next_resync, self._next_word = 0.0, 0.0
        self._remover = CheckpointRemover(
            run, ports.journal, ports.lease, self.wake, continued=lambda: ports.oversight.continued(run)
        )
        self._read_backs = ReadBackKeeper(run, ports.cluster, ports.journal, ports.lease, self.wake)

    @property
    def state(self) -> RunState:
        """The fold of the journal as this operator knows it."""
        return self._journal.state

    def wake(self) -> None:
        """Something about the run changed: look at it now."""
        self._listener.wake()

    async def close(self) -> None:
        """End what is under way beside the turns."""
        await self._remover.close()
        await self._read_backs.close()

    async def open(self) -> None:
        """Take the run over, to look after it.

        Raises as `take_over`, and JournalBroken as `load_texts`; before all that is needed is at hand nothing is
        written, for this is tried again and again.
        """
        await self._journal.read_vouched(await self._anchors.vouchers())
        await load_texts(self._ports.journal, self.state, self._judge.texts)
        await self.take_over()
        await load_texts(self._ports.journal, self.state, self._judge.texts)
        self._listener.wake()

    async def take_over(self) -> None:
        """The first act, and the first record, under this operator's epoch.

        Raises LeaseLost without the Lease: a higher epoch than the journal's would fence the operator that leads.
        """
        self._check_lease()
        await self._journal.take_over(self._ports.lease.epoch, *await self._anchors.vouchers())
        self._ports.oversight.known(self.run, self.state)

    async def refuse(self, error: JournalBroken) -> None:
        """Say on the TrainingJob why the run is not taken; its pods, data and trail stay as they are."""
        body = await self._told(lambda body: self._reporter.journal_broken(body, str(error)))
        self.gone = body is not None and body["metadata"].get("uid") != self.run.uid

    async def cannot_go_on(self, why: str) -> None:
        """Say on the TrainingJob what keeps the run from going on, at most once a minute."""
        if time.monotonic() < self._next_word:
            return
        self._next_word = time.monotonic() + WORD_SECONDS
        pending = self.state.pending
        starting = pending is not None and pending.action is JournalAction.START_WORLD
        does_not = "no world is started" if starting else "nothing is decided for this run"
        message = f"{does_not}, which is tried again and again: {why}"
        await self._told(lambda body: self._reporter.reconcile_failed(body, message, starting=starting))

    async def turn(self) -> None:
        """Wait for news, judge it, and reconcile when something changed; raises temporary errors and Fenced."""
        if self._ports.lease.valid():  # first, for it depends neither on Redis nor on S3
            await self._anchors.keep(time.monotonic(), self.state)
        try:
            await self._turn()
        except TemporaryError as error:
            waiting = self._finish_pending(str(error))
            if waiting:
                row = (ConditionType.FINISH_PENDING, True, Reason.FINISH_PENDING, waiting)
                await self._told(lambda body: self._reporter.warn(body, row))
            raise

    async def _turn(self) -> None:
        due = await self._listener.wait()
        try:
            changed = await self._listener.read()
            await self._keep_directive()
        except BusUnavailable:
            self._listener.hear(answers=False)
            raise
        if due or changed or time.monotonic() >= self._next_resync:
            self._listener.rest()
            self._next_resync = time.monotonic() + self._ports.resync_seconds
            await self._reconcile()

    async def _keep_directive(self) -> None:
        """Publish the directive in force again when Redis lost it or holds an older one."""
        directive = self.state.directive
        if directive is None or self.state.pending is not None or not self._ports.lease.valid():
            return
        stored = await self._ports.bus.directive(self.run)
        if stored is None or stored.order < directive.order:
            await publish(self._ports.bus, self.run, directive)

    # Reconciling ----------------------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        self._check_lease()
        body = await self._read_job()
        if body is None:
            return
        try:
            job = TrainingJobView.of(body)
        except InvalidResource as error:
            await self._reporter.invalid(body, str(error))
            return
        deadlines = parse_duration(job.spec.startup_deadline), parse_duration(job.spec.progress_deadline)
        self._listener.give_deadlines(*deadlines)
        around = Surroundings(job, self._ports.defaults, self._ports.cluster, self._ports.bus)
        surveyed = await self._drive(job, around)
        next_removal = self._remover.attend(time.monotonic(), self.state, self._observer.store)
        next_look = self._read_backs.attend(time.monotonic(), self.state, job, self._ports.defaults)
        self._next_resync = min(self._next_resync, next_removal, next_look)
        await self._tell(body)
        if self.state.world is not None and not self.state.ended:
            await ensure_user(around)
            await self._ports.bus.refresh(self.run, [attempt.number for attempt in self.state.attempts])
        if surveyed.pods.state is PodsState.STARTING and not surveyed.pods.trouble:
            self._next_resync = min(self._next_resync, time.monotonic() + STARTING_SECONDS)
        self._check_lease()
        await self._reporter.report(body, job, self.state, self._situation(surveyed, job), surveyed.requests)

    def _situation(self, surveyed: Surveyed, job: TrainingJobView) -> Situation:
        hold = self._ports.oversight.held()
        return Situation(
            pods=surveyed.pods,
            blockers=surveyed.blockers,
            outdated=surveyed.guard.outdated,
            missing_metrics=self._missing_metrics(surveyed, job),
            last=self._judge.last,
            heard=self._listener.acks.word_of_world(self.state),
            finish_pending=self._finish_pending(
                "; ".join(blocker.message for blocker in surveyed.blockers), surveyed.last_step
            ),
            anchor_pending=self._anchors.problem,
            automation_held=hold.message if hold is not None and hold.id else "",
            deletion_pending=self._remover.trouble,
            checkpoints_behind=self._listener.acks.behind(self.state) or self._observer.unread,
            reading_back=self._read_backs.status(self.state),
        )

    def _finish_pending(self, trouble: str, last_step: int | None = None) -> str:
        """What a finished world has waited for so long that people must hear of it, or nothing."""
        finished = self._finish.observe(time.monotonic(), self.state, self._listener.acks)
        judged = self._judge.judged_step
        return waits_for(finished, self.state, judged, trouble, last_step) if finished is not None else ""

    def _missing_metrics(self, surveyed: Surveyed, job: TrainingJobView) -> tuple[MissingMetric, ...]:
        deadline = parse_duration(job.spec.startup_deadline)
        return self._metrics.observe(time.monotonic(), surveyed.guard.policies, self._judge.metrics, deadline)

    async def _drive(self, job: TrainingJobView, around: Surroundings) -> Surveyed:
        """Ask for commands and carry them out until nothing is left to do."""
        await self._journal.settle()
        surveyed = await self._observer.survey(job, self.state, self._judge)
        await self._listener.read_records()  # the archive can be read from now on
        most = MAX_COMMANDS + len(surveyed.requests) + RECORDS_OF_A_CHECKPOINT * len(self._listener.acks.saved)
        for _ in range(most):
            await self._journal.keep_snapshot()
            observation = await self._observer.observe(
                surveyed,
                job=self.run.name,
                now=wall_time(),
                acks=self._listener.acks,
                judge=self._judge,
                state=self.state,
                hung=self._listener.hung,
                missing_metrics=self._missing_metrics(surveyed, job),
                final_check_over=self._final_check.observe(
                    time.monotonic(), self._listener.acks.finished, self._judge.judged_step
                ),
                diagnosis_late=self._listener.late,
            )
            oversight = self._ports.oversight
            held, outcomes = oversight.held(), oversight.outcomes(self.run, self.state)
            removals, left = self._remover.removals(self.state), self._remover.leftovers
            continued, limits = oversight.continued(self.run), observation.limits
            seen = replace(
                observation,
                limits=limits if continued is not None else replace(limits, retention=None),
                continued=continued or {},
                automation_held=held,
                notices=outcomes,
                removals=removals,
                leftovers=left,
                read_back=self._read_backs.outcome(self.state),
                may_read_back=oversight.may_read_back(self.run),
            )
            command = advance(self.state, seen)
            if command is None:
                oversight.at_rest(self.run, self.state, self._read_backs.stalled)
                oversight.tell(self.run, self.state, observation.now)
                return surveyed
            self._check_lease()
            if not await self._anchored_for(command):
                return surveyed
            if isinstance(command, Append):
                await self._append(command.draft)
            else:
                await self._perform(command, around)
                surveyed = await self._observer.survey(job, self.state, self._judge)
            await self._listener.read_acks()
            await self._listener.read_records()
        message = f"run {self.run}: no end after {most} commands"
        raise OperatorError(message)

    async def _anchored_for(self, command: Command) -> bool:
        """Whether a command may be carried out now: the end of an incident or of the run waits for the anchor."""
        if not isinstance(command, Append) or command.draft.action not in _ENDS:
            return True
        if await self._anchors.write(self.state):
            return True
        self._next_resync = min(self._next_resync, time.monotonic() + RETRY_SECONDS)
        return False

    async def _append(self, draft: Draft) -> JournalRecord:
        before = self.state
        if draft.action is JournalAction.READ_BACK and draft.phase is Phase.INTENT:
            self._ports.oversight.read_backs.take(self.run)
        record = await self._journal.append(draft)
        self._ports.oversight.recorded(self.run, before, record, self.state)
        log.info("journal", run=str(self.run), seq=record.seq, action=record.action, phase=record.phase)
        self._untold.append(record)
        return record

    async def _tell(self, body: KubernetesObject) -> None:
        """Send the Events of what was done: after it, for no effect waits for the people who read of it."""
        while self._untold:
            await self._reporter.tell(body, self._untold[0])
            del self._untold[0]

    async def _perform(self, command: Perform, around: Surroundings) -> None:
        effect: PendingEffect = command.effect
        outcome = await perform(effect, self.state, around)
        self._check_lease()
        self._listener.hung = ""
        result = Draft(
            action=effect.action, phase=Phase.RESULT, id=effect.id, incident=effect.incident, outcome=outcome
        )
        await self._append(result)

    def _check_lease(self) -> None:
        if not self._ports.lease.valid():
            message = "the Lease is not held now; nothing is written until it is renewed"
            raise LeaseLost(message)

    async def _read_job(self) -> KubernetesObject | None:
        """The TrainingJob as it is now, or None after journaling that the run's object is gone."""
        try:
            body = await self._ports.cluster.training_job(self.run.namespace, self.run.name)
        except NotFound:
            body = None
        metadata: dict[str, Any] = dict(body["metadata"]) if body is not None else {}
        if body is not None and metadata["uid"] == self.run.uid and not metadata.get("deletionTimestamp"):
            return body
        await self.end("Deleted")
        return None

    async def _told(self, tell: Callable[[KubernetesObject], Awaitable[None]]) -> KubernetesObject | None:
        """Say one thing on the TrainingJob while nothing else can be decided.

        Returns the object under the run's name, an empty one when there is none, None when that is not known now.
        """
        if not self._ports.lease.valid():
            return None
        try:
            body = await self._ports.cluster.training_job(self.run.namespace, self.run.name)
            if body["metadata"]["uid"] == self.run.uid:
                await tell(body)
        except NotFound:
            return {"metadata": {}}
        except OperatorError as error:
            log.warning("status not written", run=str(self.run), error=str(error))
            return None
        return body

    async def end(self, outcome: str) -> None:
        """Journal that the TrainingJob is gone, and anchor that; data and trail stay. Raises temporary errors."""
        self._check_lease()
        settled = await self._journal.settle()
        self._end_written |= settled is not None and settled.action == JournalAction.RUN_ENDED
        if not self._end_written:
            identity = f"run/{JournalAction.RUN_ENDED}"
            reason = {"message": "the TrainingJob was deleted; its checkpoints and this trail stay"}
            draft = Draft(action=JournalAction.RUN_ENDED, id=identity, outcome=outcome, reason=reason)
            await self._journal.append(draft)
            self._end_written = True
        await self._anchor_end()
        self.gone = True

    async def finish_end(self) -> None:
        """Anchor the end of a run whose last record another operator wrote; raises JournalBroken and temporary ones."""
        self._check_lease()
        await self._journal.read_vouched(await self._anchors.vouchers())
        await self._anchor_end()

    async def _anchor_end(self) -> None:
        anchored = await self._anchors.write(self.state, ended=True)
        if not anchored and not self._anchors.lost:
            raise AnchorPending(self._anchors.problem)
