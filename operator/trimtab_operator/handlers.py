"""Kopf's door: events wake reconcilers, and do nothing else. No handler here adds a finalizer."""

from typing import Any

import kopf

from trimtab_operator.resources import GROUP, VERSION
from trimtab_operator.supervisor import Supervisor
from trimtab_operator.workload import JOB_LABEL


def register(registry: kopf.OperatorRegistry, supervisor: Supervisor) -> None:
    """Register every handler; the events' content is only a hint of what to look at."""

    @kopf.on.event(GROUP, VERSION, "trainingjobs", registry=registry)
    async def training_job(body: kopf.Body, **_: Any) -> None:
        supervisor.see(body)

    @kopf.on.event(GROUP, VERSION, "clusterguardpolicies", registry=registry)
    @kopf.on.event(GROUP, VERSION, "guardpolicies", registry=registry)
    async def guard_policy(body: kopf.Body, event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] == "DELETED":
            supervisor.wake(body["metadata"].get("namespace"))
        else:
            supervisor.see_policy(body)

    @kopf.on.event("batch", "v1", "jobs", labels={JOB_LABEL: kopf.PRESENT}, registry=registry)
    async def job(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        supervisor.wake(namespace or "", labels[JOB_LABEL])

    @kopf.on.event(GROUP, VERSION, "runrequests", registry=registry)
    async def run_request(namespace: str | None, spec: kopf.Spec, **_: Any) -> None:
        supervisor.wake(namespace or "", spec.get("job"))

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.networking.request_timeout = 10
        settings.networking.connect_timeout = 5
        settings.networking.error_backoffs = [0.2, 0.5, 1, 2, 5]
        settings.watching.inactivity_timeout = 70

    _ = (training_job, guard_policy, job, run_request, login, configure)
