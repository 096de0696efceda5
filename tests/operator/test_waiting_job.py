"""A real operator on a real API server: a job says what it waits for, one thing after another, and then starts."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_policy, training_job
from redis_fixture import RedisServer
from saving_trainer import Trainer
from server_process import free_ports


@pytest.fixture
def namespace(
    api: ControlPlane, redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> Iterator[str]:
    """A namespace that an operator process looks after."""
    name = api.create_namespace("waiting")
    (port,) = free_ports(1)
    settings = {
        "redis_url": f"redis://{redis_server.host}:{redis_server.port}",
        "redis_username": "admin",
        "redis_password": redis_server.admin_password,
        "audit_bucket": object_store.new_bucket("audit"),
        "audit_endpoint": object_store.endpoint,
        "audit_access_key_id": ADMIN.access_key,
        "audit_secret_access_key": ADMIN.secret_key,
        "namespace": name,
        "pod_name": "trimtab-0",
        "pod_uid": "u",
        "image": "operator",
        "trainer_image": "trainer",
        "watch_namespaces": name,
        "lease_seconds": "15",
        "resync_seconds": "1",
        "health_port": str(port),
    }
    environment = {f"TRIMTAB_{field.upper()}": value for field, value in settings.items()}
    with (tmp_path / "operator.log").open("wb") as log:
        operator = subprocess.Popen(
            [sys.executable, "-m", "trimtab_operator"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(sys.path),
                "KUBECONFIG": str(api.kubeconfig),
                **environment,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield name
    operator.terminate()
    operator.wait(timeout=60)


def test_a_job_names_each_thing_it_lacks_and_starts_when_the_last_one_is_there(
    api: ControlPlane, namespace: str, object_store: ObjectStoreServer
) -> None:
    bucket, (closed,) = object_store.new_bucket("training"), free_ports(1)
    job = training_job("demo", namespace, trainer={"numNodes": 1}, guard={"policies": [{"name": "demo"}]})
    checkpoint = job["spec"]["checkpoint"]
    checkpoint |= {"uri": "s3://nowhere/prefix", "endpoint": f"http://127.0.0.1:{closed}"}
    api.apply(job)
    _waits(api, namespace, "spec.checkpoint.credentialsSecretRef: Secret s3 .* does not exist", "SecretMissing")

    api.apply(_secret(namespace, AWS_ACCESS_KEY_ID=ADMIN.access_key))
    _waits(api, namespace, "Secret s3 .* lacks AWS_SECRET_ACCESS_KEY", "SecretKeyMissing")

    good = _secret(namespace, AWS_ACCESS_KEY_ID=ADMIN.access_key, AWS_SECRET_ACCESS_KEY=ADMIN.secret_key)
    api.apply(good)
    _waits(api, namespace, f"spec.checkpoint.endpoint: .*127.0.0.1:{closed} does not answer", "StoreUnavailable")

    checkpoint["endpoint"] = object_store.endpoint
    api.apply(job)
    _waits(api, namespace, "spec.checkpoint.uri: bucket 'nowhere' does not exist", "StoreRefused")

    checkpoint["uri"] = f"s3://{bucket}/team"
    api.apply(job, _secret(namespace, AWS_ACCESS_KEY_ID=ADMIN.access_key, AWS_SECRET_ACCESS_KEY="mistyped"))
    _waits(api, namespace, "spec.checkpoint.credentialsSecretRef: the secret key is wrong", "StoreRefused")

    api.apply(good)
    _waits(api, namespace, f"GuardPolicy demo does not exist in namespace {namespace}", "PolicyMissing")

    policy = guard_policy("demo", namespace, remediation={"margin": 10})
    api.apply(policy)
    _waits(api, namespace, "GuardPolicy demo: spec.remediation.margin is 10 .*replicaCheckEvery", "PolicyUnsatisfiable")
    assert not api.kubectl("get", "jobs", f"--namespace={namespace}", "-o=name").strip()

    older = Trainer(object_store, bucket)
    policy["spec"]["remediation"]["margin"] = 50
    job["spec"]["resumeFrom"] = source = {"run": str(older.run), "step": 10}
    # In this order: the policy is the last thing it lacks, and without a source it would start.
    api.apply(job, policy)
    _waits(api, namespace, "spec.resumeFrom.manifestSHA256: required, .* no journal of run lab/job/", "SourceRefused")

    source["manifestSHA256"] = "0" * 64
    api.apply(job)
    _waits(api, namespace, "spec.resumeFrom.step: there is no checkpoint of step 10 of run lab/job/", "SourceRefused")
    assert not api.kubectl("get", "jobs", f"--namespace={namespace}", "-o=name").strip()

    source["manifestSHA256"] = older.save(10).sha256
    api.apply(job)
    _until(lambda: api.kubectl("get", "jobs", f"--namespace={namespace}", "-o=name").strip() == "job.batch/demo-1")
    made = api.kubectl("get", "job", "demo-1", f"--namespace={namespace}", "-o=json")
    (container,) = json.loads(made)["spec"]["template"]["spec"]["containers"]
    assert {"name": "TRIMTAB_RESUME_FROM", "value": str(older.run)} in container["env"]


def _secret(namespace: str, **values: str) -> dict[str, Any]:
    metadata = {"name": "s3", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def _waits(api: ControlPlane, namespace: str, pattern: str, reason: str) -> None:
    """The job is Pending, its message and its condition say why, and so does `kubectl describe`."""

    def said() -> bool:
        job = json.loads(api.kubectl("get", "trainingjob", "demo", f"--namespace={namespace}", "-o=json"))
        status: dict[str, Any] = job.get("status") or {}
        ready = [one for one in status.get("conditions", []) if one["type"] == "Ready" and one["reason"] == reason]
        return bool(ready and re.search(pattern, status["message"]) and status["phase"] == "Pending")

    _until(said)
    described = " ".join(api.kubectl("describe", "trainingjob", "demo", f"--namespace={namespace}").split())
    assert re.search(pattern, described)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "what should be said was not said"
        time.sleep(0.2)
