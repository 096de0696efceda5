"""The sandbox on this very machine: what pods see, what is refused, and what a hard kill or `down` leaves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import redis
from botocore.exceptions import ClientError
from sandbox_fixture import Cluster
from trimtab_sandbox import leftovers, network, s3_server
from trimtab_sandbox.cluster import (
    PROCESS_NAMES,
    SandboxInfo,
    _refuse_other_tree,  # pyright: ignore[reportPrivateUsage]
    down,
    sandbox_process,
    sandbox_processes,
    status,
    up,
)
from trimtab_sandbox.credentials import read_credentials
from trimtab_sandbox.errors import SandboxHeldError, UnknownProcessError
from trimtab_sandbox.settings import Layout, Options

pytestmark = pytest.mark.node

IMPORTS = """
import os, sys, kopf, torch, trimtab_sandbox
print(os.getuid(), sys.executable, trimtab_sandbox.__file__, float(torch.ones(3).sum()))
for path in ("/usr/written", "/opt/trimtab/written", "/written"):
    try:
        open(path, "w")
    except OSError as error:
        print(path, error.strerror)
"""

REDIS_AND_S3 = """
import os, boto3, redis
with redis.Redis.from_url(os.environ["url"]) as client:
    print("redis", client.set("sandbox-test", "1", nx=True), client.delete("sandbox-test"))
store = boto3.client(
    "s3", endpoint_url="http://s3.trimtab-system.svc.cluster.local:8333", region_name="us-east-1"
)
store.put_object(Bucket="trimtab-audit", Key="sandbox-test", Body=b"journal", IfNoneMatch="*")
print("s3", store.get_object(Bucket="trimtab-audit", Key="sandbox-test")["Body"].read().decode())
store.delete_object(Bucket="trimtab-audit", Key="sandbox-test")
"""

OUT_OF_REACH = """
import socket
for address in (("192.0.2.1", 80), ("10.244.0.1", 18333)):
    try:
        socket.create_connection(address, timeout=5)
        print("reached", address)
    except OSError as error:
        print(type(error).__name__)
"""


def _python_pod(name: str, program: str, **container: object) -> dict[str, object]:
    security: dict[str, object] = {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    main: dict[str, object] = {
        "name": "main",
        "image": "localhost/trimtab-dev:1",
        "command": ["python", "-c", program],
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "containers": [main | container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _busybox_pod(name: str, script: str, **spec: object) -> dict[str, object]:
    main: dict[str, object] = {"name": "main", "image": "localhost/busybox:1", "command": ["/bin/sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [main], "terminationGracePeriodSeconds": 1} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _redis(sandbox: SandboxInfo, *, socket_timeout: float = 10) -> redis.Redis:
    url = sandbox.environment["TRIMTAB_REDIS_URL"]
    return redis.Redis.from_url(url, socket_timeout=socket_timeout, retry=None)  # pyright: ignore[reportUnknownMemberType] -- untyped keywords


def test_up_on_a_running_sandbox_starts_nothing(sandbox: SandboxInfo) -> None:
    before = {name: managed.identity for name, managed in sandbox_processes(sandbox.home).items()}
    again = up()
    assert again.started == 0
    assert again.environment == sandbox.environment
    assert {name: managed.identity for name, managed in sandbox_processes(sandbox.home).items()} == before
    assert set(before) == set(PROCESS_NAMES)


def test_a_pod_of_the_development_image_runs_the_working_tree_and_can_write_nothing(cluster: Cluster) -> None:
    lines = cluster.run_to_end(_python_pod("sandbox-imports", IMPORTS)).splitlines()
    uid, executable, module, total = lines[0].split()
    assert uid == "65532"
    assert executable.endswith("/bin/python")
    assert module == "/opt/trimtab/sandbox/trimtab_sandbox/__init__.py"
    assert total == "3.0"
    paths = ("/usr/written", "/opt/trimtab/written", "/written")
    assert lines[1:] == [f"{path} Read-only file system" for path in paths]


def test_redis_and_s3_answer_a_pod_under_their_cluster_names(cluster: Cluster) -> None:
    sources = [{"secretRef": {"name": name}} for name in ("trimtab-redis", "trimtab-audit-s3")]
    pod = _python_pod("sandbox-services", REDIS_AND_S3, envFrom=sources)
    in_system = Cluster(cluster.environment, namespace="trimtab-system")
    assert in_system.run_to_end(pod).splitlines() == ["redis True 1", "s3 journal"]


def test_a_pod_reaches_neither_the_outside_nor_the_s3_servers_inner_door(cluster: Cluster) -> None:
    lines = cluster.run_to_end(_python_pod("sandbox-outside", OUT_OF_REACH)).split()
    assert lines == ["ConnectionRefusedError", "ConnectionRefusedError"]


def test_the_plain_runtime_hides_nothing_of_an_image(cluster: Cluster) -> None:
    script = "ls /"
    plain = cluster.run_to_end(_busybox_pod("sandbox-plain", script, runtimeClassName="plain"))
    mounted = cluster.run_to_end(_busybox_pod("sandbox-mounted", script))
    assert "opt" not in plain.split()
    assert "opt" in mounted.split()


def test_the_training_identity_cannot_touch_the_trail(sandbox: SandboxInfo) -> None:
    credentials = read_credentials(Layout(sandbox.home).credentials)
    training, operator = s3_server.client(credentials.s3_training), s3_server.client(credentials.s3_operator)
    training.put_object(Bucket="training", Key="sandbox-test", Body=b"state")
    training.delete_object(Bucket="training", Key="sandbox-test")
    for identity, bucket in ((training, "trimtab-audit"), (operator, "training")):
        with pytest.raises(ClientError, match="AccessDenied"):
            identity.put_object(Bucket=bucket, Key="sandbox-test", Body=b"")


def test_of_two_writers_of_one_new_object_one_is_refused_in_a_bucket_with_versions(sandbox: SandboxInfo) -> None:
    operator = s3_server.client(read_credentials(Layout(sandbox.home).credentials).s3_operator)
    assert operator.get_bucket_versioning(Bucket="trimtab-audit")["Status"] == "Enabled"
    operator.put_object(Bucket="trimtab-audit", Key="sandbox-once", Body=b"first", IfNoneMatch="*")
    try:
        with pytest.raises(ClientError, match="PreconditionFailed"):
            operator.put_object(Bucket="trimtab-audit", Key="sandbox-once", Body=b"second", IfNoneMatch="*")
        assert operator.get_object(Bucket="trimtab-audit", Key="sandbox-once")["Body"].read() == b"first"
    finally:
        operator.delete_object(Bucket="trimtab-audit", Key="sandbox-once")


def test_redis_refuses_whoever_gives_no_name(sandbox: SandboxInfo) -> None:
    assert sandbox.environment["TRIMTAB_REDIS_URL"].startswith("redis://trimtab:")
    with redis.Redis(host="10.244.0.1") as client, pytest.raises(redis.AuthenticationError):
        client.get("sandbox-absent")


def test_a_frozen_redis_is_silent_and_answers_when_thawed(sandbox: SandboxInfo) -> None:
    frozen = sandbox_process("redis", sandbox.home)
    with _redis(sandbox, socket_timeout=0.5) as client:
        frozen.freeze()
        try:
            with pytest.raises(redis.TimeoutError):
                client.get("sandbox-absent")
            assert not status(sandbox.home).running
        finally:
            frozen.thaw()
    with _redis(sandbox) as client:
        assert client.get("sandbox-absent") is None


def test_redis_killed_and_started_again_still_has_what_it_acknowledged(sandbox: SandboxInfo) -> None:
    with _redis(sandbox) as client:
        client.set("sandbox-kept", "yes")
    sandbox_process("redis", sandbox.home).kill()
    with _redis(sandbox) as client, pytest.raises(redis.ConnectionError):
        client.get("sandbox-absent")
    # Listening is not yet answering: a server with much to read refuses for a while, and `up` waits for that too.
    assert up().started == 1
    with _redis(sandbox) as client:
        assert client.get("sandbox-kept") == b"yes"
        client.delete("sandbox-kept")


def test_up_completes_a_sandbox_that_lacks_a_process(sandbox: SandboxInfo, cluster: Cluster) -> None:
    kept = sandbox_process("apiserver", sandbox.home).identity
    sandbox_process("scheduler", sandbox.home).kill()
    assert up().started == 1
    assert sandbox_process("apiserver", sandbox.home).identity == kept
    assert cluster.run_to_end(_busybox_pod("sandbox-scheduled", "echo scheduled")) == "scheduled\n"


def test_an_unknown_process_name_is_refused_with_the_known_ones(sandbox: SandboxInfo) -> None:
    with pytest.raises(UnknownProcessError, match=r"'nginx'; it has apiserver, .*redis"):
        sandbox_process("nginx", sandbox.home)


def test_a_second_sandbox_is_refused_and_says_who_holds_the_machine(sandbox: SandboxInfo, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(SandboxHeldError, match=rf"{sandbox.home} runs .*down"):
        up(Options(home=other))
    assert not other.exists()
    assert status(sandbox.home).running


def test_a_running_sandbox_is_not_adopted_for_another_working_tree(sandbox: SandboxInfo, tmp_path: Path) -> None:
    with pytest.raises(SandboxHeldError, match=rf"asked for is {tmp_path}"):
        _refuse_other_tree(Layout(sandbox.home), Options(home=sandbox.home, repository=tmp_path))
    assert up().started == 0


def test_down_of_another_state_directory_touches_nothing(sandbox: SandboxInfo, tmp_path: Path) -> None:
    with pytest.raises(SandboxHeldError):
        down(tmp_path)
    assert network.bridge_exists()
    assert status(sandbox.home).running


def test_after_kill_9_of_everything_up_starts_clean_and_pods_run(
    replaced_sandbox: SandboxInfo, cluster: Cluster
) -> None:
    layout = Layout(replaced_sandbox.home)
    cluster.kubectl("run", "sandbox-old", "--image=localhost/busybox:1", "--command", "--", "/bin/sleep", "3600")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/sandbox-old", "--timeout=60s")
    old = leftovers.container_processes(layout)
    assert old
    with _redis(replaced_sandbox) as client:
        client.set("sandbox-survivor", "yes")
    for managed in sandbox_processes(layout.home).values():
        managed.kill()
    assert not status(layout.home).running

    assert up().started == len(PROCESS_NAMES)

    assert not set(old) & set(leftovers.container_processes(layout))
    assert "sandbox-old" not in cluster.kubectl("get", "pods", "-o=name")
    assert cluster.run_to_end(_busybox_pod("sandbox-new", "echo again")) == "again\n"
    with _redis(replaced_sandbox) as client:
        assert client.get("sandbox-survivor") == b"yes"
        client.delete("sandbox-survivor")


def test_down_with_pods_running_leaves_no_process_mount_bridge_or_rule(
    replaced_sandbox: SandboxInfo, cluster: Cluster
) -> None:
    layout = Layout(replaced_sandbox.home)
    cluster.kubectl("run", "sandbox-last", "--image=localhost/busybox:1", "--command", "--", "/bin/sleep", "3600")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/sandbox-last", "--timeout=60s")
    assert leftovers.mounts(layout)
    assert network.kubernetes_chains()
    started = list(sandbox_processes(layout.home).values())

    down(keep_data=True)

    assert not [managed.name for managed in started if managed.is_running()]
    assert not leftovers.container_processes(layout)
    assert not leftovers.mounts(layout)
    assert not network.bridge_exists()
    assert not network.kubernetes_chains()
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    assert "trimtab" not in rules.lower()
    assert not status(layout.home).running
    down(keep_data=True)
