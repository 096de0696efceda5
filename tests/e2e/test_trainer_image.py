"""The trainer's image, built from the repository's Dockerfile, trains on the real node; `make test-image` runs this."""

import shutil
from collections.abc import Iterator

import pytest
from sandbox_fixture import Cluster
from training_jobs import Json, Namespace, guard_policy, prepare_data, training_job
from trimtab_sandbox import image_build
from trimtab_sandbox.cluster import SandboxInfo
from trimtab_sandbox.containerd import ctr
from trimtab_sandbox.settings import Layout, Options

pytestmark = [pytest.mark.node, pytest.mark.image, pytest.mark.timeout(3600)]

NEEDED_BYTES = 25 * 10**9
STEPS = 20
IMPORTS = """
import os, torch, trimtab_trainer
print(os.getuid(), trimtab_trainer.__file__, float(torch.ones(3).sum()))
"""


@pytest.fixture
def trainer_image(sandbox: SandboxInfo) -> Iterator[str]:
    """The image on the node; neither the node nor the build store keeps anything of it."""
    options = Options()
    free = shutil.disk_usage(options.cache).free
    assert free > NEEDED_BYTES, (
        f"building the trainer image takes 20 GB on the way, and {options.cache} has {free} bytes"
    )
    image = image_build.image_name("trainer")
    try:
        image_build.build("trainer", print)
        image_build.load(image, print)
    finally:
        image_build.forget(image)
    yield image
    ctr(Layout(sandbox.home), "images", "rm", image)


def _pod(image: str) -> Json:
    security = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "main", "image": image, "command": ["python", "-c", IMPORTS], "securityContext": security}
    spec = {
        "restartPolicy": "Never",
        "runtimeClassName": "plain",
        "securityContext": {"runAsNonRoot": True},
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "imports"}, "spec": spec}


def test_the_built_image_trains_as_nobody_with_nothing_of_this_machine(
    namespace: Namespace, trainer_image: str
) -> None:
    cluster: Cluster = namespace.cluster
    printed = cluster.run_to_end(_pod(trainer_image))
    assert printed.split() == ["65532", "/opt/package/trimtab_trainer/__init__.py", "3.0"]

    job = training_job("built", prepare_data(), steps=STEPS, config={"schedule": {"warmupSteps": 5}})
    job["spec"]["trainer"] |= {"image": trainer_image, "numNodes": 1}
    job["spec"]["podTemplate"]["runtimeClassName"] = "plain"
    namespace.apply(guard_policy(), job)
    status = namespace.wait_phase("built", "Completed", seconds=600)
    assert status["step"] == STEPS
