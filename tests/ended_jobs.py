"""What a Job controller and a kubelet do, where there are none: a pod leaves its words, and its Job is complete."""

from datetime import UTC, datetime
from typing import Any

from trimtab_operator.adapters.api_server import ApiServer, Resource

JOBS, PODS = Resource("batch/v1", "jobs"), Resource("v1", "pods")


async def end_job(server: ApiServer, namespace: str, name: str, message: str) -> None:
    """Its one pod, on node-2, succeeds with this termination message."""
    job = await server.get(JOBS, namespace, name)
    pod = await make_pod(server, job, "node-2")
    about = {"name": "verifier", "image": "trainer", "imageID": "", "ready": False, "restartCount": 0}
    state = {"terminated": {"exitCode": 0, "message": message}}
    await set_status(server, PODS, pod, {"phase": "Succeeded", "containerStatuses": [{**about, "state": state}]})
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{"type": kind, "status": "True", "reason": "Ended"} for kind in ("SuccessCriteriaMet", "Complete")]
    ended = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
    await set_status(server, JOBS, job, ended)


async def make_pod(server: ApiServer, job: dict[str, Any], node: str = "") -> dict[str, Any]:
    """The Job's pod, which waits for a node unless it has one."""
    template, named = job["spec"]["template"], job["metadata"]
    metadata = {
        "name": f"{named['name']}-x",
        "namespace": named["namespace"],
        "labels": template["metadata"]["labels"],
    }
    spec = {**template["spec"], **({"nodeName": node} if node else {})}
    return await server.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


async def set_status(server: ApiServer, resource: Resource, body: dict[str, Any], status: dict[str, Any]) -> None:
    """What the cluster's own components would write of an object."""
    metadata = body["metadata"]
    path = resource.item(metadata["namespace"], metadata["name"], "status")
    await server.patch(path, {"status": status}, metadata["resourceVersion"])
