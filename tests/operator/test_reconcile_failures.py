"""What keeps a run from going on is said on its TrainingJob until it is mended: API server, Redis and S3 are real."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, run_request, training_job
from prometheus_client import CollectorRegistry, generate_latest
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.ports import Appended, JournalStore
from trimtab_operator.errors import StoreUnavailable
from trimtab_operator.oversight import Oversight
from trimtab_operator.reconciler import WORD_SECONDS, Ports, RunReconciler
from trimtab_operator.run_state import RequestState
from trimtab_operator.supervisor import Supervisor
from trimtab_operator.telemetry import Telemetry

Status = Mapping[str, Any]


async def applied(api: ControlPlane, ports: Ports, store: ObjectStoreServer, **spec: Any) -> RunId:
    """A job that could start but for what `spec` says."""
    (ours,) = ports.namespaces
    body = training_job("demo", ours, guard={"policies": [{"name": "demo"}]}, **spec)
    body["spec"]["checkpoint"] |= {"uri": f"s3://{store.new_bucket('training')}/team", "endpoint": store.endpoint}
    keys = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    metadata = {"name": "s3", "namespace": ours}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys}
    api.apply(body, guard_policy("demo", ours), secret)
    return RunId(ours, "demo", (await ports.cluster.training_job(ours, "demo"))["metadata"]["uid"])


@asynccontextmanager
async def operator(ports: Ports) -> AsyncIterator[None]:
    supervisor = Supervisor(ports)
    resync = asyncio.create_task(supervisor.resync())
    try:
        yield
    finally:
        resync.cancel()
        await asyncio.gather(resync, return_exceptions=True)
        await supervisor.close()


def condition(status: Status, kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), {})


async def shown(ports: Ports, run: RunId, wanted: Callable[[Status], bool]) -> Status:
    """The job's status, once it is as wanted."""
    while True:
        status = (await ports.cluster.training_job(run.namespace, run.name)).get("status") or {}
        if wanted(status):
            return status
        await asyncio.sleep(0.05)


def is_told(status: Status) -> bool:
    return condition(status, "Ready").get("reason") == "ReconcileFailed"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a volume that is not there": (
        {"podTemplate": {"volumeMounts": [{"name": "corpus", "mountPath": "/data"}]}},
        {"podTemplate": {"volumeMounts": []}},
        'volumeMounts[3].name: Not found: "corpus"',
    ),
    "memory in a unit that is none": (
        {"trainer": {"resourcesPerNode": {"limits": {"memory": "16Gb"}}}},
        {"trainer": {"resourcesPerNode": {"limits": {"memory": "16Gi"}}}},
        "quantities must match the regular expression",
    ),
}


@pytest.mark.parametrize(("wrong", "mended", "why"), REFUSED.values(), ids=REFUSED)
async def test_a_world_that_the_api_server_refuses_is_told_and_made_when_the_job_is_corrected(
    api: ControlPlane,
    ports: Ports,
    object_store: ObjectStoreServer,
    wrong: dict[str, Any],
    mended: dict[str, Any],
    why: str,
) -> None:
    run, registry = await applied(api, ports, object_store, **wrong), CollectorRegistry()
    gauge = f'trimtab_job_reconcile_failed{{job_name="demo",job_namespace="{run.namespace}"}}'
    async with operator(replace(ports, oversight=Oversight(telemetry=Telemetry(registry)))):
        status = await shown(ports, run, is_told)
        assert f"{gauge} 1.0" in generate_latest(registry).decode()
        assert status["message"].startswith("no world is started, which is tried again and again: ")
        assert why in status["message"]
        assert status["phase"] == "Pending"
        running = condition(status, "Running")
        assert (running["status"], running["reason"]) == ("False", "ReconcileFailed")
        reasons = api.kubectl("get", "events", f"-n={run.namespace}", "-o=jsonpath={.items[*].reason}")
        assert "ReconcileFailed" in reasons.split()
        patch = json.dumps({"spec": mended})
        api.kubectl("patch", "tj", "demo", f"-n={run.namespace}", "--type=merge", f"-p={patch}")
        status = await shown(ports, run, lambda status: condition(status, "Ready").get("status") == "True")
        while f"{gauge} 0.0" not in generate_latest(registry).decode():
            await asyncio.sleep(0.05)
    assert await ports.cluster.get_job(run.namespace, "demo-1") is not None
    assert status["message"] == "0 of 1 pods are made"


async def test_a_world_that_was_refused_trains_by_the_corrected_configuration(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer
) -> None:
    run = await applied(api, ports, object_store, trainer={"config": {"steps": 100}, **memory("16Gb")})
    async with operator(ports):
        await shown(ports, run, is_told)
        patch = json.dumps({"spec": {"trainer": {"config": {"steps": 7}, **memory("16Gi")}}})
        api.kubectl("patch", "tj", "demo", f"-n={run.namespace}", "--type=merge", f"-p={patch}")
        await shown(ports, run, lambda status: condition(status, "Ready").get("status") == "True")
    job = await ports.cluster.get_job(run.namespace, "demo-1")
    assert job is not None
    (name,) = [one["configMap"]["name"] for one in job["spec"]["template"]["spec"]["volumes"] if "configMap" in one]
    config = api.kubectl("get", "configmap", name, f"-n={run.namespace}", r"-o=jsonpath={.data.config\.yaml}")
    assert "steps: 7" in config.splitlines()


def memory(amount: str) -> dict[str, Any]:
    return {"resourcesPerNode": {"limits": {"memory": amount}}}


class Away:
    """An audit store that takes nothing."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        raise StoreUnavailable("the audit store does not answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_what_lasts_is_told_though_it_may_go_by_itself(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer
) -> None:
    run = await applied(api, ports, object_store)
    async with operator(replace(ports, journal=Away(ports.journal))):  # pyright: ignore[reportArgumentType] it passes calls on
        status = await shown(ports, run, is_told)
    told = "nothing is decided for this run, which is tried again and again: the audit store does not answer"
    assert status["message"] == told
    async with operator(ports):
        await shown(ports, run, lambda status: condition(status, "Ready").get("status") == "True")


async def test_errors_that_differ_from_try_to_try_are_told_once_a_minute(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await applied(api, ports, object_store)
    for seconds, last in ((WORD_SECONDS, "GetObject"), (0.0, "PutObject")):
        monkeypatch.setattr("trimtab_operator.reconciler.WORD_SECONDS", seconds)
        reconciler = RunReconciler(run, ports)
        await reconciler.cannot_go_on("GetObject did not answer")
        await reconciler.cannot_go_on("PutObject did not answer")
        assert (await shown(ports, run, is_told))["message"].endswith(f"{last} did not answer")


async def test_more_requests_than_a_reconcile_has_commands_for_itself_are_answered_in_one(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab_operator.reconciler.MAX_COMMANDS", 10)
    run = await applied(api, ports, object_store)
    many = [run_request(run.namespace, f"r-{number}", job="demo", action="Hold") for number in range(30)]
    api.apply(*many)
    reconciler = RunReconciler(run, ports)
    await reconciler.open()
    await reconciler.turn()
    answers = reconciler.state.requests
    assert len(answers) == len(many)
    assert {one.state for one in answers} == {RequestState.REFUSED}
