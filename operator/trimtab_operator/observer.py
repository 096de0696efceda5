"""Looks at everything a decision may depend on and makes one frozen Observation of it; changes nothing of the run."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import structlog
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import Ack, Action, Diagnose, LearningRateOverride
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.journal import Evidence
from trimtab_contract.keys import RunId, audit_evidence

from trimtab_operator.adapters.ports import CheckpointStore, CheckpointStores, Cluster, JournalStore, KubernetesObject
from trimtab_operator.claims import look_at_claims
from trimtab_operator.errors import InvalidResource, NotFound, SourceRefused, StoreRefused, StoreUnavailable
from trimtab_operator.final_checkpoint import finished_word
from trimtab_operator.frozen_evidence import EvidenceFreezer, Suspicion, order_of_data
from trimtab_operator.guards import GuardView, keep_texts, read_guard
from trimtab_operator.incidents import Incident, Latch, RemediationSettings, Vitals, Wishes
from trimtab_operator.judge import Judge, remediation_settings
from trimtab_operator.kubernetes_view import owned_by, pods_of_world
from trimtab_operator.observation import (
    Acks,
    Blocker,
    Limits,
    MissingMetric,
    Observation,
    Pods,
    Request,
    RetentionSettings,
)
from trimtab_operator.probes import ProbeProblem, read_probe, read_suspect
from trimtab_operator.reasons import Reason
from trimtab_operator.records import Rejections
from trimtab_operator.resources import RunRequestArguments, RunRequestSpec, parse_duration, parse_run_request_spec
from trimtab_operator.retention import retention_settings
from trimtab_operator.run_state import AcceptedGuard, RunPhase, RunState
from trimtab_operator.source_reader import FoundSource, SourceReader
from trimtab_operator.sources import Wanted, check_wanted
from trimtab_operator.tasks import end_tasks
from trimtab_operator.workload import TrainingJobView, world_name, world_selector

_One = TypeVar("_One")
_Two = TypeVar("_Two")
_Three = TypeVar("_Three")
_Four = TypeVar("_Four")

CREDENTIAL_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A RunRequest as it is in the cluster, and what it asks for."""

    body: KubernetesObject
    request: Request


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What one look at the cluster and the stores gave, before acks and records are added."""

    limits: Limits
    blockers: tuple[Blocker, ...]
    guard: GuardView
    pods: Pods
    requests: tuple[SeenRequest, ...] = ()
    last_step: int | None = None
    data_order: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What of the trainer's configuration gives a data position its meaning, under dotted names."""
    source: FoundSource | None = None
    """What a run that has not begun continues."""

    @property
    def remediation(self) -> RemediationSettings | None:
        """That of the first policy in force."""
        policies = self.guard.policies
        return remediation_settings(policies[0].spec.remediation) if policies else None


def _suspicion(observation: Observation, firing: Latch, judge: Judge, data_order: Mapping[str, Any]) -> Suspicion:
    latest = observation.acks.latest
    return Suspicion(
        latch=firing,
        body=judge.evidence(),
        records=judge.suspect_records(),
        pods=observation.pods,
        ranks=latest.ranks if latest is not None else 0,
        data_order=data_order,
    )


def _trained(pods: Pods, judge: Judge, state: RunState) -> int:
    """The last step that the newest attempt is known to have trained: from its records, or its last words."""
    last_words = (message.step for message in pods.messages if message.attempt == state.attempt)
    return max((judge.furthest_step(state.attempt), *last_words))


def probation_vitals(state: RunState, judge: Judge, acks: Acks, last_step: int | None = None) -> Vitals | None:
    """The last records of the open incident's probation; a run may end within it, at `last_step` if known."""
    incident = state.incident
    if state.phase is not RunPhase.PROBATION or incident is None or incident.target is None:
        return None
    last = incident.probation_until
    finished = finished_word(state, acks, last_step)
    last = min(last, finished.step) if finished is not None else last
    return judge.vitals(incident.target.step, last) if judge.judged_step >= last else None


def _accepted(guard: GuardView, state: RunState, judge: Judge) -> AcceptedGuard | None:
    """What judges from the next record on; None while no policy that the job names has ever been valid."""
    if guard.blocking and not guard.policies:
        return None
    return guard.accepted(state.attempt, judge.judged_step + 1)


class Observer:
    """One run's eyes. Keeps the job's checkpoint store open and remembers evidence it has fetched."""

    def __init__(
        self,
        run: RunId,
        cluster: Cluster,
        journal: JournalStore,
        stores: CheckpointStores,
        sources: SourceReader | None = None,
        *,
        read_back_jobs: bool = False,
    ) -> None:
        """`sources` reads what other runs have left; by itself it may look into every namespace."""
        self._read_back_jobs = read_back_jobs
        self.store: CheckpointStore | None = None
        self.unread = ""
        """Which checkpoint is left out of account, for a newer version than this one saved it."""
        self._run = run
        self._cluster = cluster
        self._journal = journal
        self._stores = stores
        self._rejections = Rejections(run)
        self._opened: tuple[object, ...] = ()
        self._freezer = EvidenceFreezer(run, journal)
        self._sources = sources or SourceReader(cluster, journal)
        self._probe: tuple[int, ProbeEvidence, tuple[Evidence, ...]] | None = None
        self._suspect: tuple[tuple[int, Diagnose], ProbeEvidence, tuple[Evidence, ...]] | None = None

    async def survey(self, job: TrainingJobView, state: RunState, judge: Judge) -> Surveyed:
        """Read the job's surroundings afresh, all at once; raises temporary errors only."""
        opened, guard, pods, requests = await _together(
            self._open_store(job, state),
            self._read_guard(job, state, judge),
            self._pods(job, state),
            self._requests(job),
        )
        blockers = (*opened, *(Blocker(problem.reason, problem.message) for problem in guard.blocking))
        source, refused = (None, ()) if blockers else await self._source(job, state)
        budget = job.spec.budget
        limits = Limits(
            max_rollbacks=budget.max_rollbacks,
            max_restarts=budget.max_restarts,
            window_seconds=parse_duration(budget.window),
            certify_steps=job.spec.checkpoint.certify_steps,
            generation=job.generation,
            suspend=job.spec.suspend,
            retention=_retention(job, guard),
            read_back_jobs=self._read_back_jobs,
        )
        return Surveyed(
            limits,
            (*blockers, *refused),
            guard,
            pods,
            requests,
            _last_step(job),
            data_order=order_of_data(job.spec.trainer.config),
            source=source,
        )

    async def observe(
        self,
        surveyed: Surveyed,
        *,
        job: str,
        now: str,
        acks: Acks,
        judge: Judge,
        state: RunState,
        hung: str,
        missing_metrics: tuple[MissingMetric, ...],
        final_check_over: bool,
        diagnosis_late: bool = False,
    ) -> Observation:
        """Add what the trainer said and what its records say."""
        told = tuple(message.saved for message in surveyed.pods.messages if message.saved is not None)
        claimed = (*acks.saved, *told)
        trained = _trained(surveyed.pods, judge, state)
        claims = (
            await look_at_claims(self.store, self._run, state, claimed, trained, self._rejections) if self.store else ()
        )
        newer = [claim for claim in claims if claim.newer]
        self.unread = f"the checkpoint after step {newer[-1].reference.step}: {newer[-1].why}" if newer else ""
        observation = Observation(
            job=job,
            now=now,
            limits=surveyed.limits,
            blocked=tuple(blocker.message for blocker in surveyed.blockers),
            acks=acks,
            pods=surveyed.pods,
            hung=hung,
            guard=_accepted(surveyed.guard, state, judge),
            judged_step=judge.judged_step,
            green_step=judge.green_step,
            firing=judge.firing,
            notes=judge.notes,
            withheld=judge.withheld,
            probation=probation_vitals(state, judge, acks, surveyed.last_step),
            missing_metrics=missing_metrics,
            claims=tuple(claim for claim in claims if not claim.newer),
            source=surveyed.source.source if surveyed.source is not None else None,
            source_evidence=surveyed.source.evidence if surveyed.source is not None else (),
            hold_on_nonfinite=surveyed.guard.holds_on_nonfinite,
            final_check_over=final_check_over,
            diagnosis_late=diagnosis_late,
            requests=tuple(seen.request for seen in surveyed.requests),
            remediation=surveyed.remediation,
            last_step=surveyed.last_step,
        )
        return await self._with_evidence(observation, state, judge, surveyed.data_order)

    async def _with_evidence(
        self, observation: Observation, state: RunState, judge: Judge, data_order: Mapping[str, Any]
    ) -> Observation:
        incident = state.incident
        if incident is None:
            return observation
        if state.phase is RunPhase.HOLDING and judge.firing is not None and _may_be_held(state):
            suspicion = _suspicion(observation, judge.firing, judge, data_order)
            return replace(observation, frozen_evidence=await self._freezer.freeze(suspicion, self.store))
        diagnosed = observation.acks.diagnosed
        if state.phase is RunPhase.DIAGNOSING and diagnosed is not None:
            return await self._with_suspect(observation, diagnosed, state)
        if state.phase is RunPhase.DIAGNOSING_RESTORED and diagnosed is not None:
            if diagnosed.attempt != incident.restoring_attempt:
                return observation
            if self._probe is None or self._probe[0] != diagnosed.attempt:
                problem = await self._fetch_probe(diagnosed, incident, state)
                if problem or self._probe is None:
                    return replace(observation, probe_problem=problem)
            return replace(observation, probe=self._probe[1], probe_evidence=self._probe[2])
        return observation

    async def _with_suspect(self, observation: Observation, diagnosed: Ack, state: RunState) -> Observation:
        """Add what the held world measured; a store that is away only makes the answer late."""
        if self.store is None or diagnosed.attempt != state.attempt or diagnosed.checkpoint is not None:
            return observation
        directive = state.directive
        if directive is None or directive.diagnose is None:
            return observation
        asked = directive.diagnose
        if self._suspect is None or self._suspect[0] != (state.attempt, asked):
            try:
                probe, body = await read_suspect(self.store, self._run, diagnosed, directive)
            except ProbeProblem as problem:
                # An answer to an earlier question is none to this one; the world repeats its own under every order.
                stale = (diagnosed.epoch, diagnosed.seq) < directive.order
                return observation if stale else replace(observation, suspect_problem=str(problem))
            except (StoreUnavailable, StoreRefused) as error:
                log.warning("measurement of the held state not read", run=str(self._run), error=str(error))
                return observation
            self._suspect = (state.attempt, asked), probe, (await self._keep(body),)
        return replace(observation, suspect=self._suspect[1], suspect_evidence=self._suspect[2])

    async def _keep(self, body: bytes) -> Evidence:
        """Copy evidence into the audit bucket, where the trainer cannot change it."""
        digest = sha256_hex(body)
        kept = Evidence(key=audit_evidence(self._run, digest), sha256=digest)
        await self._journal.put_object(kept.key, body)
        return kept

    async def _fetch_probe(self, ack: Ack, incident: Incident, state: RunState) -> str:
        """Read and keep the probe's losses; why that cannot be."""
        if self.store is None:
            return ""
        try:
            probe, body = await read_probe(self.store, self._run, ack, incident, state.directive)
        except ProbeProblem as problem:
            return str(problem)
        self._probe = (ack.attempt, probe, (await self._keep(body),))
        return ""

    async def _open_store(self, job: TrainingJobView, state: RunState) -> list[Blocker]:
        storage = job.spec.checkpoint
        name = storage.credentials_secret_ref.name
        field = f"spec.checkpoint.credentialsSecretRef: Secret {name} in namespace {job.namespace}"
        try:
            secret = await self._cluster.secret(job.namespace, name)
        except NotFound:
            return [Blocker(Reason.SECRET_MISSING, f"{field} does not exist: create it")]
        absent = [key for key in CREDENTIAL_KEYS if not secret.get(key)]
        if absent:
            return [Blocker(Reason.SECRET_KEY_MISSING, f"{field} lacks {' and '.join(absent)}: add what is missing")]
        identity = (storage.uri, storage.endpoint, tuple(sorted(secret.items())))
        try:
            if self._opened != identity or self.store is None:
                self.store = self._stores.open(storage.uri, storage.endpoint or "", secret)
                self._opened = identity
            if state.phase is RunPhase.PENDING:
                await self.store.check()
        except StoreRefused as error:
            self._opened = ()
            return [Blocker(Reason.STORE_REFUSED, f"spec.{error}")]
        except StoreUnavailable as error:
            return [Blocker(Reason.STORE_UNAVAILABLE, f"spec.{error}")]
        return []

    async def _source(self, job: TrainingJobView, state: RunState) -> tuple[FoundSource | None, tuple[Blocker, ...]]:
        """What the job is to continue, looked at until its first world starts; or why it cannot."""
        asked = job.spec.resume_from
        if asked is None or state.attempts or job.spec.suspend or self.store is None:
            return None, ()
        try:
            config = None if job.spec.trainer.command else job.spec.trainer.config
            wanted = Wanted(RunId.parse(asked.run), asked.step, asked.manifest_sha256, config)
            check_wanted(wanted, self._run, _last_step(job))
            return await self._sources.find(wanted, self.store), ()
        except SourceRefused as error:
            return None, (Blocker(Reason.SOURCE_REFUSED, str(error)),)
        except StoreUnavailable as error:
            return None, (Blocker(Reason.STORE_UNAVAILABLE, f"spec.resumeFrom: {error}"),)

    async def _read_guard(self, job: TrainingJobView, state: RunState, judge: Judge) -> GuardView:
        if state.ended:
            return GuardView((), job.spec.guard.mode, (), ())  # whatever people do to policies now, none judges it
        guard = await read_guard(self._cluster, job.namespace, job.spec, state, judge.texts)
        await keep_texts(self._journal, guard, judge.texts)
        return guard

    async def _pods(self, job: TrainingJobView, state: RunState) -> Pods:
        if state.world is None:
            return Pods()
        number = state.world.number
        # The Job first: once it has ended it makes no more pods, and a later list of them is the last word.
        found = await self._cluster.get_job(job.namespace, world_name(job.name, number))
        if found is not None and not owned_by(found, job.uid):
            found = None
        pods = await self._cluster.pods(job.namespace, world_selector(job, number))
        return pods_of_world(number, found, pods)

    async def _requests(self, job: TrainingJobView) -> tuple[SeenRequest, ...]:
        """What people ask of the job, oldest first."""
        found: list[SeenRequest] = []
        for body in await self._cluster.run_requests(job.namespace):
            try:
                spec = parse_run_request_spec(body)
            except InvalidResource as error:
                log.warning("request ignored", error=str(error))
                continue
            if spec.job == job.name:
                found.append(SeenRequest(body, _request(body["metadata"], spec, job)))
        return tuple(sorted(found, key=lambda seen: (_created(seen.body), seen.request.name)))


def _retention(job: TrainingJobView, guard: GuardView) -> RetentionSettings | None:
    """Which checkpoints must stay; None while a policy that the job names cannot be read, for it may need any."""
    if guard.blocking:
        return None
    storage = job.spec.checkpoint
    return retention_settings(
        keep_last=storage.keep_last,
        keep_every=storage.keep_every,
        certify_steps=storage.certify_steps,
        max_rollbacks=job.spec.budget.max_rollbacks,
        policies=(policy.spec for policy in guard.policies),
    )


def _last_step(job: TrainingJobView) -> int | None:
    """The last step of the run, where its trainer's configuration says."""
    steps = job.spec.trainer.config.get("steps")
    return steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else None


def _request(metadata: Mapping[str, Any], spec: RunRequestSpec, job: TrainingJobView) -> Request:
    return Request(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        action=spec.action,
        by=spec.by,
        reason=spec.reason,
        wishes=_wishes(spec.args),
        plan_hash=spec.plan_hash or "",
        outlived=str(metadata["creationTimestamp"]) < job.created,
    )


def _wishes(args: RunRequestArguments | None) -> Wishes:
    if args is None:
        return Wishes()
    rate = args.learning_rate
    return Wishes(
        step=args.to_step,
        key=args.to_key or "",
        skip=(args.skip.first, args.skip.last) if args.skip else None,
        learning_rate=LearningRateOverride(scale=rate.scale, until_step=rate.for_steps) if rate else None,
        unchanged=bool(args.unchanged),
    )


def _created(body: KubernetesObject) -> str:
    return str(body["metadata"]["creationTimestamp"])


async def _together(
    one: Coroutine[Any, Any, _One],
    two: Coroutine[Any, Any, _Two],
    three: Coroutine[Any, Any, _Three],
    four: Coroutine[Any, Any, _Four],
) -> tuple[_One, _Two, _Three, _Four]:
    """The results of four reads that do not depend on each other; raises the first error and ends the others."""
    tasks = (
        asyncio.ensure_future(one),
        asyncio.ensure_future(two),
        asyncio.ensure_future(three),
        asyncio.ensure_future(four),
    )
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(*tasks)


def _may_be_held(state: RunState) -> bool:
    """Whether the Hold is out, or nobody is left to hear it: until then nothing may delay it, evidence neither."""
    directive, incident = state.directive, state.incident
    if incident is not None and incident.paused and incident.held_step is not None:
        return False  # what is frozen stays: only an answer is waited for
    if not state.world_lives or directive is None or incident is None:
        return True
    return directive.action is Action.HOLD and directive.incident == incident.name and state.pending is None
