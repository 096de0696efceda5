"""`trimtab job` and `trimtab checkpoint` on a real API server and a real S3 server."""

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from control_plane_fixture import ControlPlane
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import guard_incident, incident_plan, training_job
from rollback_trail import TrailOptions, audit_objects, going, rollback_trail
from trimtab_cli.__main__ import app
from trimtab_cli.access import Access, Bodies
from trimtab_cli.errors import UsageError
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

ROOT = Path(__file__).resolve().parents[2]
SHARD = b"weights" * 100
AGE = "2026-01-01T00:00:00Z"
PLAN = "abc123" + "0" * 58


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


@pytest.fixture(scope="module")
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


def test_the_list_shows_what_people_look_for(laboratory: Laboratory) -> None:
    header, row = laboratory.trimtab("job", "list").stdout.splitlines()
    assert header.split() == ["Name", "Namespace", "Phase", "Step", "Loss", "Attempt", "Rollbacks", "Checkpoint", "Age"]
    assert row.split()[:-1] == ["demo", laboratory.namespace, "Completed", "600", "1.42", "2", "1", "600", "Committed"]
    (job,) = laboratory.json("job", "list")
    assert (job["phase"], job["step"], job["steps"]) == ("Completed", 600, 600)


def test_describe_reads_like_a_story(laboratory: Laboratory) -> None:
    body = guard_incident(laboratory.namespace, "demo-a1-s321", job={"name": "demo", "uid": laboratory.run.uid})
    laboratory.plane.apply(body)
    laboratory.status(
        "gi",
        "demo-a1-s321",
        {"phase": "Closed", "heldStep": 323, "finding": "Undecided", "outcome": "Recovered",
         "skipped": {"first": 319, "last": 333, "bad": 12}},
    )  # fmt: skip
    involved = {"kind": "TrainingJob", "name": "demo", "namespace": laboratory.namespace, "uid": laboratory.run.uid}
    metadata = {"name": "demo.1", "namespace": laboratory.namespace}
    event = {"type": "Normal", "reason": "Restored", "message": "step 300 is restored", "count": 1}
    times = {"firstTimestamp": AGE, "lastTimestamp": AGE}
    laboratory.plane.apply(
        {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": involved, **event, **times}
    )
    told = laboratory.trimtab("job", "describe", "demo").stdout
    for part in (
        "Completed, step 600 of 600, loss 1.42",
        "Incident demo-a1-s321: Recovered",
        "rule loss-spike fired at step 322",
        "every rank held after step 323",
        "plan 1: restore step 200",
        "windows 319 to 333 are skipped, 12 of them measured as bad",
        "00:00:00  Restored: step 300 is restored",
    ):
        assert part in told
    assert laboratory.json("job", "describe", "demo")["incidents"][0]["name"] == "demo-a1-s321"


def test_watching_ends_with_the_job_and_says_how(laboratory: Laboratory) -> None:
    assert laboratory.trimtab("job", "watch", "demo").exit_code == 0
    laboratory.status("tj", "demo", {"phase": "Failed", "message": "config.steps: must be at least 1"})
    result = laboratory.trimtab("job", "watch", "demo")
    assert result.exit_code == 1
    assert "config.steps: must be at least 1" in result.stdout


def test_the_audit_bucket_is_found_through_the_operator(laboratory: Laboratory) -> None:
    answer = laboratory.json("audit", "verify", "demo")
    assert answer["problems"] == []
    assert answer["vouchedUntil"] == answer["headSeq"]
    assert answer["evidenceFetched"] == 5


@pytest.mark.parametrize("packed", [False, True])
def test_a_checkpoint_that_is_deleted_while_its_trail_is_read_is_not_missed(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packed: bool
) -> None:
    read, client = Access.journal, laboratory.store.client()

    def journal(access: Access, run: RunId) -> Bodies:
        bodies = read(access, run)
        if len(bodies) == len(rollback_trail()):
            seq, body = going(list(bodies), 300)[-1]
            client.put_object(Bucket=laboratory.audit, Key=journal_record(run, seq), Body=body)
            client.delete_object(Bucket=laboratory.training, Key=laboratory.manifests[1][0])
        return bodies

    monkeypatch.setattr(Access, "journal", journal)
    trail = "demo"
    if packed:
        trail = str(tmp_path / "trail.zip")
        assert laboratory.trimtab("audit", "export", "demo", f"--output={trail}").exit_code == 0
    answer = laboratory.json("audit", "verify", trail)
    assert (answer["problems"], answer["evidenceDeleted"], answer["evidenceFetched"]) == ([], 1, 4)


@pytest.mark.parametrize("newer", [False, True])
def test_the_trail_of_a_deleted_job_is_verified_but_for_its_checkpoints(laboratory: Laboratory, newer: bool) -> None:
    namespace = laboratory.namespace
    laboratory.plane.kubectl("delete", "tj", "demo", f"-n={namespace}")
    if newer:
        laboratory.plane.apply(training_job(namespace=namespace))
    # Given as a run, it is looked for in its own namespace and not in the chosen one.
    elsewhere = replace(laboratory, namespace="default")
    answer = elsewhere.json("audit", "verify", str(laboratory.run))
    (problem,) = answer["problems"]
    assert answer["verified"] is False
    assert ("is a newer one" if newer else f"in namespace {namespace}") in problem
    assert "--without-checkpoints" in problem
    audited = elsewhere.trimtab("audit", "verify", str(laboratory.run), "--without-checkpoints")
    assert audited.exit_code == 0, audited.stdout


def test_the_run_of_another_namespace_is_verified_with_its_own_job(laboratory: Laboratory) -> None:
    answer = replace(laboratory, namespace="default").json("audit", "verify", str(laboratory.run))
    assert answer["problems"] == []
    assert answer["vouchedUntil"] == answer["headSeq"]


def test_a_trail_whose_end_was_cut_off_is_found_through_the_status(laboratory: Laboratory) -> None:
    last = len(rollback_trail())
    laboratory.store.client().delete_object(Bucket=laboratory.audit, Key=journal_record(laboratory.run, last))
    answer = laboratory.json("audit", "verify", "demo")
    assert answer["verified"] is False
    assert f"record {last} is missing" in str(answer["problems"])


def test_checkpoints_are_listed_with_state_size_and_the_reason_against_them(laboratory: Laboratory) -> None:
    rows = {row["step"]: row for row in laboratory.json("checkpoint", "list", "demo")}
    assert [row["state"] for row in rows.values()] == ["Committed", "Committed", "Quarantined"]
    assert rows[300]["size"] == len(SHARD) + len(laboratory.manifests[1][1])
    assert rows[300]["chosen"] is True
    assert rows[300]["knownSince"] < rows[320]["knownSince"]
    assert rows[320]["why"] == "newer than step 301"
    assert "the run is over" in rows[300]["kept"]
    assert rows[300]["mayBeDeleted"] is False
    assert "chosen: the newest one old enough" in laboratory.trimtab("checkpoint", "list", "demo").stdout


def test_whole_checkpoints_are_verified(laboratory: Laboratory) -> None:
    result = laboratory.trimtab("checkpoint", "verify", "demo")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("every hash agrees with the journal") == 2


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("shard-0.bin", SHARD[:-1] + b"x", "object shard-0.bin has another SHA-256"),
        ("shard-0.bin", SHARD[:-1], "has 699 bytes instead of 700"),
        ("shard-0.bin", None, "object shard-0.bin is gone"),
        ("manifest.json", b"{}", "its manifest is not the one whose hash the journal holds"),
        ("manifest.json", None, "its manifest is gone"),
    ],
)
def test_damage_to_a_checkpoint_is_found(laboratory: Laboratory, name: str, body: bytes | None, says: str) -> None:
    key = laboratory.manifests[1][0].replace("manifest.json", name)
    client = laboratory.store.client()
    if body is None:
        client.delete_object(Bucket=laboratory.training, Key=key)
    else:
        client.put_object(Bucket=laboratory.training, Key=key, Body=body)
    assert laboratory.trimtab("checkpoint", "verify", "demo", "0").exit_code == 0
    result = laboratory.trimtab("checkpoint", "verify", "demo", "300")
    assert result.exit_code == 1
    assert says in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("job", "describe", "nobody"), "There is no trainingjob nobody in namespace jobs-"),
        (("checkpoint", "list", "nobody"), "There is no trainingjob nobody in namespace jobs-"),
        (("checkpoint", "verify", "demo", "7"), "no checkpoint of step 7"),
        (("audit", "show", "nobody"), "There is no TrainingJob nobody"),
    ],
)
def test_what_is_not_there_is_named(laboratory: Laboratory, arguments: tuple[str, ...], says: str) -> None:
    result = laboratory.trimtab(*arguments)
    assert says in str(result.exception)
    assert result.exit_code != 0


@contextmanager
def answering(laboratory: Laboratory, status: dict[str, Any]) -> Generator[None]:
    """Somebody who answers the first request of the namespace, as the operator does."""

    def answer() -> None:
        while not ended.wait(0.1):
            names = laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name").split()
            if names:
                laboratory.status("rr", names[0].partition("/")[2], status)
                return

    ended = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("command", "state", "code"),
    [("resume", "Accepted", 0), ("rollback", "Done", 0), ("stop", "Accepted", 0), ("resume", "Refused", 1)],
)
def test_a_person_asks_in_their_own_name_and_waits_for_the_answer(
    laboratory: Laboratory, command: str, state: str, code: int
) -> None:
    with answering(laboratory, {"state": state, "message": "it is so", "answeredTime": AGE}):
        result = laboratory.trimtab("job", command, "demo", "--reason", "the spike is known", "-o", "json")
    assert result.exit_code == code, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["job"], answer["action"], answer["by"]) == ("demo", command.capitalize(), "admin")
    assert (answer["state"], answer["message"]) == (state, "it is so")
    stored = json.loads(laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=json"))["items"]
    (request,) = stored
    assert request["spec"]["reason"] == "the spike is known"
    assert [owner["uid"] for owner in request["metadata"]["ownerReferences"]] == [laboratory.run.uid]


def test_the_answer_is_told_in_one_line(laboratory: Laboratory) -> None:
    with answering(laboratory, {"state": "Refused", "message": "Resume is refused in phase Watching"}):
        result = laboratory.trimtab("job", "resume", "demo", "--reason", "why not")
    assert (result.exit_code, result.stdout) == (1, "Refused: Resume is refused in phase Watching\n")


def test_a_request_that_nobody_answers_is_said_to_stay(laboratory: Laboratory) -> None:
    result = laboratory.trimtab("job", "stop", "demo", "--reason", "enough", "--timeout", "0")
    assert result.exit_code == 1
    assert "No operator has answered runrequest demo-stop-" in str(result.exception)


def asked(laboratory: Laboratory, *command: str) -> dict[str, Any]:
    """The spec of the RunRequest that a command makes; nobody answers."""
    before = set(laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name").split())
    result = laboratory.trimtab("job", *command, "--reason", "because", "--timeout", "0")
    assert "No operator has answered runrequest demo-" in str(result.exception), (result.exception, result.stderr)
    after = set(laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name").split())
    (made,) = after - before
    spec = json.loads(laboratory.plane.kubectl("get", made, f"-n={laboratory.namespace}", "-o=json"))["spec"]
    assert (spec.pop("job"), spec.pop("by"), spec.pop("reason")) == ("demo", "admin", "because")
    return spec


def test_every_verb_asks_for_what_was_typed(laboratory: Laboratory) -> None:
    assert asked(laboratory, "hold", "demo") == {"action": "Hold"}
    assert asked(laboratory, "skip", "demo", "480-505") == {
        "action": "Skip",
        "args": {"skip": {"first": 480, "last": 505}},
    }
    changes = ("--to", "300", "--skip", "480-505", "--lr-scale", "0.5", "--lr-steps", "100")
    assert asked(laboratory, "rollback", "demo", *changes) == {
        "action": "Rollback",
        "args": {
            "toStep": 300,
            "skip": {"first": 480, "last": 505},
            "learningRate": {"scale": 0.5, "forSteps": 100},
        },
    }
    assert asked(laboratory, "rollback", "demo", "--to", "root/x/manifest.json", "--unchanged") == {
        "action": "Rollback",
        "args": {"toKey": "root/x/manifest.json", "unchanged": True},
    }
    assert asked(laboratory, "reject", "demo") == {"action": "Reject"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("skip", "demo", "480"), "'480' are no windows: write them as FIRST-LAST, such as 480-505."),
        (("skip", "demo", "505-480"), "'505-480' are no windows"),
        (("rollback", "demo", "--lr-scale", "0.5"), "--lr-scale and --lr-steps belong together"),
        (("approve", "demo", "--yes"), "--yes would approve whatever waits by then: name the plan with --plan HASH."),
    ],
)
def test_what_was_typed_wrongly_is_said_before_anything_is_asked(command: tuple[str, ...], why: str) -> None:
    result = CliRunner().invoke(app, ["job", *command, "--reason", "x", "--kubeconfig=/dev/null"])
    assert isinstance(result.exception, UsageError)
    assert why in str(result.exception)


def test_what_contradicts_itself_is_refused_by_the_api_server(laboratory: Laboratory) -> None:
    result = laboratory.trimtab("job", "rollback", "demo", "--unchanged", "--skip", "1-2", "--reason", "x")
    assert isinstance(result.exception, UsageError)
    assert "spec.args.unchanged" in str(result.exception)


def test_a_plan_is_shown_before_it_is_approved_by_its_hash(laboratory: Laboratory) -> None:
    nothing = laboratory.trimtab("job", "approve", "demo", "--reason", "x")
    assert str(nothing.exception) == "No plan of demo waits for approval: it is Completed."
    plan = {**incident_plan(1), "hash": PLAN, "skipBound": {"first": 318, "last": 387}}
    laboratory.plane.apply(guard_incident(laboratory.namespace, job={"uid": laboratory.run.uid}, plans=[plan]))
    waits = {"planHash": PLAN, "deadline": AGE}
    message = "plan 1 waits for approval"
    laboratory.status("gi", "demo-a1-s320", {"phase": "AwaitingApproval", "approval": waits, "message": message})
    laboratory.status("tj", "demo", {"phase": "AwaitingApproval", "incident": "demo-a1-s320"})
    unseen = laboratory.trimtab("job", "approve", "demo", "--reason", "x")
    assert str(unseen.exception) == f"Nothing is approved; where nobody can be asked, give --plan {PLAN} --yes."
    for line in ("plan 1: restore step 200", "nothing outside windows 318 to 387 is skipped", PLAN, message):
        assert line in unseen.stderr
    declined = laboratory.trimtab("job", "approve", "demo", "--reason", "x", typed="n\n")
    assert declined.exit_code == 1
    assert declined.stderr.endswith("Nothing was asked for: the plan still waits.\n")
    assert laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name") == ""
    seen = laboratory.trimtab("job", "approve", "demo", "--reason", "x", "--timeout", "0", typed="y\n")
    assert "No operator has answered runrequest demo-approve-" in str(seen.exception)
    stale = laboratory.trimtab("job", "approve", "demo", "--plan", "0" * 64, "--yes", "--reason", "x")
    assert str(stale.exception) == f"Plan {'0' * 64} is not the one that waits: that is {PLAN}; look at it again."
    assert asked(laboratory, "approve", "demo", "--plan", PLAN[:12], "--yes") == {"action": "Approve", "planHash": PLAN}
    assert asked(laboratory, "reject", "demo", "--plan", PLAN) == {"action": "Reject", "planHash": PLAN}
    told = laboratory.trimtab("job", "describe", "demo").stdout
    assert f"hash {PLAN}" in told


def test_nothing_is_asked_without_a_reason_or_of_nobody(laboratory: Laboratory) -> None:
    assert laboratory.trimtab("job", "stop", "demo").exit_code == 2
    nobody = laboratory.trimtab("job", "stop", "nobody", "--reason", "enough")
    assert "There is no trainingjob nobody" in str(nobody.exception)
    empty = laboratory.trimtab("job", "stop", "demo", "--reason", "")
    assert isinstance(empty.exception, UsageError)
    assert "spec.reason" in str(empty.exception)
    assert laboratory.plane.kubectl("get", "rr", f"-n={laboratory.namespace}", "-o=name") == ""


def test_kubectl_finds_the_program_as_its_plugin(crds: ControlPlane) -> None:
    path = {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    command = [str(crds.kube), "kubectl", "trimtab", "job", "--help"]
    done = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, check=True)
    assert "approve" in done.stdout


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["job", "list", f"--kubeconfig={tmp_path / 'none'}"])
    assert "does not lead to a cluster" in str(result.exception)
