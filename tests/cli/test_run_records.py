"""A job's archive and the policies that were in force, on a real S3 server; the command also on a real API server."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import training_job
from rollback_trail import TrailOptions, audit_objects, rollback_trail
from trimtab_cli.__main__ import app
from trimtab_cli.adapters.object_store import BucketAddress, ObjectStore
from trimtab_cli.errors import CliError, NotFound
from trimtab_cli.run_records import archived_points, policies_in_force, surviving_segments
from trimtab_contract import keys
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import MetricRecord, encode_archive
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.resources import custom_resource_definitions
from trimtab_operator.run_state import AcceptedGuard, Attempt, RunState
from typer.testing import CliRunner

RUN = RunId("default", "demo", "11111111-2222-3333-4444-555555555555")
TEXT = json.dumps({"rules": [{"name": "high", "metric": "loss", "range": {"max": 5.0}, "action": "Rollback"}]}).encode()
ATTEMPTS = (
    Attempt(number=1, world=1, parent=None, branch_step=0),
    Attempt(number=2, world=1, parent=1, branch_step=30),
)
POLICY = """\
apiVersion: trimtab.dev/v1alpha1
kind: GuardPolicy
metadata: {name: guard}
spec:
  rules:
  - {name: high, metric: loss, range: {max: 5}, action: Rollback}
"""


def records(attempt: int, first: int, last: int, loss: float) -> list[MetricRecord]:
    return [
        MetricRecord(
            attempt=attempt,
            step=step,
            window=step - 1,
            samples_seen=step,
            tokens_seen=step,
            time=1e9 + step,
            scalars={"loss": loss},
        )
        for step in range(first, last + 1)
    ]


def archive(
    server: ObjectStoreServer, bucket: str, run: RunId, root: str, segments: Sequence[list[MetricRecord]]
) -> None:
    for segment in segments:
        key = keys.records_segment(root, run, segment[0].attempt, segment[0].step, segment[-1].step)
        server.client().put_object(Bucket=bucket, Key=key, Body=encode_archive(segment))


def bucket_of(server: ObjectStoreServer, name: str) -> ObjectStore:
    return ObjectStore(BucketAddress(name, server.endpoint, ADMIN.access_key, ADMIN.secret_key))


SEGMENTS = [records(1, 1, 20, 2.0), records(1, 21, 40, 9.0), records(2, 31, 50, 3.0)]


def test_the_archive_gives_each_step_of_the_surviving_history_once(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket("training")
    archive(object_store, bucket, RUN, "root", SEGMENTS)
    segments = surviving_segments(RunState(attempts=ATTEMPTS), 2)
    points = list(archived_points(bucket_of(object_store, bucket), "root", RUN, segments, 11, 45))
    assert [(one.attempt, one.step) for one in points] == [
        *((1, step) for step in range(11, 31)),
        *((2, step) for step in range(31, 46)),
    ]


def test_an_earlier_attempt_has_its_own_history(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket("training")
    archive(object_store, bucket, RUN, "root", SEGMENTS)
    segments = surviving_segments(RunState(attempts=ATTEMPTS), 1)
    points = list(archived_points(bucket_of(object_store, bucket), "root", RUN, segments, 1, 40))
    assert [one.scalars["loss"] for one in points] == [2.0] * 20 + [9.0] * 20
    with pytest.raises(NotFound, match="no attempt 3; it has 1, 2"):
        surviving_segments(RunState(attempts=ATTEMPTS), 3)


def in_force(hashed: str) -> RunState:
    identity = PolicyIdentity(kind="GuardPolicy", namespace="lab", name="guard", uid="u", generation=4, hash=hashed)
    guard = AcceptedGuard(policies=(identity,), mode="Enforce", from_attempt=1, from_step=0)
    return RunState(attempts=ATTEMPTS, guards=(guard,))


def test_the_policy_in_force_is_the_text_that_the_journal_names(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket("audit")
    hashed = sha256_hex(TEXT)
    object_store.client().put_object(Bucket=bucket, Key=keys.policy_text(hashed), Body=TEXT)
    (policy,) = policies_in_force(bucket_of(object_store, bucket), in_force(hashed), 1, 7)
    assert (policy.name, policy.generation, policy.spec.rules[0].name) == ("guard", 4, "high")


def test_a_text_that_was_exchanged_explains_nothing(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket("audit")
    hashed = sha256_hex(TEXT)
    object_store.client().put_object(Bucket=bucket, Key=keys.policy_text(hashed), Body=TEXT.replace(b"5.0", b"50.0"))
    with pytest.raises(CliError, match="not the policy that the journal names"):
        policies_in_force(bucket_of(object_store, bucket), in_force(hashed), 1, 7)


def test_a_run_whose_journal_names_no_policy_says_so(object_store: ObjectStoreServer) -> None:
    bucket = bucket_of(object_store, object_store.new_bucket("audit"))
    with pytest.raises(NotFound, match="name policy files"):
        policies_in_force(bucket, RunState(attempts=ATTEMPTS), 1, 7)


def test_a_step_of_a_job_is_explained_from_its_archive(
    control_plane: ControlPlane, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    definitions = custom_resource_definitions()
    control_plane.apply(*definitions)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    namespace = control_plane.create_namespace("explained")
    training, audit = object_store.new_bucket("training"), object_store.new_bucket("audit")
    storage = {"uri": f"s3://{training}/root", "endpoint": object_store.endpoint, "everySteps": 20}
    control_plane.apply(training_job(namespace=namespace, trainer={"config": {"steps": 600}}, checkpoint=storage))
    uid = control_plane.kubectl("get", "tj", "demo", f"-n={namespace}", "-o=jsonpath={.metadata.uid}")
    run = RunId(namespace, "demo", uid)
    client = object_store.client()
    for seq, body in rollback_trail(TrailOptions(run=run)):
        client.put_object(Bucket=audit, Key=keys.journal_record(run, seq), Body=body)
    for key, body in audit_objects(run).items():
        client.put_object(Bucket=audit, Key=key, Body=body)
    archive(object_store, training, run, "root", [records(1, 1, 323, 8.0), records(2, 301, 330, 2.0)])
    (tmp_path / "guard.yaml").write_text(POLICY)
    environment = {
        "KUBECONFIG": str(control_plane.kubeconfig),
        "TRIMTAB_AUDIT_ENDPOINT": object_store.endpoint,
        "TRIMTAB_AUDIT_BUCKET": audit,
        "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
        "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
        "AWS_ACCESS_KEY_ID": ADMIN.access_key,
        "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key,
    }

    def explained(*options: str) -> str:
        arguments = ["policy", "explain", str(tmp_path / "guard.yaml"), "--job=demo", f"--namespace={namespace}"]
        result = CliRunner().invoke(app, [*arguments, *options], env=environment)
        assert result.exit_code == 0, (result.stderr, result.exception)
        return result.stdout

    assert "step 310 of attempt 2" in explained("--step=310")
    assert "high: Healthy (WithinLimits): loss 2 < 5" in explained("--step=310")
    earlier = explained("--step=310", "--attempt=1")
    assert "high: Firing (OutOfRange): loss 8 > 5" in earlier
    assert "would have: Rollback" in earlier
