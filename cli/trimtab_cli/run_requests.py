"""A person's request: made in their own name, and followed until the operator has answered it."""

import time
from typing import Any

from trimtab_operator.resources import API_VERSION
from trimtab_operator.run_state import RequestAction

from trimtab_cli.access import Access
from trimtab_cli.cluster_choice import KubernetesObject
from trimtab_cli.errors import Unreachable
from trimtab_cli.job_view import section

POLL_SECONDS = 0.5


def make_request(access: Access, job: str, action: RequestAction, reason: str) -> KubernetesObject:
    """Create a RunRequest for a TrainingJob, which it goes with when that is deleted.

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
        "spec": {"job": job, "action": action.value, "reason": reason, "by": access.cluster.user()},
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
        **{name: request["spec"].get(name) for name in ("job", "action", "by", "reason")},
        **{name: status.get(name) for name in ("state", "message", "answeredTime", "doneTime")},
    }
