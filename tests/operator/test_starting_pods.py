"""Pods that cannot start, of which no event tells: said as soon as the kubelet says so, once, on a real API server."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, training_job
from trimtab_operator.reconciler import Ports
from trimtab_operator.supervisor import Supervisor

PATIENCE_SECONDS = 60.0
NEVER = 100_000.0
"""Seconds until the resync: longer than any test."""


async def test_an_image_that_cannot_be_pulled_is_told_without_an_event_or_a_resync(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer
) -> None:
    (ours,) = ports.namespaces
    job = training_job("demo", ours, guard={"policies": [{"name": "demo"}]}, trainer={"numNodes": 1})
    place = {"uri": f"s3://{object_store.new_bucket('training')}/prefix", "endpoint": object_store.endpoint}
    job["spec"]["checkpoint"] |= place
    keys = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": ours}, "stringData": keys}
    api.apply(job, guard_policy("demo", ours), secret)
    supervisor = Supervisor(replace(ports, resync_seconds=NEVER))
    supervisor.see(await ports.cluster.training_job(ours, "demo"))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (world := await ports.cluster.get_job(ours, "demo-1")) is None:
                await asyncio.sleep(0.1)
            _start_pod(api, ours, world["spec"]["template"]["metadata"]["labels"])
            _waits(api, ours, "ErrImagePull")
            await _message(ports, ours, "ErrImagePull")
            _waits(api, ours, "ImagePullBackOff")
            supervisor.wake(ours)
            status = await _message(ports, ours, "ImagePullBackOff")
    finally:
        await supervisor.close()
    running = next(one for one in status["conditions"] if one["type"] == "Running")
    assert (status["phase"], running["reason"]) == ("Pending", "ImagePullFailed")
    events = json.loads(api.kubectl("get", "events", f"--namespace={ours}", "-o=json"))["items"]
    told = [(one["type"], one["count"]) for one in events if one["reason"] == "ImagePullFailed"]
    assert told == [("Warning", 1)]


async def _message(ports: Ports, namespace: str, words: str) -> dict[str, Any]:
    """Wait until the job's message says this; its status then."""
    while True:
        status: dict[str, Any] = (await ports.cluster.training_job(namespace, "demo")).get("status") or {}
        if words in (status.get("message") or ""):
            return status
        await asyncio.sleep(0.1)


def _start_pod(api: ControlPlane, namespace: str, labels: dict[str, str]) -> None:
    metadata = {"name": "demo-1-0", "namespace": namespace, "labels": labels}
    spec = {"containers": [{"name": "trainer", "image": "missing"}], "restartPolicy": "Never"}
    api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _waits(api: ControlPlane, namespace: str, reason: str) -> None:
    """What a kubelet would write."""
    waiting = {"reason": reason, "message": f"{reason}: no such image"}
    container = {"name": "trainer", "image": "missing", "imageID": "", "ready": False, "restartCount": 0}
    patch = {"status": {"phase": "Pending", "containerStatuses": [{**container, "state": {"waiting": waiting}}]}}
    options = (f"--namespace={namespace}", "--subresource=status", "--type=merge", f"-p={json.dumps(patch)}")
    api.kubectl("patch", "pod", "demo-1-0", *options)
