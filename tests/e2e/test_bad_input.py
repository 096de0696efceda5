"""Wrong input on the real node: one sentence with the field in `kubectl describe`, and healing when it is mended."""

import base64
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from head_starts import HeadStart, head_start
from sandbox_fixture import Cluster
from training_jobs import (
    CHECKPOINT_ROOT,
    DATA,
    S3_IN_CLUSTER,
    Json,
    Namespace,
    guard_policy,
    prepare_data,
    training_job,
)
from trimtab_sandbox.cluster import SandboxInfo

pytestmark = pytest.mark.node

STEPS = 30
"""More than the default warm-up takes."""
CLOSED_PORT = "http://10.244.0.1:8399"


def _misconfigured() -> tuple[Json, Json]:
    """Two jobs whose trainers refuse their configuration: wrong fields, and what only a look at the data shows."""
    good = prepare_data()
    wrong = {"steps": 0, "model": {"width": "wide"}, "gradientClip": -1, "replicaCheckEvry": 5}
    fields, unreadable = training_job("fields", good, config=wrong), training_job("unreadable", good, steps=STEPS)
    fault = {"attempt": 1, "step": 1, "rank": 0, "kind": "flipBit", "tensor": "nowhere"}
    unreadable["spec"]["trainer"]["config"] |= {"globalBatch": 7, "faults": [fault]}
    unreadable["spec"]["trainer"]["config"]["data"]["path"] = "/data/absent.bin"
    return fields, unreadable


@pytest.fixture(scope="module")
def misconfigured(operator: Cluster, sandbox: SandboxInfo) -> Iterator[HeadStart]:
    """Both jobs: their worlds start and fail while the job of the other test waits for what it lacks."""
    with head_start(operator, sandbox, "misconfigured", guard_policy(), *_misconfigured()) as started:
        yield started


@pytest.mark.usefixtures("misconfigured")
def test_a_job_waits_for_each_thing_it_lacks_and_starts_when_the_last_one_is_there(
    namespace: Namespace, tmp_path: Path
) -> None:
    """Secret, its key, its rights, endpoint, bucket, policy, image and a volume are wrong, and mended one by one."""
    job = training_job("waiting", prepare_data(), steps=STEPS)
    spec = job["spec"]
    spec["checkpoint"] |= {"credentialsSecretRef": {"name": "keys"}, "uri": "s3://nowhere/e2e", "endpoint": CLOSED_PORT}
    spec["trainer"]["image"] = "localhost/absent:1"
    namespace.apply(job)
    _says(namespace, "waiting", "spec.checkpoint.credentialsSecretRef: Secret keys .* does not exist", "SecretMissing")

    good = namespace.get("secret", "s3")["data"]
    namespace.apply(_secret({"AWS_ACCESS_KEY_ID": good["AWS_ACCESS_KEY_ID"]}))
    _says(namespace, "waiting", "Secret keys .* lacks AWS_SECRET_ACCESS_KEY", "SecretKeyMissing")

    namespace.apply(_secret(good))
    _says(namespace, "waiting", f"spec.checkpoint.endpoint: .*{CLOSED_PORT} does not answer", "StoreUnavailable")

    spec["checkpoint"]["endpoint"] = S3_IN_CLUSTER
    namespace.apply(job)
    _says(namespace, "waiting", "spec.checkpoint.*'nowhere'", "StoreRefused")

    spec["checkpoint"]["uri"] = f"s3://training/{CHECKPOINT_ROOT}"
    wrong = base64.b64encode(b"mistyped").decode()
    namespace.apply(job, _secret({**good, "AWS_SECRET_ACCESS_KEY": wrong}))
    _says(namespace, "waiting", "spec.checkpoint.credentialsSecretRef: the secret key is wrong", "StoreRefused")

    namespace.apply(_secret(good))
    _says(namespace, "waiting", f"GuardPolicy guard does not exist in namespace {namespace.name}", "PolicyMissing")
    assert not namespace.pods("waiting")

    namespace.apply(guard_policy())
    _says(namespace, "waiting", "correct spec.trainer.image")

    del spec["trainer"]["image"]
    corpus = tmp_path / "corpus"
    volume = {"name": "corpus", "hostPath": {"path": str(corpus), "type": "Directory"}}
    spec["podTemplate"]["volumes"].append(volume)
    spec["podTemplate"]["volumeMounts"].append({"name": "corpus", "mountPath": "/corpus"})
    namespace.apply(job)
    _says(namespace, "waiting", f"correct spec.podTemplate.volumes: FailedMount: .*{corpus} is not a directory")

    corpus.mkdir()
    namespace.wait_phase("waiting", "Completed")
    trail = namespace.trail("waiting")
    assert trail.state.restarts == 0
    assert [(one.after or {})["reason"] for one in trail.of("WorldLost")] == ["Edited"]


def test_every_wrong_field_of_the_trainer_is_named_at_once_and_an_edit_heals(misconfigured: HeadStart) -> None:
    """Both jobs fail cleanly, with all that is wrong, and run once they are corrected."""
    namespace, good = misconfigured(), prepare_data()
    (DATA / "short.bin").write_bytes(b"too short")
    (DATA / "short.bin").chmod(0o644)
    said = _fails(namespace, "fields", "replicaCheckEvry: unknown field")
    for sentence in ("model.width: 'wide' must be a whole number", "steps: 0 must be", "gradientClip: -1"):
        assert sentence in said
    said = _fails(namespace, "unreadable", "data.path: /data/absent.bin cannot be read")
    assert "globalBatch: 7 must be a multiple of the 2 ranks" in said
    assert "faults[0].tensor: there is no parameter 'nowhere'" in said

    healed = training_job("unreadable", good, steps=STEPS)
    for path, sentence in (("/data", "cannot be read"), ("/data/short.bin", "has 9 bytes")):
        unreadable = deepcopy(healed)
        unreadable["spec"]["trainer"]["config"]["data"]["path"] = path
        namespace.apply(unreadable)
        _fails(namespace, "unreadable", f"data.path: {path} {sentence}")

    namespace.apply(training_job("fields", good, steps=STEPS), healed)
    for job in ("fields", "unreadable"):
        namespace.wait_phase(job, "Completed")
        assert namespace.trail(job).state.restarts == 0


def _secret(data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}


def _says(namespace: Namespace, job: str, pattern: str, reason: str = "") -> None:
    """The job waits, and `kubectl describe` has the sentence; a named reason is that of its condition."""

    def said(status: dict[str, Any]) -> bool:
        reasons: set[str] = {one["reason"] for one in status.get("conditions", []) if one["type"] == "Ready"}
        return bool(re.search(pattern, status.get("message") or "")) and (not reason or reason in reasons)

    status = namespace.wait(job, pattern, said, seconds=90)
    assert status["phase"] == "Pending"
    assert re.search(pattern, _described(namespace, job))


def _fails(namespace: Namespace, job: str, pattern: str) -> str:
    """The job fails with the sentence, for people and in the journal; the sentence."""

    def failed(status: dict[str, Any]) -> bool:
        return status.get("phase") == "Failed" and bool(re.search(pattern, status.get("message") or ""))

    message: str = namespace.wait(job, f"Failed with {pattern}", failed, seconds=120)["message"]
    assert re.search(pattern, _described(namespace, job))
    assert (namespace.trail(job).of("Failed")[-1].reason or {})["message"] == message
    return message


def _described(namespace: Namespace, job: str) -> str:
    return " ".join(namespace.cluster.kubectl("describe", "trainingjob", job).split())
