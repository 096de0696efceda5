"""The Job that reads checkpoints back: what it gets of the trainer and what not, and how its words are understood."""

from typing import Any

import pytest
from operator_objects import training_job
from run_states import reference
from trimtab_contract.read_back import ReadBack, ReadBackAnswer, ReadBackReport, decode_order, encode_report
from trimtab_operator.adapters.ports import PodView
from trimtab_operator.read_back_view import outcome_of, waits
from trimtab_operator.read_back_workload import (
    MAKING_SECONDS,
    patience_seconds,
    read_back_job,
    read_back_name,
    read_back_selector,
)
from trimtab_operator.run_state import ReadBackOrder
from trimtab_operator.workload import TrainingJobView, WorkloadDefaults, world_selector

UID = "0b7c12ab-0000-4000-8000-000000000000"
ORDER = ReadBackOrder(
    id="run/ReadBack/31",
    number=31,
    checkpoints=(reference(60), reference(50)),
    seconds=1800,
    avoid=("node-1",),
    since=1000.0,
)
NAME = "demo-verify-0b7c12ab-r31"
Json = dict[str, Any]


def view(labels: Json | None = None, **spec: Any) -> TrainingJobView:
    body = training_job("demo", "lab", **spec)
    return TrainingJobView.of(
        {**body, "metadata": {**body["metadata"], "uid": UID, "generation": 1, "labels": labels or {}}}
    )


def job_of(view: TrainingJobView) -> Json:
    return dict(read_back_job(view, WorkloadDefaults("default/trainer:1", "redis://redis:6379"), ORDER))


def pod_of(view: TrainingJobView) -> Json:
    return job_of(view)["spec"]["template"]["spec"]


def test_the_job_is_small_short_and_goes_with_its_training_job() -> None:
    job = job_of(view())
    assert job["metadata"]["name"] == NAME
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", UID, True)
    spec = job["spec"]
    assert (spec["activeDeadlineSeconds"], spec["backoffLimit"]) == (1800, 1)
    assert spec["ttlSecondsAfterFinished"] > MAKING_SECONDS, "whoever may still make it finds that it was there"
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert container["image"] == "example/trainer:1"
    assert container["command"] == ["python", "-m", "trimtab_trainer.verification"]


def test_a_name_is_never_a_worlds_nor_too_long() -> None:
    body = training_job("x" * 52, "lab")
    long = TrainingJobView.of({**body, "metadata": {**body["metadata"], "uid": UID, "generation": 1}})
    name = read_back_name(long, ReadBackOrder(**{**as_fields(ORDER), "number": 99_999_999}))
    assert len(name) <= 63
    assert not name.rpartition("-")[2].isdigit()


def as_fields(order: ReadBackOrder) -> Json:
    return {name: getattr(order, name) for name in order.__struct_fields__}


def test_it_gets_the_credentials_by_reference_and_nothing_of_redis() -> None:
    (container,) = pod_of(view())["containers"]
    env = {one["name"]: one for one in container["env"]}
    assert decode_order(env["TRIMTAB_READ_BACK"]["value"]) == ORDER.checkpoints
    assert env["TRIMTAB_READ_BACK_JOB"]["value"] == NAME
    secrets = {name: one["valueFrom"]["secretKeyRef"] for name, one in env.items() if "valueFrom" in one}
    assert secrets == {key: {"name": "s3", "key": key} for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    assert not [name for name in env if "REDIS" in name]


def test_of_the_trainers_environment_it_gets_what_says_how_s3_is_reached() -> None:
    bundle = {"name": "REQUESTS_CA_BUNDLE", "valueFrom": {"secretKeyRef": {"name": "ca", "key": "path"}}}
    names = ("HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "WANDB_API_KEY", "NCCL_DEBUG")
    trainer = {"env": [bundle, *({"name": name, "value": "x"} for name in names)]}
    (container,) = pod_of(view(trainer=trainer))["containers"]
    got = {one["name"] for one in container["env"]}
    assert {"REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE"} <= got
    assert not {"WANDB_API_KEY", "NCCL_DEBUG"} & got


def test_its_pod_is_as_safe_as_the_trainers_and_takes_no_gpu_no_data_and_nobodys_place() -> None:
    template = {
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"pool": "a"},
        "priorityClassName": "urgent",
        "schedulerName": "gangs",
        "securityContext": {"runAsUser": 1234},
        "volumes": [
            {"name": "ca", "configMap": {"name": "ca"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca"}, {"name": "data", "mountPath": "/data"}],
    }
    resources = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    pod = pod_of(view(podTemplate=template, trainer=resources))
    assert (pod["serviceAccountName"], pod["imagePullSecrets"]) == ("trainer", [{"name": "pull"}])
    assert pod["nodeSelector"] == {"pool": "a"}
    assert not {"priorityClassName", "schedulerName", "subdomain"} & pod.keys()
    assert (pod["automountServiceAccountToken"], pod["restartPolicy"]) == (False, "Never")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 1234
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {one["name"] for one in pod["volumes"]} == {"ca", "trimtab-tmp"}
    assert {one["mountPath"] for one in container["volumeMounts"]} == {"/ca", "/tmp"}


def test_it_prefers_another_node_than_the_worlds() -> None:
    (preferred,) = pod_of(view())["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}
    ]


def test_no_queue_holds_it_and_nothing_takes_its_pod_for_a_trainers() -> None:
    queue = {"kueue.x-k8s.io/queue-name": "gpus"}
    training = view(labels=queue, podTemplate={"labels": {**queue, "egress": "s3"}})
    job = job_of(training)
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["egress"] == "s3"
    assert "kueue.x-k8s.io/queue-name" not in labels
    assert matches(read_back_selector(training, ORDER), labels)
    assert not matches(world_selector(training, 1), labels)
    assert not {"trimtab.dev/job", "training.kubeflow.org/job-name"} & labels.keys()
    assert job["metadata"]["labels"]["trimtab.dev/job"] == "demo", "so that its end wakes the operator"


def matches(selector: str, labels: Json) -> bool:
    return all(labels.get(name) == value for name, value in (one.split("=") for one in selector.split(",")))


def pod(message: str = "", **changes: Any) -> PodView:
    base: Json = dict.fromkeys(("waiting", "waiting_message", "unschedulable", "image_id", "reason", "message"), "")
    base |= {"name": f"{NAME}-x", "uid": "p", "index": None, "node": "node-2", "phase": "Succeeded"}
    base |= {"deleted": False, "ready": False, "exit_codes": (0,)}
    return PodView(**{**base, "termination_messages": (message,) if message else (), **changes})


def ended(kind: str = "Complete", message: str = "") -> Json:
    return {
        "metadata": {"name": NAME},
        "status": {"conditions": [{"type": kind, "status": "True", "message": message}]},
    }


RUNNING: Json = {"metadata": {"name": NAME}, "status": {"active": 1}}
SAID = (ReadBackAnswer(sha256="0" * 64, found=ReadBack.VERIFIED),)


def report(job: str = NAME) -> str:
    return encode_report(ReadBackReport(job=job, answers=SAID)) + "\n"


def test_what_all_its_pods_said_counts_once_the_job_is_over() -> None:
    pods = (pod("core dumped", exit_codes=(1,)), pod(report()))
    assert outcome_of(ORDER, NAME, RUNNING, pods, ORDER.since) is None
    outcome = outcome_of(ORDER, NAME, ended(), pods, ORDER.since)
    assert outcome is not None
    assert (outcome.number, outcome.job, outcome.answers, outcome.node) == (31, NAME, SAID, "node-2")
    assert outcome.error == ""


def test_words_of_another_job_count_for_nothing() -> None:
    outcome = outcome_of(ORDER, NAME, ended(), (pod(report("other")),), ORDER.since)
    assert outcome is not None
    assert outcome.answers == ()
    assert outcome.error == f"Job {NAME} has said nothing"


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ((), "the Job ran past its deadline"),
        ((pod(exit_codes=(137,), phase="Failed"),), "ended with exit code 137"),
        ((pod(waiting="ErrImagePull", phase="Pending"),), "cannot get its image"),
    ],
)
def test_a_job_that_failed_without_a_word_says_why(pods: tuple[PodView, ...], why: str) -> None:
    outcome = outcome_of(ORDER, NAME, ended("Failed", "the Job ran past its deadline"), pods, ORDER.since)
    assert outcome is not None
    assert why in outcome.error


def test_a_job_that_never_begins_or_was_deleted_is_given_up_and_one_that_is_over_never_is() -> None:
    assert patience_seconds(ORDER) > ORDER.seconds
    for found, patience in ((None, MAKING_SECONDS), (RUNNING, patience_seconds(ORDER))):
        late = ORDER.since + patience + 1
        assert outcome_of(ORDER, NAME, found, (), late - 1) is None
        outcome = outcome_of(ORDER, NAME, found, (), late)
        assert outcome is not None
        assert outcome.answers == ()
        assert outcome.error
    outcome = outcome_of(ORDER, NAME, ended(), (pod(report()),), late)
    assert outcome is not None
    assert outcome.answers == SAID


def test_what_keeps_it_from_starting_is_told() -> None:
    assert waits(NAME, (pod(unschedulable="0/1 nodes are available", phase="Pending"),)).endswith(
        "cannot be scheduled: 0/1 nodes are available"
    )
    assert waits(NAME, (pod(exit_codes=(1,), phase="Failed"),)) == "", "the next pod may do better"
