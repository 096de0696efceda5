"""A person's request: made in their own name, and followed until the operator has answered it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab_operator.resources import API_VERSION
from trimtab_operator.run_state import RequestAction, RunPhase

from trimtab_cli.access import Access
from trimtab_cli.cluster_choice import KubernetesObject
from trimtab_cli.errors import NotFound, Unreachable
from trimtab_cli.job_view import Body, items, section

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class WaitingPlan:
    """The plan of a job that waits for approval, as its GuardIncident shows it."""

    plan: Body
    hash: str
    message: str


def waiting_plan(access: Access, job: str) -> WaitingPlan:
    """The plan that waits; raises NotFound where none does, or without the job."""
    status = section(access.job(job), "status")
    if status.get("phase") != RunPhase.AWAITING_APPROVAL:
        raise NotFound(f"No plan of {job} waits for approval: it is {status.get('phase') or RunPhase.PENDING}.")
    incident = access.cluster.resource("guardincidents", str(status.get("incident")))
    shown = section(incident, "status")
    hashed = str(section(shown, "approval").get("planHash") or "")
    plan = next((one for one in items(incident["spec"], "plans") if one.get("hash") == hashed), None)
    if plan is None:
        raise NotFound(f"The plan of {job} is not shown yet: try again in a moment.")
    return WaitingPlan(plan, hashed, str(shown.get("message") or ""))


def make_request(access: Access, job: str, action: RequestAction, spec: Mapping[str, Any]) -> KubernetesObject:
    """Create a RunRequest for a TrainingJob, which it goes with when that is deleted.

    `spec` has the reason, and what else the action takes.

    Raises NotFound without the job, NotAllowed without the right to ask, UsageError when the reason cannot be stored.
    """
    owner = access.job(job)["metadata"]
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "RunRequest",
        "metadata": {
            "generateName": f"{job}-{action.lower()}-",
            "namespace": access.cluster.namespace,
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": job, "uid": owner["uid"]},
            ],
        },
        "spec": {"job": job, "action": action.value, "by": access.cluster.user(), **spec},
    }
    return access.cluster.create_resource("runrequests", body)


def wait_for_answer(access: Access, name: str, seconds: float) -> KubernetesObject:
    """The RunRequest once it is answered, or as it is when the time is up; raises NotFound when it goes."""
    end = time.monotonic() + seconds
    while True:
        try:
            request = access.cluster.resource("runrequests", name)
            if section(request, "status").get("state"):
                return request
        except Unreachable:
            if time.monotonic() >= end:
                raise
        else:
            if time.monotonic() >= end:
                return request
        time.sleep(POLL_SECONDS)


def request_summary(request: KubernetesObject) -> dict[str, Any]:
    """What `-o json` says of a request."""
    status = section(request, "status")
    return {
        "name": request["metadata"]["name"],
        **{name: request["spec"].get(name) for name in ("job", "action", "args", "planHash", "by", "reason")},
        **{name: status.get(name) for name in ("state", "message", "answeredTime", "doneTime")},
    }
