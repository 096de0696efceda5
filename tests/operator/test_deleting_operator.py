"""A real operator deletes, of a run that trains, what nothing needs: API server, Redis and S3 are real, pods played."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from judged_runs import healthy, losses
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, training_job
from redis_fixture import RedisServer
from run_states import ack, run_state
from saving_trainer import OBJECTS, Trainer
from trimtab_contract.directives import ACK_FIELD, Ack, AckState, CheckpointReference, Directive, encode
from trimtab_contract.journal import JournalRecord, Phase, parse_record
from trimtab_contract.keys import RunId, ack_stream, checkpoints_prefix, metrics_stream
from trimtab_contract.metrics import STREAM_FIELD, encode_record
from trimtab_operator.adapters.ports import Lease
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import CheckpointState, JournalAction, Source
from trimtab_operator.supervisor import Supervisor

STEPS, EVERY = 240, 10
WANTED = 3


class ShortLease:
    """A Lease that a former holder cannot have had for long."""

    duration_seconds = 0.2

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    def valid(self) -> bool:
        return self._lease.valid()


@pytest.mark.parametrize("continued", [False, True])
async def test_what_nothing_needs_goes_and_all_else_stays_whole(
    api: ControlPlane, ports: Ports, redis_server: RedisServer, object_store: ObjectStoreServer, *, continued: bool
) -> None:
    (namespace,) = ports.namespaces
    bucket = object_store.new_bucket("training")
    body = training_job("demo", namespace, guard={"policies": [{"name": "demo"}]})
    body["spec"]["checkpoint"] |= {"uri": f"s3://{bucket}/team", "endpoint": object_store.endpoint}
    metadata = {"name": "s3", "namespace": namespace}
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    policy = guard_policy("demo", namespace, remediation={"margin": 50})
    api.apply(body, policy, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret})
    stored = await ports.cluster.training_job(namespace, "demo")
    run = RunId(namespace, "demo", stored["metadata"]["uid"])
    trainer = Trainer(object_store, bucket)
    trainer.run = run
    saved = [trainer.save(step) for step in range(0, STEPS + 1, EVERY)]
    if continued:
        source = Source(run=str(run), checkpoint=saved[1], state=CheckpointState.VERIFIED, why="w")
        ports.oversight.known(RunId(namespace, "fork", "uid"), run_state().continuing(source))
    supervisor = Supervisor(replace(ports, lease=ShortLease(ports.lease)))
    supervisor.see(stored)
    resync = asyncio.create_task(supervisor.resync())
    try:
        await _train(ports, redis_server, run, saved)
        records = await _until_deleted(ports, run)
    finally:
        resync.cancel()
        await asyncio.gather(resync, return_exceptions=True)
        await supervisor.close()
    deletions = [one for one in records if one.action == JournalAction.DELETING]
    announced = {(one.after or {})["checkpoint"]["key"] for one in deletions if one.phase is Phase.INTENT}
    deleted = {(one.after or {})["key"] for one in deletions if one.phase is Phase.RESULT}
    assert all(one.outcome == "Deleted" for one in deletions if one.phase is Phase.RESULT)
    newest_first = sorted(saved, key=lambda one: -one.step)
    assert not announced & {one.key for one in newest_first[:6]}, "a first plan may go back to these"
    assert saved[0].key not in announced, "step 0 stays until two are certified"
    assert (saved[1].key in announced) is not continued
    listed = object_store.client().list_objects_v2(Bucket=bucket, Prefix=checkpoints_prefix("team", run))
    there = [item["Key"] for item in listed["Contents"]]
    for one in saved:
        left = sum(key.startswith(one.key.removesuffix("manifest.json")) for key in there)
        assert left == (0 if one.key in deleted else left if one.key in announced else len(OBJECTS) + 1)


async def _train(ports: Ports, redis_server: RedisServer, run: RunId, saved: list[CheckpointReference]) -> None:
    """A world that has trained so far, and said what it saved on the way."""
    directive: Directive | None = None
    while directive is None:
        directive = await ports.bus.directive(run)
        await asyncio.sleep(0.05)

    def said(state: AckState, **fields: Any) -> Ack:
        return ack(state, epoch=directive.epoch, seq=directive.seq, step=STEPS, **fields)

    with redis_server.client() as client:
        for one in losses(healthy(STEPS)):
            client.xadd(metrics_stream(run, 1), {STREAM_FIELD: encode_record(one)}, id=f"{one.step}-0")
        client.xadd(ack_stream(run), {ACK_FIELD: encode(said(AckState.RUNNING))})
        for reference in saved:
            client.xadd(ack_stream(run), {ACK_FIELD: encode(said(AckState.SAVED, checkpoint=reference))})


async def _until_deleted(ports: Ports, run: RunId) -> list[JournalRecord]:
    while True:
        records = [parse_record(body) for _, body in await ports.journal.read(run)]
        results = [one for one in records if one.action == JournalAction.DELETING and one.phase is Phase.RESULT]
        if len(results) >= WANTED:
            return records
        await asyncio.sleep(0.1)
