"""The cluster adapter against a real API server."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from operator_objects import guard_incident, guard_policy, training_job
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.ports import EventType, Kind
from trimtab_operator.errors import ClusterUnavailable, Conflict, InvalidResource, NotFound, PermanentError
from trimtab_operator.policy_reporter import report_policy


@pytest.fixture
async def cluster(api: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    made = await KubernetesCluster.connect(api.kubeconfig)
    yield made
    await made.close()


@pytest.fixture
def namespace(api: ControlPlane) -> str:
    return api.create_namespace("adapter")


def stored(api: ControlPlane, namespace: str, kind: str, name: str) -> dict[str, Any]:
    return json.loads(api.kubectl("get", kind, name, f"-n={namespace}", "-o=json", "--show-managed-fields"))


def config_map(namespace: str, owner_uid: str | None = None, **data: str) -> dict[str, Any]:
    owners = [
        {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "demo",
            "uid": owner_uid,
            "controller": True,
        }
    ]
    metadata = {"namespace": namespace, "name": "world", **({"ownerReferences": owners} if owner_uid else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def batch_job(namespace: str, name: str = "world-1") -> dict[str, Any]:
    container = {"name": "trainer", "image": "localhost/none:1"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": namespace, "name": name, "labels": {"world": "1"}},
        "spec": {
            "completions": 2,
            "parallelism": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def pod(namespace: str, name: str, index: int) -> dict[str, Any]:
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"world": "1"}, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "localhost/none:1"}]},
    }


def patch_pod_status(api: ControlPlane, namespace: str, name: str, status: Mapping[str, Any]) -> None:
    body = json.dumps({"status": status})
    api.kubectl("patch", "pod", name, f"-n={namespace}", "--subresource=status", "--type=merge", f"-p={body}")


async def test_jobs_and_policies_are_read_as_the_server_keeps_them(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    api.apply(training_job(namespace=namespace), guard_policy(namespace=namespace))
    assert await cluster.training_job(namespace, "demo") == stored(api, namespace, "tj", "demo")
    assert await cluster.guard_policy(Kind.GUARD_POLICY, namespace, "demo") == stored(api, namespace, "gp", "demo")
    jobs = [job for job in await cluster.training_jobs() if job["metadata"]["namespace"] == namespace]
    assert jobs == [stored(api, namespace, "tj", "demo")]
    policies = [each for each in await cluster.guard_policies() if each["metadata"].get("namespace") == namespace]
    assert policies == [stored(api, namespace, "gp", "demo")]
    with pytest.raises(NotFound):
        await cluster.training_job(namespace, "missing")


@pytest.mark.parametrize("name", ["", "..", "a/b", "Upper", "a?b", "a%2fb"])
async def test_a_name_cannot_lead_to_another_path(cluster: KubernetesCluster, namespace: str, name: str) -> None:
    with pytest.raises(InvalidResource, match="not a name"):
        await cluster.secret(namespace, name)


async def test_status_is_merged_only_into_the_version_that_was_read(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    api.apply(training_job(namespace=namespace))
    first = (await cluster.training_job(namespace, "demo"))["metadata"]["resourceVersion"]
    arguments = (Kind.TRAINING_JOB, namespace, "demo")
    second = await cluster.patch_status(*arguments, {"phase": "Watching", "step": 7}, first)
    with pytest.raises(Conflict):
        await cluster.patch_status(*arguments, {"phase": "Failed"}, first)
    await cluster.patch_status(*arguments, {"step": 8, "loss": None}, second)
    status = (await cluster.training_job(namespace, "demo"))["status"]
    assert (status["phase"], status["step"]) == ("Watching", 8)
    latest = (await cluster.training_job(namespace, "demo"))["metadata"]["resourceVersion"]
    with pytest.raises(InvalidResource, match="nonsense"):
        await cluster.patch_status(*arguments, {"nonsense": 1}, latest)
    with pytest.raises(NotFound):
        await cluster.patch_status(Kind.TRAINING_JOB, namespace, "missing", {"step": 1}, latest)


async def test_an_incident_is_made_once_and_its_status_patched(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    body = guard_incident(namespace)
    name = body["metadata"]["name"]
    first = await cluster.create(body)
    again = await cluster.create(body)
    assert (first.fresh, again.fresh, again.uid) == (True, False, first.uid)
    await cluster.patch_status(Kind.GUARD_INCIDENT, namespace, name, {"phase": "Holding"}, first.resource_version)
    assert (await cluster.guard_incident(namespace, name))["status"]["phase"] == "Holding"


async def test_an_object_of_another_owner_is_never_adopted(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    first = await cluster.create(config_map(namespace, "uid-one", a="1"))
    again = await cluster.create(config_map(namespace, "uid-one", a="2"))
    assert (again.fresh, again.uid) == (False, first.uid)
    assert stored(api, namespace, "configmap", "world")["data"] == {"a": "1"}
    for other in (config_map(namespace, "uid-two", a="1"), config_map(namespace, a="1")):
        with pytest.raises(Conflict, match="belongs to another owner"):
            await cluster.create(other)


async def test_an_object_that_is_being_deleted_is_waited_for(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    body = config_map(namespace)
    body["metadata"]["finalizers"] = ["example.com/slow"]
    await cluster.create(body)
    api.kubectl("delete", "configmap", "world", f"-n={namespace}", "--wait=false")
    with pytest.raises(Conflict, match="being deleted"):
        await cluster.create(body)
    api.kubectl("patch", "configmap", "world", f"-n={namespace}", "--type=merge", '-p={"metadata":{"finalizers":null}}')
    assert (await cluster.create(config_map(namespace))).fresh


async def test_an_unknown_field_is_refused_by_name(cluster: KubernetesCluster, namespace: str) -> None:
    body = batch_job(namespace)
    body["spec"]["template"]["spec"]["nodeSelektor"] = {"a": "b"}
    with pytest.raises(InvalidResource, match="nodeSelektor"):
        await cluster.create(body)
    body = batch_job(namespace)
    body["spec"]["template"]["spec"]["containers"][0]["image"] = ""
    with pytest.raises(InvalidResource, match=r"containers\[0\].image"):
        await cluster.create(body)


async def test_a_job_is_found_by_its_name(cluster: KubernetesCluster, namespace: str) -> None:
    assert await cluster.get_job(namespace, "world-1") is None
    made = await cluster.create(batch_job(namespace))
    found = await cluster.get_job(namespace, "world-1")
    assert found is not None
    assert found["metadata"]["uid"] == made.uid


async def test_pods_show_what_the_operator_decides_from(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    for name, index in (("z", 0), ("a", 1), ("b", 10)):
        api.kubectl("create", "-f", "-", text=json.dumps(pod(namespace, name, index)))
    terminated = {"exitCode": 1, "message": '{"reason":"Terminated"}', "reason": "Error"}
    container = {"name": "trainer", "image": "x", "imageID": "sha256:1", "restartCount": 0}
    patch_pod_status(
        api,
        namespace,
        "z",
        {
            "phase": "Failed",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}
            ],
            "containerStatuses": [{**container, "ready": False, "state": {"terminated": terminated}}],
        },
    )
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    patch_pod_status(
        api,
        namespace,
        "a",
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}],
            "containerStatuses": [{**container, "ready": False, "state": {"waiting": waiting}}],
        },
    )
    ended, pending, new = await cluster.pods(namespace, "world=1")
    assert (ended.name, ended.index, ended.phase) == ("z", 0, "Failed")
    assert (ended.exit_codes, ended.termination_messages) == ((1,), ('{"reason":"Terminated"}',))
    assert (ended.reason, ended.message, ended.image_id) == ("EvictionByEvictionAPI", "drained", "sha256:1")
    assert (pending.name, pending.waiting, pending.waiting_message) == ("a", "ImagePullBackOff", "no such image")
    assert pending.unschedulable == "no GPU"
    assert (new.index, new.ready, new.deleted, new.reason) == (10, False, False, "")
    with pytest.raises(Conflict):
        await cluster.delete_pod(namespace, "z", "another-uid", 0)
    await cluster.delete_pod(namespace, "z", ended.uid, 0)
    await cluster.delete_pod(namespace, "z", ended.uid, 0)
    assert [view.name for view in await cluster.pods(namespace, "world=1")] == ["a", "b"]


def kubelet_event(namespace: str, name: str, uid: str, reason: str, message: str, count: int) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": namespace, "name": "demo-1-0", "uid": uid}
    times = {"firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": f"2026-01-01T00:00:{count:02d}Z"}
    metadata = {"name": name, "namespace": namespace}
    said = {"type": "Warning", "reason": reason, "message": message, "count": count}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, **said, **times}


async def test_a_pod_whose_volume_is_not_there_says_what_the_kubelet_told_of_it_again(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    """The pod's own status says ContainerCreating for ever."""
    api.kubectl("create", "-f", "-", text=json.dumps(pod(namespace, "demo-1-0", 0)))
    creating = {"reason": "ContainerCreating"}
    container = {"name": "trainer", "image": "x", "imageID": "", "restartCount": 0, "ready": False}
    waiting = {"phase": "Pending", "containerStatuses": [{**container, "state": {"waiting": creating}}]}
    patch_pod_status(api, namespace, "demo-1-0", waiting)
    (first,) = await cluster.pods(namespace, "world=1")
    assert (first.waiting, first.waiting_message) == ("ContainerCreating", "")
    words = 'MountVolume.SetUp failed for volume "data" : hostPath type check failed: /data is not a directory'
    events = [
        kubelet_event(namespace, "late", first.uid, "FailedMount", "failed to sync\nconfigmap cache", 1),
        kubelet_event(namespace, "older", first.uid, "FailedScheduling", "0/1 nodes", 9),
        kubelet_event(namespace, "other", "another-uid", "FailedMount", "of another pod", 9),
    ]
    for event in events:
        api.kubectl("create", "-f", "-", text=json.dumps(event))
    assert (await cluster.pods(namespace, "world=1"))[0].waiting_message == ""
    api.kubectl("create", "-f", "-", text=json.dumps(kubelet_event(namespace, "a", first.uid, "FailedMount", words, 2)))
    assert (await cluster.pods(namespace, "world=1"))[0].waiting_message == f"FailedMount: {words}"


async def test_a_secret_is_decoded_and_never_quoted(
    cluster: KubernetesCluster, api: ControlPlane, namespace: str
) -> None:
    metadata = {"namespace": namespace, "name": "s3"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"key": "hidden-word"}}
    await cluster.create(body)
    assert await cluster.secret(namespace, "s3") == {"key": "hidden-word"}
    binary = base64.b64encode(b"hidden-word\xff").decode()
    await cluster.create({**body, "metadata": {**metadata, "name": "binary"}, "stringData": {}, "data": {"k": binary}})
    with pytest.raises(InvalidResource) as error:
        await cluster.secret(namespace, "binary")
    assert "hidden-word" not in str(error.value)
    with pytest.raises(InvalidResource) as error:
        await cluster.create({**body, "metadata": {**metadata, "name": "bad"}, "data": {"k": "hidden-word!"}})
    assert "hidden-word" not in str(error.value)
    with pytest.raises(NotFound):
        await cluster.secret(namespace, "missing")


async def test_the_same_words_raise_the_count_of_one_event(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    api.apply(training_job(namespace=namespace))
    job = await cluster.training_job(namespace, "demo")
    for _ in range(3):
        await cluster.event(job, EventType.WARNING, "Holding", "held at step 7\x1b[2J")
    await cluster.event(job, EventType.NORMAL, "Resumed", "x" * 5000)
    items = json.loads(api.kubectl("get", "events", f"-n={namespace}", "-o=json"))["items"]
    held = next(item for item in items if item["reason"] == "Holding")
    resumed = next(item for item in items if item["reason"] == "Resumed")
    assert len(items) == 2
    assert (held["count"], held["type"], resumed["count"]) == (3, "Warning", 1)
    assert held["involvedObject"]["uid"] == job["metadata"]["uid"]
    assert held["message"].isprintable()
    assert len(resumed["message"]) <= 1000
    assert "held at step 7" in api.kubectl("describe", "tj", "demo", f"-n={namespace}")


async def test_one_object_nested_as_deep_as_the_server_allows_hides_no_other(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    deep = '{"d":' * 5000 + "1" + "}" * 5000
    body = json.dumps(training_job("deep", namespace)).replace('"path": "/data"', f'"path": {deep}')
    api.kubectl("create", "-f", "-", text=body)
    api.apply(training_job("flat", namespace))
    names = {one["metadata"]["name"] for one in await cluster.training_jobs()}
    assert {"deep", "flat"} <= names
    api.kubectl("delete", "tj", "deep", f"-n={namespace}")


async def test_a_policy_of_the_cluster_is_read_and_told_what_is_thought_of_it(
    api: ControlPlane, cluster: KubernetesCluster
) -> None:
    policy = guard_policy("everywhere") | {"kind": "ClusterGuardPolicy"}
    del policy["metadata"]["namespace"]
    api.apply(policy)
    body = await cluster.guard_policy(Kind.CLUSTER_GUARD_POLICY, "any", "everywhere")
    assert body in await cluster.guard_policies()
    await report_policy(cluster, body)
    seen = api.kubectl("get", "cgp", "everywhere", "-o=jsonpath={.status.conditions[0].status}")
    assert seen == "True"


async def test_events_at_the_same_moment_are_all_counted(
    api: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    api.apply(training_job(namespace=namespace))
    job = await cluster.training_job(namespace, "demo")
    await asyncio.gather(*(cluster.event(job, EventType.NORMAL, "Saved", "step 10") for _ in range(2)))
    items = json.loads(api.kubectl("get", "events", f"-n={namespace}", "-o=json"))["items"]
    assert [item["count"] for item in items] == [2]


async def test_a_list_longer_than_a_page_is_whole(
    api: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab_operator.adapters.api_server.PAGE", 2)
    api.apply(*(guard_policy(f"policy-{number}", namespace) for number in range(5)))
    cluster = await KubernetesCluster.connect(api.kubeconfig, namespaces=(namespace,))
    policies = [one for one in await cluster.guard_policies() if one["kind"] == "GuardPolicy"]
    await cluster.close()
    assert sorted(one["metadata"]["name"] for one in policies) == [f"policy-{number}" for number in range(5)]
    assert {(one["apiVersion"], one["kind"]) for one in policies} == {("trimtab.dev/v1alpha1", "GuardPolicy")}


async def test_a_server_that_is_away_or_refuses_is_unavailable(api: ControlPlane, tmp_path: Any) -> None:
    text = api.kubeconfig.read_text()
    away = tmp_path / "away"
    away.write_text(text.replace(api.server, "https://127.0.0.1:1"))
    unknown = tmp_path / "unknown"
    parsed = json.loads(text)
    parsed["users"][0]["user"]["token"] = "hidden-word"
    unknown.write_text(json.dumps(parsed))
    for kubeconfig in (away, unknown):
        cluster = await KubernetesCluster.connect(kubeconfig)
        with pytest.raises(ClusterUnavailable) as error:
            await cluster.training_jobs()
        await cluster.close()
        assert "hidden-word" not in str(error.value)
    with pytest.raises(PermanentError, match="kubeconfig"):
        await KubernetesCluster.connect(tmp_path / "missing")
    malformed = tmp_path / "malformed"
    malformed.write_text("token: hidden-word: [")
    with pytest.raises(PermanentError, match="kubeconfig") as refused:
        await KubernetesCluster.connect(malformed)
    assert "hidden-word" not in str(refused.value)
