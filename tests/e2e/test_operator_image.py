"""The operator's image, built from the repository's Dockerfile, does the operator's work on the real node."""

import json
from collections.abc import Iterator

import pytest
from sandbox_fixture import Cluster
from training_jobs import Json, Namespace, guard_policy, install_chart, prepare_data, training_job
from trimtab_contract.keys import redis_user
from trimtab_sandbox import image_build
from trimtab_sandbox.cluster import SandboxInfo
from trimtab_sandbox.containerd import ctr
from trimtab_sandbox.settings import Layout

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

FOREIGN = """
import importlib.util, os
print(os.getuid(), importlib.util.find_spec("torch"), __import__("trimtab_operator").__file__)
"""


@pytest.fixture
def built_image(sandbox: SandboxInfo) -> Iterator[str]:
    """The image on the node; its layers stay cached, the node forgets it."""
    image = image_build.build("operator", print)
    image_build.load(image, print)
    yield image
    ctr(Layout(sandbox.home), "images", "rm", image)


@pytest.fixture
def operator_of_one_namespace(operator: Cluster, namespace: Namespace, built_image: str) -> Iterator[Cluster]:
    """The chart with the built image, which sees nothing of this machine, and with rights in one namespace only."""
    try:
        install_chart(operator, image=built_image, runtimeClassName="plain", watchNamespaces=[namespace.name])
        yield Cluster(operator.environment, "trimtab-system")
    finally:
        install_chart(operator)


def test_the_built_image_leads_and_keeps_a_job_of_the_one_namespace_it_may_see(
    namespace: Namespace, operator_of_one_namespace: Cluster, built_image: str
) -> None:
    """A job that lacks its Secret is told so, and its world is made when the Secret appears."""
    job = training_job("built", prepare_data())
    job["spec"]["checkpoint"]["credentialsSecretRef"] = {"name": "later"}
    namespace.apply(guard_policy(), job)
    namespace.wait("built", "the missing Secret", lambda status: "later" in status.get("message", ""))

    secret = namespace.get("secret", "s3")
    metadata = {"name": "later"}
    namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": secret["data"]})
    trail = namespace.wait_action("built", "StartWorld")
    assert {record.actor.image for record in trail.records} == {built_image}
    users = namespace.redis.acl_users()  # pyright: ignore[reportUnknownMemberType] -- untyped
    assert redis_user(namespace.run("built")) in users

    (pod,) = _running_pods(operator_of_one_namespace)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == built_image
    printed = operator_of_one_namespace.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", FOREIGN)
    assert printed.split() == ["65532", "None", "/opt/package/trimtab_operator/__init__.py"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def _running_pods(system: Cluster) -> list[Json]:
    found = json.loads(system.kubectl("get", "pods", "-l", "app.kubernetes.io/component=operator", "-o", "json"))
    return [pod for pod in found["items"] if not pod["metadata"].get("deletionTimestamp")]
