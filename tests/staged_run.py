"""A judged run on real parts: the played trainer reads and writes real Redis and S3, its pods are real objects.

There is no node: `StagedRun` does what a Job controller and a kubelet would. It looks at the real journal, bus and
Jobs as they are, and every invariant of the simulated world is checked on what it sees there.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from judged_world import JudgedRun, policy_spec
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, run_request, training_job
from played_trainer import Line, PlayedWorld, Saved, Scenario
from redis import Redis
from redis_fixture import RedisServer
from scripted_world import ScriptedRun
from trimtab_contract.anchors import anchor_name
from trimtab_contract.checkpoints import (
    CheckpointManifest,
    EvaluationProbe,
    FiniteScan,
    StoredObject,
    encode_manifest,
    sha256_hex,
)
from trimtab_contract.directives import (
    ACK_FIELD,
    Ack,
    AckState,
    Action,
    CheckpointReference,
    Directive,
    EvidenceReference,
    Reason,
    encode,
)
from trimtab_contract.evidence import encode_probe
from trimtab_contract.journal import JournalRecord, parse_record, record_hash
from trimtab_contract.keys import (
    ack_stream,
    checkpoint_prefix,
    directive_key,
    evidence_object,
    metrics_stream,
    redis_user,
)
from trimtab_contract.metrics import STREAM_FIELD, encode_record
from trimtab_operator.adapters.api_server import AlreadyExists, ApiServer, Resource
from trimtab_operator.adapters.ports import JournalStore, KubernetesObject
from trimtab_operator.errors import ClusterUnavailable, Conflict, NotFound
from trimtab_operator.resources import API_VERSION, parse_journal_anchor
from trimtab_operator.run_state import JournalAction
from trimtab_operator.workload import (
    ATTEMPT_LABEL,
    JOB_UID_LABEL,
    PASSWORD_KEY,
    TrainingJobView,
    config_map_name,
    redis_secret_name,
    world_name,
)
from trimtab_trainer.directives import Inbox

ROOT = "runs"
ANCHORS = Resource(API_VERSION, "journalanchors")
WEIGHTS = b"weights"
JOBS, PODS = Resource("batch/v1", "jobs"), Resource("v1", "pods")
TRAINING_JOBS, GUARD_POLICIES, RUN_REQUESTS = (
    Resource(API_VERSION, kind) for kind in ("trainingjobs", "guardpolicies", "runrequests")
)
SERVICES, CONFIG_MAPS, SECRETS = (Resource("v1", kind) for kind in ("services", "configmaps", "secrets"))


class PatientApiServer(ApiServer):
    """For what stands around the operator: it waits for an API server that is slow, as a kubelet does."""

    async def _request(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        while True:
            try:
                return await super()._request(*arguments, **options)
            except ClusterUnavailable:
                await asyncio.sleep(0)

    async def made(self, resource: Resource, body: KubernetesObject) -> KubernetesObject:
        """The object, created now or by an earlier try that was not answered."""
        try:
            return await self.create(resource, body)
        except AlreadyExists:
            return await self.get(resource, body["metadata"]["namespace"], body["metadata"]["name"])


@dataclass(frozen=True)
class Stage:
    """The real parts that several runs share."""

    server: PatientApiServer
    namespace: str
    redis: RedisServer
    store: ObjectStoreServer
    bucket: str
    journal: JournalStore

    def objects(self, name: str, scenario: Scenario) -> list[dict[str, Any]]:
        """A job, and the policy of its own."""
        policy = guard_policy(name, self.namespace)
        policy["spec"] = policy_spec(scenario)
        place = {"uri": f"s3://{self.bucket}/{ROOT}", "endpoint": self.store.endpoint}
        job = training_job(
            name,
            self.namespace,
            guard={"policies": [{"name": name}]},
            checkpoint={**place, "everySteps": scenario.checkpoint_every, "certifySteps": scenario.certify},
        )
        job["spec"]["trainer"]["config"] |= {"steps": scenario.steps, "replicaCheckEvery": scenario.margin}
        return [policy, job]

    async def training_job(self, name: str) -> KubernetesObject:
        """A job as it is now."""
        return await self.server.get(TRAINING_JOBS, self.namespace, name)

    def secret(self) -> dict[str, Any]:
        """The keys of the checkpoint store."""
        keys = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
        metadata = {"name": "s3", "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys}


class StoredWorld(PlayedWorld):
    """A played world whose checkpoints lie in S3."""

    def obey(self, directive: Directive) -> None:
        """A Hold is what a trainer that stands still has waited for."""
        assert isinstance(self.run, StagedRun)
        if directive.action is Action.HOLD:
            self.run.stands_still = False
        super().obey(directive)

    def train(self) -> None:
        """The next step, unless it is put off."""
        assert isinstance(self.run, StagedRun)
        if not self.run.stands_still:
            super().train()

    def save(self) -> CheckpointReference:
        """Shards first, then the manifest, then the word."""
        assert isinstance(self.run, StagedRun)
        run, prefix = self.run, checkpoint_prefix(ROOT, self.run.id, self.step, self.attempt, "x")
        manifest = encode_manifest(
            CheckpointManifest(
                run=str(run.id),
                attempt=self.attempt,
                step=self.step,
                world_size=2,
                next_window=self.ledger.window_of_step(self.step + 1),
                skip=self.ledger.ranges,
                lr=None,
                learning_rate=1e-3,
                optimizer_steps=self.step,
                objects={"rank-0": StoredObject(size=len(WEIGHTS), sha256=sha256_hex(WEIGHTS), rank=0)},
                tensors={},
                replica_checksum="0",
                replicas_agree=True,
                finite=FiniteScan(nonfinite=0),
                evaluation=EvaluationProbe(window=self.step, window_sha256="0", losses=(2.0, 2.0)),
                config_sha256="0",
                code_sha256="0",
                versions={},
                trigger="Periodic",
                saved_at=1.0,
            )
        )
        key = f"{prefix}manifest.json"
        reference = CheckpointReference(key=key, sha256=sha256_hex(manifest), step=self.step)
        if key not in run.saved:
            run.saved[key] = Saved(reference, self.attempt, self.ledger, self.spoiled)
            run.put(f"{prefix}rank-0", WEIGHTS)
            run.put(key, manifest)
            run.acked(self, AckState.SAVED, checkpoint=reference)
        return reference


class StagedRun(JudgedRun):
    """Everything outside the operator of one run."""

    def __init__(
        self, scenario: Scenario, stage: Stage, job: TrainingJobView, on_tick: Callable[[ScriptedRun], None]
    ) -> None:
        super().__init__(scenario)
        self.id = job.run
        self._on_tick = on_tick
        self._stage, self._job = stage, job
        self._outgoing: list[Callable[[], object]] = []
        self._deeds: list[Callable[[], Awaitable[object]]] = []
        """What people do at the API server, in order."""
        self.stands_still = False
        """Whether the trainer takes no step until it is told to hold."""
        self.job_deleted = self.end_anchored = False
        self._pods: dict[int, KubernetesObject] = {}
        self._objects = stage.store.client()
        self._redis: Redis | None = None
        self.anchored_heads: set[int] = set()
        """The records that the API server was told of as the journal's newest."""

    @property
    def over(self) -> bool:
        """Whether the run is at its end, as the journal says, and nothing of it is left."""
        if self.job_deleted:
            return self.end_anchored and not self.living
        return self.state.ended and self.state.pending is None and not self.living

    async def live(self, *, changed: bool) -> None:
        """Look at what is stored, let time pass, and store what came of it; `changed`: look at Jobs and pods too."""
        await self.look(changed=changed)
        dead = {number for number, world in self.worlds.items() if not world.alive}
        self.tick()
        self._on_tick(self)
        outgoing, self._outgoing = self._outgoing, []
        await asyncio.to_thread(lambda: [store() for store in outgoing])
        deeds, self._deeds = self._deeds, []
        for deed in deeds:
            await deed()
        for number, world in self.worlds.items():
            if not world.alive and number not in dead:
                await self._end(number, world)

    async def look(self, *, changed: bool) -> None:
        """The directive, and the journal and the objects where they may have changed."""
        wire = None
        if self._redis is not None:
            wire = await asyncio.to_thread(self._redis.get, directive_key(self.id))
            assert wire is None or isinstance(wire, bytes)
        if wire != self.bus or changed:
            await self.read_journal()
        if wire is not None and wire not in self.intended:
            self.violations.append(f"a directive was published without an earlier intent: {wire!r}")
        self.bus = wire
        if changed:
            await self._look_at_objects()
        if self.job_deleted and self.announced[-1].action == JournalAction.RUN_ENDED:
            self.end_anchored = await self._end_is_anchored(self.announced[-1].seq)

    async def _end_is_anchored(self, seq: int) -> bool:
        try:
            anchor = await self._stage.server.get(ANCHORS, self.id.namespace, anchor_name(self.id))
        except NotFound:
            return False
        _, stored = parse_journal_anchor(anchor)
        return stored.ended and stored.seq == seq

    async def read_journal(self) -> None:
        """The records that were written since."""
        for seq, body in await self._stage.journal.read(self.id, after=max(self.store.bodies, default=0)):
            self.store.bodies[seq] = body
            self.written(parse_record(body), record_hash(body))

    def written(self, record: JournalRecord, head: str) -> None:
        """A record was found in the journal, and perhaps an anchor of a later one besides."""
        if record.seq - 1 in self.anchored_heads:
            self.anchored = record.seq - 1
        super().written(record, head)

    async def reread_journal(self) -> None:
        """The journal as it is in the end: nothing in it was ever changed."""
        seen, self.store.bodies = self.store.bodies, dict(await self._stage.journal.read(self.id))
        changed = [seq for seq, body in seen.items() if self.store.bodies.get(seq) != body]
        if changed:
            self.violations.append(f"records {changed} were written over")

    # What a trainer stores --------------------------------------------------------------------------------------------

    def put(self, key: str, body: bytes) -> None:
        """Store an object in the checkpoint bucket."""
        self._outgoing.append(lambda: self._objects.put_object(Bucket=self._stage.bucket, Key=key, Body=body))

    def acked(
        self, world: PlayedWorld, state: AckState, *, order: tuple[int, int] | None = None, **fields: Any
    ) -> None:
        """An acknowledgement goes out, after the evidence that it names."""
        super().acked(world, state, order=order, **fields)
        ack = self.acks[-1]
        if state is AckState.DIAGNOSED and world.directive is not None and world.directive.diagnose is not None:
            target = ack.checkpoint
            spoiled = self.saved[target.key].spoiled if target is not None else world.spoiled
            body = encode_probe(self._probed(world.attempt, target, world.directive.diagnose, spoiled=spoiled))
            name = f"probe-{sha256_hex(body)[:12]}.json"
            key = evidence_object(ROOT, self.id, world.attempt, name)
            self.put(key, body)
            ack = msgspec.structs.replace(ack, evidence=EvidenceReference(key=key, sha256=sha256_hex(body)))
            self.acks[-1] = ack
        self._add(ack_stream(self.id), "*", {ACK_FIELD: encode(self._repeating(ack, world))})

    def _repeating(self, ack: Ack, world: PlayedWorld) -> Ack:
        own = [one.reference for one in self.saved.values() if one.attempt == world.attempt]
        return msgspec.structs.replace(ack, recent=tuple(own[-8:]))

    def published(self, attempt: int, step: int, line: Line) -> None:
        """A record goes out."""
        super().published(attempt, step, line)
        wire = encode_record(self.metrics[attempt, step])
        self._add(metrics_stream(self.id, attempt), f"{step}-0", {STREAM_FIELD: wire})

    def _add(self, stream: str, entry: str, fields: Mapping[bytes, bytes]) -> None:
        assert self._redis is not None
        redis, content = self._redis, dict(fields)
        self._outgoing.append(lambda: redis.xadd(stream, content, id=entry))  # pyright: ignore[reportArgumentType] redis-py's dict is invariant

    # What people do ---------------------------------------------------------------------------------------------------

    def ask(self, action: str, **changes: Any) -> None:
        """A person creates a RunRequest; an approval names the plan that is shown."""
        super().ask(action, **changes)
        request = self.requests[-1]
        spec: dict[str, Any] = {"job": self.id.name, "action": action, "reason": request.reason}
        if request.wishes.skip is not None:
            spec["args"] = {"skip": dict(zip(("first", "last"), request.wishes.skip, strict=True))}
        if request.plan_hash:
            spec["planHash"] = request.plan_hash
        body = run_request(self.id.namespace, f"{self.id.name}-{request.name}", **spec)
        self._deeds.append(lambda: self._stage.server.made(RUN_REQUESTS, body))

    def edit_job(self, spec: Mapping[str, Any]) -> None:
        """A person changes fields of the TrainingJob's spec."""

        server, space, name = self._stage.server, self.id.namespace, self.id.name

        async def edit() -> KubernetesObject:
            while True:
                version = (await server.get(TRAINING_JOBS, space, name))["metadata"]["resourceVersion"]
                with suppress(Conflict):  # the operator wrote its status in between
                    return await server.patch(TRAINING_JOBS.item(space, name), {"spec": spec}, version)

        self._deeds.append(edit)

    def delete_pod(self) -> None:
        """A person deletes the pod of the newest world; its kubelet tells the trainer at once."""
        self._delete(PODS, self._pods[self.world.number]["metadata"]["name"])

    def delete_policy(self) -> None:
        """A person deletes the run's policy."""
        self._delete(GUARD_POLICIES, self.id.name)

    def delete_job(self) -> None:
        """A person deletes the TrainingJob; the garbage collector ends its pods."""
        self.job_deleted = True
        self._delete(TRAINING_JOBS, self.id.name)
        self._collect_garbage()

    def _delete(self, resource: Resource, name: str) -> None:
        server, space = self._stage.server, self.id.namespace

        async def delete() -> None:
            found = await server.get(resource, space, name)
            await server.delete(resource.item(space, name), found["metadata"]["uid"])

        self._deeds.append(delete)

    # What a Job controller and a kubelet do ---------------------------------------------------------------------------

    def _collect_garbage(self) -> None:
        """The processes of a Job end with the TrainingJob that owns it."""
        for world in self.worlds.values():
            if world.alive:
                world.die(Reason.CRASHED)

    async def _look_at_objects(self) -> None:
        own = f"{JOB_UID_LABEL}={self.id.uid}"
        for job in await self._stage.server.list(JOBS, self.id.namespace, own):
            # A world has the number of its attempt, and an attempt that began in a world that was held made none.
            number = int(job["metadata"]["labels"][ATTEMPT_LABEL])
            if number not in self.worlds:
                await self._start(number, job)
        if self.job_deleted:
            self._collect_garbage()  # an operator that did not yet know may have started a world
        for number, world in self.worlds.items():
            if world.alive and not world.told:
                world.told = await self._told(number)

    async def _start(self, number: int, job: KubernetesObject) -> None:
        """The pod of a new Job, which finds all it needs, and speaks as the run's own Redis user."""
        if any(world.alive for world in self.worlds.values()):
            self.violations.append(f"world {number} was created while another one lives")
        server, space = self._stage.server, self.id.namespace
        await server.get(CONFIG_MAPS, space, config_map_name(self._job, number))
        await server.get(SERVICES, space, world_name(self.id.name, number))
        password = (await server.get(SECRETS, space, redis_secret_name(self._job)))["data"][PASSWORD_KEY]
        self._redis = self._stage.redis.client(redis_user(self.id), _decoded(password))
        labels = job["spec"]["template"]["metadata"]["labels"]
        index = {"batch.kubernetes.io/job-completion-index": "0"}
        metadata = {"name": f"{job['metadata']['name']}-0", "namespace": space, "labels": labels, "annotations": index}
        # Under a node's name a deleted pod stays until its kubelet says that it has ended.
        spec = {"containers": [{"name": "trainer", "image": "trainer"}], "nodeName": "n1", "restartPolicy": "Never"}
        await server.made(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self._pods[number] = await self._status(PODS, f"{world_name(self.id.name, number)}-0", {"phase": "Running"})
        self.worlds[number] = StoredWorld(self, number, number, Inbox(number))

    async def _told(self, number: int) -> bool:
        metadata = self._pods[number]["metadata"]
        pod = await self._stage.server.get(PODS, metadata["namespace"], metadata["name"])
        return "deletionTimestamp" in pod["metadata"]

    async def _end(self, number: int, world: PlayedWorld) -> None:
        """The processes of a world have ended, and left their message."""
        message = encode(world.message).decode() if world.message is not None else ""
        ended = {"terminated": {"exitCode": 1, "message": message}}
        about = {"name": "trainer", "image": "trainer", "imageID": "", "ready": False, "restartCount": 0}
        failed = {"phase": "Failed", "containerStatuses": [{**about, "state": ended}]}
        await self._status(PODS, self._pods[number]["metadata"]["name"], failed)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{"type": kind, "status": "True", "reason": "Ended"} for kind in ("FailureTarget", "Failed")]
        over = {"startTime": now, "failed": 1, "conditions": conditions}
        await self._status(JOBS, world_name(self.id.name, number), over)

    async def _status(self, resource: Resource, name: str, status: Mapping[str, Any]) -> KubernetesObject:
        server, space = self._stage.server, self.id.namespace
        while True:
            version = (await server.get(resource, space, name))["metadata"]["resourceVersion"]
            with suppress(Conflict):  # somebody else wrote in between, or an earlier try of this was not answered
                return await server.patch(resource.item(space, name, "status"), {"status": status}, version)


def essence(run: ScriptedRun) -> list[tuple[object, ...]]:
    """`decisions`, but for what differs between a real run and a simulated one: the names of what was stored."""
    incidents = (*run.state.closed, *((run.state.incident,) if run.state.incident else ()))
    return [
        (
            one.latch.attempt,
            one.latch.rule,
            one.latch.first_bad_step,
            tuple(plan.target.step for plan in one.plans),
            one.extent,
            one.finding,
            one.outcome,
        )
        for one in incidents
    ]


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
