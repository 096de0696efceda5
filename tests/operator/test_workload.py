"""From a TrainingJob to the objects of one world."""

import base64
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml
from control_plane_fixture import ControlPlane
from operator_objects import training_job
from trimtab_contract.checkpoints import sha256_hex
from trimtab_operator.workload import (
    TrainingJobView,
    WorkloadDefaults,
    WorldObjects,
    processes_per_node,
    redis_secret_name,
    world_objects,
    world_selector,
)

DEFAULTS = WorkloadDefaults(trainer_image="example/default:1", redis_url="redis://redis.trimtab-system:6379")
PASSWORD = "correct horse"


def view(labels: dict[str, str] | None = None, name: str = "demo", **spec: Any) -> TrainingJobView:
    body = training_job(name=name, **spec)
    body["metadata"] |= {"uid": "1234-abcd", "generation": 3, "labels": labels or {}}
    return TrainingJobView.of(body)


def world(attempt: int = 4, **spec: Any) -> WorldObjects:
    return world_objects(view(**spec), DEFAULTS, attempt, PASSWORD)


def pod(objects: WorldObjects) -> dict[str, Any]:
    return objects.job["spec"]["template"]["spec"]


def container(objects: WorldObjects) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    return only


def environment(objects: WorldObjects) -> dict[str, dict[str, Any]]:
    entries = container(objects)["env"]
    found = {entry["name"]: {key: value for key, value in entry.items() if key != "name"} for entry in entries}
    assert len(found) == len(entries)
    return found


def test_a_world_is_one_indexed_job_that_never_replaces_a_pod() -> None:
    spec = world(trainer={"numNodes": 3}).job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 3
    assert spec["backoffLimit"] == 0
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["ttlSecondsAfterFinished"] == 168 * 3600
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_everything_of_a_world_bears_its_name_and_goes_with_its_job_without_finalizers() -> None:
    objects = world()
    content = sha256_hex(objects.config_map["data"]["config.yaml"].encode())
    assert [each["metadata"]["name"] for each in objects.in_order()] == [
        "demo-redis-1234-abcd",
        f"demo-4-1234-abcd-{content[:12]}",
        "demo-4",
        "demo-4",
    ]
    assert [each["kind"] for each in objects.in_order()] == ["Secret", "ConfigMap", "Service", "Job"]
    for each in objects.in_order():
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "1234-abcd", True)
        assert owner["blockOwnerDeletion"] is False
        assert "finalizers" not in each["metadata"]


def test_the_ranks_find_each_other_by_the_headless_service_before_they_are_ready() -> None:
    objects = world()
    assert objects.service["spec"]["clusterIP"] == "None"
    assert objects.service["spec"]["publishNotReadyAddresses"] is True
    assert pod(objects)["subdomain"] == objects.service["metadata"]["name"]
    labels = objects.job["spec"]["template"]["metadata"]["labels"]
    assert objects.service["spec"]["selector"].items() <= labels.items()
    assert dict(pair.split("=") for pair in world_selector(view(), 4).split(",")).items() <= labels.items()


def test_a_later_job_of_the_same_name_finds_neither_the_pods_nor_the_password_of_the_earlier() -> None:
    later = replace(view(), uid="5678-efgh")
    assert redis_secret_name(later) != redis_secret_name(view())
    labels = world().job["spec"]["template"]["metadata"]["labels"]
    assert not dict(pair.split("=") for pair in world_selector(later, 4).split(",")).items() <= labels.items()


def test_torchrun_replaces_the_shell_and_ends_its_workers_before_the_kubelet_ends_it() -> None:
    objects = world(trainer={"numNodes": 2}, podTemplate={"terminationGracePeriodSeconds": 30})
    shell, flag, line, name = container(objects)["command"]
    assert (shell, flag, name) == ("/bin/sh", "-c", "torchrun")
    words = shlex.split(line)
    assert words[:2] == ["exec", "${TRIMTAB_LAUNCHER:-torchrun}"]
    assert words[-1] == "$@"
    options = dict(zip(words[2:-1:2], words[3:-1:2], strict=True))
    assert options == {
        "--nnodes": "2",
        "--node-rank": "$JOB_COMPLETION_INDEX",
        "--nproc-per-node": "1",
        "--master-addr": "demo-4-0.demo-4",
        "--master-port": "29500",
        "--max-restarts": "0",
        "--shutdown-timeout": "25",
    }
    assert container(objects)["args"] == ["-m", "trimtab_trainer"]


def test_a_users_own_program_is_launched_in_place_of_the_reference_trainer() -> None:
    assert container(world(trainer={"command": ["train.py", "--fast"]}))["args"] == ["train.py", "--fast"]


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ({}, 1),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}, 8),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": "4", "cpu": 2}}}, 4),
        ({"numProcPerNode": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}, 2),
    ],
)
def test_auto_means_one_process_per_gpu_or_one(trainer: dict[str, Any], processes: int) -> None:
    assert processes_per_node(view(trainer=trainer).spec) == processes


def test_the_trainer_learns_its_run_world_and_stores() -> None:
    values = environment(world(checkpoint={"endpoint": "http://s3:8333", "everySteps": 20}))
    plain = {name: entry["value"] for name, entry in values.items() if "value" in entry}
    expected = {
        "TRIMTAB_RUN": "default/demo/1234-abcd",
        "TRIMTAB_ATTEMPT": "4",
        "TRIMTAB_REDIS_URL": DEFAULTS.redis_url,
        "TRIMTAB_REDIS_USERNAME": "tt-default.1234-abcd",
        "TRIMTAB_CHECKPOINT_URI": "s3://bucket/prefix",
        "TRIMTAB_CHECKPOINT_EVERY": "20",
        "TRIMTAB_S3_ENDPOINT": "http://s3:8333",
        "TRIMTAB_PROGRESS_DEADLINE": "600",
        "PET_NNODES": "1",
        "MASTER_ADDR": "demo-4-0.demo-4",
    }
    assert expected.items() <= plain.items()


def test_secrets_are_only_referred_to() -> None:
    objects = world()
    values = environment(objects)
    password = {"name": "demo-redis-1234-abcd", "key": "password"}
    assert values["TRIMTAB_REDIS_PASSWORD"] == {"valueFrom": {"secretKeyRef": password}}
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert values[key] == {"valueFrom": {"secretKeyRef": {"name": "s3", "key": key}}}
    assert base64.b64decode(objects.secret["data"]["password"]).decode() == PASSWORD
    for each in objects.in_order()[1:]:
        assert PASSWORD not in str(each)


def test_pods_run_as_nobody_on_a_read_only_root_without_a_token() -> None:
    objects = world()
    assert pod(objects)["automountServiceAccountToken"] is False
    assert pod(objects)["securityContext"]["runAsNonRoot"] is True
    assert container(objects)["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount["name"] for mount in container(objects)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(objects)["volumes"]}
    assert volumes[mounts["/tmp"]]["emptyDir"] == {}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    config_map = objects.config_map["metadata"]["name"]
    assert volumes[mounts["/etc/trimtab"]]["configMap"] == {"name": config_map}


def test_the_trainers_configuration_arrives_unchanged() -> None:
    config = {"model": {"width": 8}, "data": {"path": "/data", "order": "shuffled"}, "text": "ü: yes"}
    objects = world(trainer={"config": config})
    assert yaml.safe_load(objects.config_map["data"]["config.yaml"]) == config
    assert objects.config_map["immutable"] is True


def test_nothing_is_requested_unless_the_job_says_so() -> None:
    assert "resources" not in container(world())
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}}
    assert container(world(trainer={"resourcesPerNode": resources}))["resources"] == resources


def test_the_users_pod_template_is_merged_and_cannot_replace_what_the_operator_selects_by() -> None:
    template = {
        "labels": {"team": "x", "trimtab.dev/job": "other"},
        "annotations": {"note": "y"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/dev/shm/"}],
        "securityContext": {"runAsUser": 1000},
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClassName": "high",
    }
    objects = world(podTemplate=template)
    metadata = objects.job["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "x"
    assert metadata["labels"]["trimtab.dev/job"] == "demo"
    assert metadata["annotations"] == {"note": "y"}
    spec = pod(objects)
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "fast"}, "high")
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (1000, True)
    paths = [mount["mountPath"].rstrip("/") for mount in container(objects)["volumeMounts"]]
    assert sorted(paths) == ["/data", "/dev/shm", "/etc/trimtab", "/tmp"]
    assert [volume["name"] for volume in spec["volumes"]] == ["trimtab-config", "trimtab-tmp", "data"]


def test_a_queue_label_passes_to_the_job() -> None:
    objects = world_objects(view(labels={"kueue.x-k8s.io/queue-name": "q", "a": "b"}), DEFAULTS, 1, PASSWORD)
    assert objects.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert "a" not in objects.job["metadata"]["labels"]


def test_a_users_variable_reaches_the_trainer() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    values = environment(world(trainer={"env": env}))
    assert values["A"] == {"value": "1"}
    assert values["B"] == {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def test_the_api_server_accepts_the_world_of_the_longest_name(control_plane: ControlPlane) -> None:
    namespace = control_plane.create_namespace("workload")
    job = view(name="x" * 52, trainer={"numNodes": 1000, "numProcPerNode": 2})
    for each in world_objects(job, DEFAULTS, 9999, PASSWORD).in_order():
        each["metadata"]["namespace"] = namespace
        control_plane.kubectl("create", "--validate=strict", "-f", "-", text=yaml.safe_dump(each))
