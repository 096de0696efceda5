"""Shows people what the journal says: Events, the TrainingJob's status, GuardIncident objects.

All of it is derived. What cannot be written now is written at the next reconcile, and never holds an effect up.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from trimtab_contract.journal import JournalRecord

from trimtab_operator.adapters.ports import Cluster, EventType, Kind, KubernetesObject
from trimtab_operator.errors import ClusterUnavailable, NotFound, OperatorError
from trimtab_operator.incident_view import incident_object, incident_plans, incident_status
from trimtab_operator.incidents import Incident
from trimtab_operator.journal import wall_time
from trimtab_operator.observer import SeenRequest
from trimtab_operator.reasons import ConditionType, Reason
from trimtab_operator.run_state import UNKNOWN_PHASE, AnsweredRequest, RunPhase, RunState
from trimtab_operator.status import (
    ConditionRow,
    Situation,
    Status,
    condition,
    job_status,
    newly_wrong,
    request_status,
)
from trimtab_operator.story import event_of
from trimtab_operator.workload import TrainingJobView

INCIDENT_SECONDS = 30.0
"""An open incident's object is looked at no less often: people answer by it, and somebody may have deleted it."""
STATUS_SECONDS = 5.0
"""Step and loss alone are patched no more often than this."""

log = structlog.stdlib.get_logger(__name__)


class Reporter:
    """One run's voice towards Kubernetes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._patched = 0.0
        self._shown: dict[str, tuple[Status, float]] = {}

    async def tell(self, body: KubernetesObject, record: JournalRecord) -> None:
        """Send the Event of a record, if it has one."""
        event = event_of(record)
        if event is None:
            return
        kind, reason, message = event
        try:
            await self._cluster.event(body, kind, reason, message)
        except OperatorError as error:
            log.warning("event not sent", reason=reason, error=str(error))

    async def invalid(self, body: KubernetesObject, message: str) -> None:
        """A TrainingJob that cannot be read: say which field, and wait for its next generation."""
        await self.warn(body, (ConditionType.READY, False, Reason.INVALID_SPEC, message))

    async def journal_broken(self, body: KubernetesObject, message: str) -> None:
        """A run whose journal does not continue itself: nothing guards it, and its phase is not known."""
        await self.warn(
            body,
            (ConditionType.JOURNAL_BROKEN, True, Reason.JOURNAL_BROKEN, message),
            (ConditionType.GUARDED, False, Reason.JOURNAL_BROKEN, "no record is judged while the journal is broken"),
            phase=UNKNOWN_PHASE,
        )

    async def reconcile_failed(self, body: KubernetesObject, message: str, *, starting: bool) -> None:
        """What keeps a run from going on; `starting`: a world is to be made, and none trains until it is."""
        row = (ConditionType.READY, False, Reason.RECONCILE_FAILED, message)
        if not starting:
            await self.warn(body, row)
            return
        waits = (ConditionType.RUNNING, False, Reason.RECONCILE_FAILED, message)
        await self.warn(body, row, waits, phase=RunPhase.PENDING.value)

    async def warn(
        self, body: KubernetesObject, row: ConditionRow, *further: ConditionRow, phase: str | None = None
    ) -> None:
        """Say one thing beside what is shown, as a condition, the message and an Event, where nothing else is known.

        `further` conditions go with it. Does nothing while the object says so already. Raises as
        `Cluster.patch_status`.
        """
        metadata = body["metadata"]
        before: Mapping[str, Any] = body.get("status") or {}
        known: list[Status] = list(before.get("conditions") or [])
        said = condition(row, metadata["generation"], wall_time(), known)
        if any(all(one.get(name) == said[name] for name in ("type", "status", "message")) for one in known):
            return
        rows = [said, *(condition(one, metadata["generation"], wall_time(), known) for one in further)]
        changed = {one["type"] for one in rows}
        status: Status = {
            "conditions": [*(one for one in known if one["type"] not in changed), *rows],
            "message": said["message"],
        }
        if phase is not None:
            status["phase"] = phase
        await self._cluster.patch_status(
            Kind.TRAINING_JOB, metadata["namespace"], metadata["name"], status, metadata["resourceVersion"]
        )
        _, _, reason, message = row
        await self._cluster.event(body, EventType.WARNING, reason, message)

    async def report(
        self,
        body: KubernetesObject,
        job: TrainingJobView,
        state: RunState,
        situation: Situation,
        requests: Sequence[SeenRequest],
    ) -> None:
        """Bring the TrainingJob's status, the run's GuardIncidents and the answers to its RunRequests up to date.

        An object that is refused, or belongs to somebody else, keeps no other from being shown.
        """
        incidents = (*state.closed, *((state.incident,) if state.incident else ()))
        answers = {one.uid: one for one in state.requests}
        parts: tuple[Callable[[], Awaitable[None]], ...] = (
            *(partial(self._show, job, incident, state) for incident in incidents),
            *(partial(self._answer, one, answers[one.request.uid]) for one in requests if one.request.uid in answers),
            partial(self._patch, body, job, state, situation),
        )
        for part in parts:
            try:
                await part()
            except OperatorError as error:
                log.warning("status not written", run=str(job.run), error=str(error))
                if isinstance(error, ClusterUnavailable):
                    return  # each further one would be waited for, too

    async def _patch(self, body: KubernetesObject, job: TrainingJobView, state: RunState, situation: Situation) -> None:
        before: Mapping[str, Any] = body.get("status") or {}
        known: list[Status] = list(before.get("conditions") or [])
        status = job_status(job, state, situation, now=wall_time(), before=known)
        changed = {name for name, value in status.items() if before.get(name) != value}
        if not changed:
            return
        # Before the status that keeps it from being said again.
        for reason, message in newly_wrong(status["conditions"], known):
            await self._cluster.event(body, EventType.WARNING, reason, message)
        recently = time.monotonic() - self._patched < STATUS_SECONDS
        if recently and changed <= {"step", "loss", "journal", "checkpoint"} and not state.ended:
            return
        await self._cluster.patch_status(
            Kind.TRAINING_JOB, job.namespace, job.name, status, body["metadata"]["resourceVersion"]
        )
        self._patched = time.monotonic()

    async def _answer(self, seen: SeenRequest, answer: AnsweredRequest) -> None:
        """Patch the status of a RunRequest that the journal has answered, where it changed."""
        status = request_status(answer)
        before: Mapping[str, Any] = seen.body.get("status") or {}
        if all(before.get(name) == value for name, value in status.items()):
            return
        metadata = seen.body["metadata"]
        namespace, version = metadata["namespace"], metadata["resourceVersion"]
        await self._cluster.patch_status(Kind.RUN_REQUEST, namespace, metadata["name"], status, version)

    async def _show(self, job: TrainingJobView, incident: Incident, state: RunState) -> None:
        """Create the incident's object, append its plans, patch its status; each only when it changed."""
        status = incident_status(incident, state)
        shown: Status = {"plans": incident_plans(incident), "status": status}
        known, looked = self._shown.get(incident.name, ({}, 0.0))
        open_one = not incident.outcome
        if known == shown and not (open_one and time.monotonic() >= looked + INCIDENT_SECONDS):
            return
        await self._cluster.create(incident_object(job, incident))
        try:
            found = await self._cluster.guard_incident(job.namespace, incident.name)
        except NotFound:
            return
        version = str(found["metadata"]["resourceVersion"])
        if (found["spec"].get("plans") or []) != shown["plans"]:
            version = await self._cluster.patch_spec(
                Kind.GUARD_INCIDENT, job.namespace, incident.name, {"plans": shown["plans"]}, version
            )
        before: Mapping[str, Any] = found.get("status") or {}
        if any(before.get(name) != value for name, value in status.items()):
            await self._cluster.patch_status(Kind.GUARD_INCIDENT, job.namespace, incident.name, status, version)
        self._shown[incident.name] = shown, time.monotonic()
