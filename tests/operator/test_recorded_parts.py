"""A real operator steers a real world through an incident, and what it decided is decided again from its recording.

API server, Redis and S3 are real, and so are the two trainer processes and the damage in their data. There is no node:
the test does what a kubelet and a Job controller would, it starts the processes of the one world and says so.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from control_plane_fixture import ControlPlane
from incident_recorder import DecisionTap, Played, record
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, training_job
from recording import Header, read_recording, write_recording
from recordings import FOLDER
from redecision import redecide, table
from redis_fixture import RedisServer
from trail_recording import AUDIT, trail_recording
from trainer_world import ROOT, Run
from trimtab_cli.trail import named_evidence
from trimtab_cli.trail_file import TrailFile, pack, unpack
from trimtab_contract.directives import ACK_FIELD, Ack, decode
from trimtab_contract.journal import parse_record
from trimtab_contract.keys import RunId, ack_stream
from trimtab_operator import reconciler
from trimtab_operator.commands import DECISION_VERSION
from trimtab_operator.guards import load_texts
from trimtab_operator.journal_fold import fold_all
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import RunPhase
from trimtab_operator.supervisor import Supervisor
from trimtab_operator.workload import PASSWORD_KEY, TrainingJobView, redis_secret_name
from trimtab_policies.policy import AcceptedPolicy

KEEP = "TRIMTAB_KEEP_RECORDING"
"""Where it is set, the recording becomes the one in tests/recorded."""
NAME = "real-parts"
DECIDED_FROM_THE_TRAIL = {"IncidentOpened", "TargetSelected", "Diagnosed", "ExtentFound"}
STEPS, DAMAGED = 96, (58, 62)
PATIENCE_SECONDS = 240.0


@dataclass
class SteeredRun(Run):
    """A run whose directives and Redis user come from the operator."""

    password: str = ""

    def make_user(self) -> None:
        """The operator makes it."""

    def environment(self, world: int, node: int) -> dict[str, str]:
        """The environment of one pod, with the operator's password."""
        return super().environment(world, node) | {"TRIMTAB_REDIS_PASSWORD": self.password}

    def damage(self, first: int, last: int) -> None:
        """Overwrite windows (inclusive) of the data with noise."""
        path = Path(self.config["data"]["path"])
        size = self.config["model"]["sequence"] * self.config["globalBatch"]
        data = bytearray(path.read_bytes())
        data[first * size : (last + 1) * size] = random.Random(1).randbytes((last + 1 - first) * size)
        path.write_bytes(data)


@pytest.fixture
def run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[SteeredRun]:
    made = SteeredRun(
        redis_server, object_store, tmp_path, object_store.new_bucket(), {"steps": STEPS}, checkpoint_every=10
    )
    made.damage(*DAMAGED)
    yield made
    for log in sorted(tmp_path.glob("log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def objects(namespace: str, run: SteeredRun) -> list[dict[str, Any]]:
    """The job, its policy and its store's keys."""
    keys = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    place = {"uri": f"s3://{run.bucket}/{ROOT}", "endpoint": run.store.endpoint}
    spike = {"baseline": {"statistic": "Mean", "records": 40, "minRecords": 20}, "sigma": 4}
    policy = guard_policy("demo", namespace)
    policy["spec"] = {
        "rules": [
            {"name": "spike", "metric": "loss", "spike": spike, "forRecords": 3, "afterSteps": 40, "action": "Rollback"}
        ],
        "remediation": {
            "margin": 5,
            "skipBatches": {"before": 1, "after": 2, "probe": 16},
            "probationSteps": 10,
        },
    }
    job = training_job(
        "demo",
        namespace,
        guard={"policies": [{"name": "demo"}]},
        trainer={"numNodes": 2},
        checkpoint={**place, "everySteps": 10, "certifySteps": 20},
    )
    job["spec"]["trainer"]["config"] = run.config
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": namespace}}
    return [{**secret, "stringData": keys}, policy, job]


def start_pods(api: ControlPlane, world: dict[str, Any]) -> None:
    """What the Job controller and the kubelet would write of the first world."""
    metadata, template = world["metadata"], world["spec"]["template"]["metadata"]
    for node in range(2):
        name = f"{metadata['name']}-{node}"
        index = {"batch.kubernetes.io/job-completion-index": str(node)}
        labels = {**template["labels"], **index}
        pod = {"name": name, "namespace": metadata["namespace"], "labels": labels, "annotations": index}
        spec = {"containers": [{"name": "trainer", "image": "trainer"}], "restartPolicy": "Never"}
        api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec})
        options = (f"--namespace={metadata['namespace']}", "--subresource=status", "--type=merge")
        api.kubectl("patch", "pod", name, *options, f"-p={json.dumps({'status': {'phase': 'Running'}})}")


async def test_what_a_real_operator_decides_is_decided_again_from_its_recording(
    api: ControlPlane, ports: Ports, run: SteeredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours,) = ports.namespaces
    api.apply(*objects(ours, run))
    body = await ports.cluster.training_job(ours, "demo")
    job, tap = TrainingJobView.of(body), DecisionTap()
    run.id = job.run
    monkeypatch.setattr(reconciler, "advance", tap)
    supervisor = Supervisor(ports)
    supervisor.see(body)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (world := await ports.cluster.get_job(ours, "demo-1")) is None:
                await asyncio.sleep(0.05)
            run.password = (await ports.cluster.secret(ours, redis_secret_name(job)))[PASSWORD_KEY]
            with run.world():
                start_pods(api, cast("dict[str, Any]", world))
                await completed(ports, job.run)
    finally:
        await supervisor.close()

    path = tmp_path / f"{NAME}.jsonl"
    write_recording(path, record(header(job.run), tap, await played(ports, run)))
    again = redecide(read_recording(path))
    assert (again.differences, {one.what for one in again.given}) == ((), {"Takeover"})
    assert min(again.records, again.effects, again.rests, again.judgements) > 0
    told = [one.action for one in map(parse_record, dict(await ports.journal.read(job.run)).values())]
    assert {"IncidentOpened", "Held", "TargetSelected", "Restored", "ExtentFound", "IncidentClosed"} <= set(told)
    packed = tmp_path / "trail.zip"
    pack(packed, await exported(ports, run))
    trail = trail_recording(f"{NAME}-trail", "the same run, as far as its exported trail tells", unpack(packed))
    again = redecide(trail)
    assert not again.differences, table((NAME, one) for one in again.differences)
    assert DECIDED_FROM_THE_TRAIL & set(told) <= set(told) - {one.what for one in again.given}
    if os.environ.get(KEEP):
        (FOLDER / path.name).write_bytes(path.read_bytes())
        write_recording(FOLDER / f"{NAME}-trail.jsonl", trail)


async def completed(ports: Ports, run: RunId) -> None:
    """Wait for the end of the run; fails when it takes another one than hoped for."""
    while True:
        bodies = await ports.journal.read(run)
        state = fold_all(parse_record(stored) for _, stored in bodies)
        assert state.phase not in {RunPhase.NEEDS_HUMAN, RunPhase.FAILED}, parse_record(bodies[-1][1])
        if state.phase is RunPhase.COMPLETED and state.pending is None:
            return
        await asyncio.sleep(0.2)


def header(run: RunId) -> Header:
    return Header(
        name=NAME,
        title="a loss spike in real data, seen, rolled back and skipped by a real operator and two trainer processes",
        source="a real operator, trainer processes, API server, Redis and S3",
        run=str(run),
        job=run.name,
        decision_version=DECISION_VERSION,
    )


async def exported(ports: Ports, run: SteeredRun) -> TrailFile:
    """The trail with what it names in the audit bucket."""
    bodies = await ports.journal.read(run.id)
    named = named_evidence(parse_record(body) for _, body in bodies)
    keys = [one.evidence.key for one in named if one.evidence.store == AUDIT]
    objects = {(AUDIT, key): await ports.journal.get_object(key) for key in keys}
    return TrailFile(run.id, bodies, objects, checkpoints=False)


async def played(ports: Ports, run: SteeredRun) -> Played:
    """What the run left in Redis and both buckets."""
    bodies = dict(await ports.journal.read(run.id))
    state = fold_all(map(parse_record, bodies.values()))
    texts: dict[str, AcceptedPolicy] = {}
    await load_texts(ports.journal, state, texts)
    with run.redis.client() as client:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(ack_stream(run.id)))
    metrics = {
        (attempt.number, step): one
        for attempt in state.attempts
        for step, one in {**run.archived(attempt.number), **run.records(attempt.number)}.items()
    }
    acks = tuple((entry.decode(), decode(Ack, fields[ACK_FIELD])) for entry, fields in entries)
    return Played(bodies, acks, metrics, tuple(texts.values()))
