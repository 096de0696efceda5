"""A job with its trail and its checkpoints on a real API server and a real S3 server, for what `trimtab` says of it."""

import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import Result
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import training_job
from rollback_trail import TrailOptions, audit_objects, rollback_trail
from trimtab_cli.__main__ import app
from trimtab_contract.checkpoints import (
    CheckpointManifest,
    EvaluationProbe,
    FiniteScan,
    StoredObject,
    encode_manifest,
    sha256_hex,
)
from trimtab_contract.journal import record_hash
from trimtab_contract.keys import RunId, checkpoint_prefix, journal_record
from trimtab_operator.resources import custom_resource_definitions
from typer.testing import CliRunner

SHARD = b"weights" * 100
AGE = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Laboratory:
    """A job with its trail and checkpoints, an operator's Deployment to read the settings from, and `trimtab`."""

    plane: ControlPlane
    store: ObjectStoreServer
    namespace: str
    run: RunId
    training: str
    audit: str
    manifests: tuple[tuple[str, bytes], ...]

    def trimtab(self, *arguments: str, typed: str = "") -> Result:
        options = [f"--kubeconfig={self.plane.kubeconfig}", f"--namespace={self.namespace}"]
        environment = {"KUBECONFIG": str(self.plane.kubeconfig)}
        return CliRunner().invoke(app, [*arguments, *options], input=typed, env=environment)

    def json(self, *arguments: str) -> Any:
        result = self.trimtab(*arguments, "-o", "json")
        assert result.exit_code in {0, 1}, result.stderr
        return json.loads(result.stdout)

    def status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        patch = json.dumps({"status": status})
        options = (f"-n={self.namespace}", "--subresource=status", "--type=merge")
        self.plane.kubectl("patch", kind, name, *options, f"-p={patch}")


def manifest(run: RunId, step: int) -> bytes:
    return encode_manifest(
        CheckpointManifest(
            run=str(run),
            attempt=1,
            step=step,
            world_size=2,
            next_window=step,
            skip=(),
            lr=None,
            learning_rate=0.01,
            optimizer_steps=step,
            objects={"shard-0.bin": StoredObject(size=len(SHARD), sha256=sha256_hex(SHARD), rank=0)},
            tensors={},
            replica_checksum="0",
            replicas_agree=True,
            finite=FiniteScan(nonfinite=0),
            evaluation=EvaluationProbe(window=step, window_sha256="0", losses=(1.0,)),
            config_sha256="0",
            code_sha256="0",
            versions={},
            trigger="Periodic",
            saved_at=0.0,
        )
    )


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> ControlPlane:
    definitions = custom_resource_definitions()
    control_plane.apply(*definitions)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    control_plane.kubectl("create", "namespace", "trimtab-system")
    return control_plane


@pytest.fixture
def laboratory(crds: ControlPlane, object_store: ObjectStoreServer) -> Laboratory:
    namespace = crds.create_namespace("jobs")
    training, audit = object_store.new_bucket("training"), object_store.new_bucket("audit")
    storage = {"uri": f"s3://{training}/root", "endpoint": object_store.endpoint, "everySteps": 20}
    crds.apply(
        secret(namespace, "s3", AWS_ACCESS_KEY_ID=ADMIN.access_key, AWS_SECRET_ACCESS_KEY=ADMIN.secret_key),
        secret("trimtab-system", "audit", id=ADMIN.access_key, key=ADMIN.secret_key),
        operator_deployment(object_store.endpoint, audit),
        training_job(namespace=namespace, trainer={"config": {"steps": 600}}, checkpoint=storage),
    )
    uid = crds.kubectl("get", "tj", "demo", f"-n={namespace}", "-o=jsonpath={.metadata.uid}")
    run = RunId(namespace, "demo", uid)
    client = object_store.client()
    manifests: list[tuple[str, bytes]] = []
    for step in (0, 300, 320):
        prefix = checkpoint_prefix("root", run, step, 1, uuid.uuid4().hex[:8])
        manifests.append((f"{prefix}manifest.json", manifest(run, step)))
        client.put_object(Bucket=training, Key=f"{prefix}shard-0.bin", Body=SHARD)
        client.put_object(Bucket=training, Key=manifests[-1][0], Body=manifests[-1][1])
    bodies = rollback_trail(TrailOptions(run=run, manifests=tuple(manifests)))
    for seq, body in bodies:
        client.put_object(Bucket=audit, Key=journal_record(run, seq), Body=body)
    for key, body in audit_objects(run).items():
        client.put_object(Bucket=audit, Key=key, Body=body)
    laboratory = Laboratory(crds, object_store, namespace, run, training, audit, tuple(manifests))
    head = {"seq": len(bodies), "hash": record_hash(bodies[-1][1])}
    status = {"phase": "Completed", "step": 600, "loss": "1.42", "attempt": 2, "rollbacks": 1, "journal": head}
    laboratory.status("tj", "demo", {**status, "checkpoint": "600 Committed"})
    return laboratory


def secret(namespace: str, name: str, **values: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def operator_deployment(endpoint: str, bucket: str) -> dict[str, Any]:
    def reference(key: str) -> dict[str, Any]:
        return {"valueFrom": {"secretKeyRef": {"name": "audit", "key": key}}}

    labels = {"app.kubernetes.io/name": "trimtab"}
    env = [
        {"name": "TRIMTAB_AUDIT_ENDPOINT", "value": endpoint},
        {"name": "TRIMTAB_AUDIT_BUCKET", "value": bucket},
        {"name": "TRIMTAB_AUDIT_ACCESS_KEY_ID", **reference("id")},
        {"name": "TRIMTAB_AUDIT_SECRET_ACCESS_KEY", **reference("key")},
    ]
    pod = {"containers": [{"name": "operator", "image": "x", "env": env}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "trimtab", "namespace": "trimtab-system", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
