"""Starts the Job that the journal says reads checkpoints back, and looks what became of it, beside all reconciling.

One Job of a run at a time, whose name follows from its intent: so whichever operator looks finds the one that another
started, or starts it. Nothing here decides; what became of it is an observation, and the Job goes by its own time.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from trimtab_contract.journal import parse_record
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.ports import Cluster, JournalStore, KubernetesObject, Lease
from trimtab_operator.errors import OperatorError, PermanentError
from trimtab_operator.kubernetes_view import owned_by
from trimtab_operator.observation import ReadBackOutcome
from trimtab_operator.read_back import START_SECONDS, told
from trimtab_operator.read_back_view import begun, outcome_of, waits
from trimtab_operator.read_back_workload import read_back_job, read_back_name, read_back_selector
from trimtab_operator.run_state import ReadBackOrder, RunState
from trimtab_operator.tasks import end_tasks
from trimtab_operator.workload import TrainingJobView, WorkloadDefaults

LOOK_SECONDS = 10.0
"""How soon a Job is looked at again whose pods are not watched; that it has ended is told at once."""

log = structlog.stdlib.get_logger(__name__)


class ReadBackKeeper:
    """One run's keeper. `wake` is called when something became of the Job."""

    def __init__(
        self,
        run: RunId,
        cluster: Cluster,
        journal: JournalStore,
        lease: Lease,
        wake: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`clock` is the one on the wall, by which intents are dated. Sends nothing."""
        self.stalled = 0
        """The order whose Job has had time to begin to read and does not, 0 for none."""
        self._run, self._cluster, self._journal, self._lease = run, cluster, journal, lease
        self._wake, self._clock = wake, clock
        self._outcome: ReadBackOutcome | None = None
        self._trouble: tuple[int, str] = 0, ""
        self._task: asyncio.Task[None] | None = None

    def outcome(self, state: RunState) -> ReadBackOutcome | None:
        """What became of the Job that the journal still waits for."""
        order, outcome = state.read_back, self._outcome
        return outcome if order is not None and outcome is not None and outcome.number == order.number else None

    def status(self, state: RunState) -> str:
        """What is being read back, and what keeps it from that, in words; empty while nothing is."""
        if state.read_back is None:
            return ""
        number, trouble = self._trouble
        return told(state.read_back) + (f"; {trouble}" if trouble and number == state.read_back.number else "")

    def attend(self, now: float, state: RunState, job: TrainingJobView, defaults: WorkloadDefaults) -> float:
        """Go on with what the journal asks for at monotonic time `now`, without waiting for it.

        Returns when to ask again, infinity where nothing is to be done.
        """
        order = state.read_back
        if order is None or self.outcome(state) is not None:
            return float("inf")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(order, state, job, defaults))
        return now + LOOK_SECONDS

    async def close(self) -> None:
        """End what is under way; the next operator goes on with it."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _look(
        self, order: ReadBackOrder, state: RunState, job: TrainingJobView, defaults: WorkloadDefaults
    ) -> None:
        name, trouble = read_back_name(job, order), ""
        try:
            found = await self._job(job, name)
            pods = await self._cluster.pods(job.namespace, read_back_selector(job, order)) if found else ()
            now = self._clock().timestamp()
            self._outcome = outcome_of(order, name, found, pods, now)
            self.stalled = order.number if now > order.since + START_SECONDS and not begun(pods) else 0
            trouble = waits(name, pods)
            if found is None and self._outcome is None and await self._leads(state):
                await self._cluster.create(read_back_job(job, defaults, order))
        except PermanentError as error:
            self._outcome = ReadBackOutcome(number=order.number, job=name, error=f"Job {name} cannot be made: {error}")
        except OperatorError as error:
            trouble = f"Job {name} cannot be made or seen now: {error}"
        except Exception:
            log.exception("defect", run=str(self._run), job=name)
            trouble = "a defect; the operator's log has it"
        self._trouble = order.number, trouble
        if self._outcome is not None:
            self._wake()

    async def _job(self, job: TrainingJobView, name: str) -> KubernetesObject | None:
        """The Job, unless it belongs to an earlier TrainingJob of the same name."""
        found = await self._cluster.get_job(job.namespace, name)
        return found if found is not None and owned_by(found, job.uid) else None

    async def _leads(self, state: RunState) -> bool:
        """Whether nobody else leads: a fresh look at Lease and journal, for a process may have been frozen."""
        newer = await self._journal.read(self._run, after=state.seq)
        return self._lease.valid() and all(parse_record(body).actor.epoch <= state.epoch for _, body in newer)
