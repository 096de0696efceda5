"""What Prometheus hears of the runs. Gauges are read off the journals' folds at each scrape; counters and histograms
count what this process wrote, and begin anew with the next leader, as counters do. A job's counters go with the job.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from trimtab_contract.journal import JournalRecord
from trimtab_contract.keys import RunId

from trimtab_operator.incidents import Incident, PhaseTime
from trimtab_operator.notices import DELIVERED, UNDELIVERED
from trimtab_operator.run_state import JournalAction, Notice, RunPhase, RunState

SECONDS = (1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)
"""Bounds of the histograms' buckets: a rollback in place takes seconds, a person hours."""

_JOB = ("job_namespace", "job_name")


@dataclass(frozen=True, slots=True)
class Seen:
    """All runs at one moment. `broken` are those whose journal is, `failing` those for which nothing can be decided;
    `breaker_open` holds for every run."""

    states: Mapping[RunId, RunState]
    broken: frozenset[RunId] = frozenset()
    failing: frozenset[RunId] = frozenset()
    breaker_open: bool = False


class Telemetry:
    """The operator's own metrics, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counted: dict[tuple[str, str], set[tuple[Counter, tuple[str, ...]]]] = {}
        self._opened = Counter(
            "trimtab_incidents_opened", "Incidents opened, by rule.", (*_JOB, "rule"), registry=registry
        )
        self._closed = Counter(
            "trimtab_incidents", "Incidents closed, by rule and outcome.", (*_JOB, "rule", "outcome"), registry=registry
        )
        self._rollbacks = Counter("trimtab_rollbacks", "Rollbacks planned.", _JOB, registry=registry)
        self._lost = Counter(
            "trimtab_worlds_lost", "Worlds that ended, by reason.", (*_JOB, "reason"), registry=registry
        )
        self._notices = Counter(
            "trimtab_notices", "Notices that were delivered or given up.", ("kind", "outcome"), registry=registry
        )
        self._phases = Histogram(
            "trimtab_incident_phase_seconds",
            "How long an incident stayed in a phase.",
            ("phase",),
            buckets=SECONDS,
            registry=registry,
        )
        self._recovery = Histogram(
            "trimtab_incident_recovery_seconds",
            "From a rule's firing to the run's going on behind the damage.",
            buckets=SECONDS,
            registry=registry,
        )

    def show(self, seen: Callable[[], Seen]) -> None:
        """Answer scrapes with how the runs stand then."""
        self._registry.register(_Standing(seen))

    def recorded(self, run: RunId, before: RunState, record: JournalRecord, after: RunState) -> None:
        """Count what one record, written by this process, has changed."""
        if before.incident is None and after.incident is not None:
            self._count(self._opened, run, after.incident.latch.rule)
        if before.incident is not None and after.incident is None and after.closed:
            closed = after.closed[-1]
            self._count(self._closed, run, closed.latch.rule, closed.outcome)
        if record.action == JournalAction.TARGET_SELECTED:
            self._count(self._rollbacks, run)
        if record.action == JournalAction.WORLD_LOST and after.world is not None:
            self._count(self._lost, run, after.world.lost_reason)
        self._time(before.incident, after, record.time)

    def forget(self, run: RunId) -> None:
        """Show no counter of the job any more."""
        job = (run.namespace, run.name)
        for counter, labels in self._counted.pop(job, ()):
            counter.remove(*job, *labels)

    def noticed(self, notice: Notice, *, delivered: bool) -> None:
        """Count a notice that was settled."""
        self._notices.labels(notice.kind.value, DELIVERED if delivered else UNDELIVERED).inc()

    def _count(self, counter: Counter, run: RunId, *labels: str) -> None:
        job = (run.namespace, run.name)
        self._counted.setdefault(job, set()).add((counter, labels))
        counter.labels(*job, *labels).inc()

    def _time(self, incident: Incident | None, after: RunState, time: str) -> None:
        if incident is None or not incident.phases:
            return
        last = incident.phases[-1]
        going = after.incident.phases[-1].phase if after.incident and after.incident.phases else ""
        if going == last.phase:
            return
        self._phases.labels(last.phase).observe(_seconds(last.time, time))
        fired = last_firing(incident.phases)
        if going == RunPhase.PROBATION and fired is not None:
            self._recovery.observe(_seconds(fired.time, time))


def last_firing(phases: tuple[PhaseTime, ...]) -> PhaseTime | None:
    """Where an incident, or its last relapse, began."""
    return next((one for one in reversed(phases) if one.phase == RunPhase.HOLDING), None)


def _seconds(since: str, until: str) -> float:
    return max(0.0, (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds())


def waits_for_a_person(state: RunState) -> bool:
    """Whether nothing goes on before a person answers."""
    if state.phase in {RunPhase.NEEDS_HUMAN, RunPhase.AWAITING_APPROVAL}:
        return True
    incident = state.incident
    return state.phase is RunPhase.HOLDING and incident is not None and incident.paused


class _Standing(Collector):
    """How all runs stand at the moment of a scrape."""

    def __init__(self, seen: Callable[[], Seen]) -> None:
        self._seen = seen

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        seen = self._seen()
        phase = GaugeMetricFamily("trimtab_job_phase", "1 for the phase a job is in.", labels=(*_JOB, "phase"))
        human = GaugeMetricFamily("trimtab_job_needs_human", "1 while a job waits for a person.", labels=_JOB)
        incident = GaugeMetricFamily("trimtab_job_incident_open", "1 while an incident is open.", labels=_JOB)
        held = GaugeMetricFamily(
            "trimtab_job_automation_held", "1 while a job's rollback or restart waits for the breaker.", labels=_JOB
        )
        broken = GaugeMetricFamily("trimtab_job_journal_broken", "1 while a job's journal is broken.", labels=_JOB)
        failing = GaugeMetricFamily(
            "trimtab_job_reconcile_failed", "1 while nothing can be decided for a job.", labels=_JOB
        )
        breaker = GaugeMetricFamily("trimtab_breaker_open", "1 while automation is held for all runs.")
        breaker.add_metric((), float(seen.breaker_open))
        for run, state in seen.states.items():
            job = (run.namespace, run.name)
            for one in RunPhase:
                phase.add_metric((*job, one.value), float(one is state.phase))
            human.add_metric(job, float(waits_for_a_person(state)))
            incident.add_metric(job, float(state.incident is not None))
            held.add_metric(job, float(state.automation is not None))
        for run in {*seen.states, *seen.broken, *seen.failing}:
            broken.add_metric((run.namespace, run.name), float(run in seen.broken))
            failing.add_metric((run.namespace, run.name), float(run in seen.failing))
        return (phase, human, incident, held, broken, failing, breaker)
