"""A job of one pod on the real node: a Job reads its checkpoints back, and finds the byte that was flipped."""

from collections.abc import Iterator

import pytest
from sandbox_fixture import Cluster
from training_jobs import Json, Namespace, guard_policy, prepare_data, training_job
from trimtab_contract.checkpoints import decode_manifest
from trimtab_contract.directives import AckState, CheckpointReference
from trimtab_sandbox.commands import wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

EVERY, STEPS = 200, 1000
FLIPPED = 800
READ = [STEPS, FLIPPED, 600, 400]


@pytest.fixture
def system(operator: Cluster) -> Iterator[Cluster]:
    """The operator's namespace; the operator is back at the end, whatever happened."""
    yield Cluster(operator.environment, "trimtab-system")
    operator.kubectl("-n=trimtab-system", "scale", "deployment/trimtab", "--replicas=1")
    operator.kubectl("-n=trimtab-system", "rollout", "status", "deployment/trimtab", "--timeout=120s")


def test_the_checkpoints_of_one_pod_are_read_back_by_a_job_and_a_flipped_byte_is_found(
    namespace: Namespace, system: Cluster
) -> None:
    """While no operator looks the run trains to its end, and a byte is flipped that its own world had read as sound."""
    namespace.apply(guard_policy(), lonely_job("lonely"))
    namespace.wait_action("lonely", "WorldRunning")
    system.kubectl("scale", "deployment/trimtab", "--replicas=0")
    system.kubectl("wait", "--for=delete", "pod", "-l=app.kubernetes.io/component=operator", "--timeout=60s")
    wait_until("The world's own look at its checkpoints", lambda: READ[0] in own_word(namespace), seconds=300)
    flip_a_byte(namespace, own_word(namespace)[FLIPPED])
    system.kubectl("scale", "deployment/trimtab", "--replicas=1")
    namespace.wait_phase("lonely", "Completed", seconds=300)

    trail = namespace.trail("lonely")
    intents = [one for one in trail.of("ReadBack") if steps_of(one.after) == READ]
    assert len(intents) == 1, [steps_of(one.after) for one in trail.of("ReadBack")]
    known = {one.reference.step: one for one in trail.state.checkpoints}
    assert known[FLIPPED].state == "Quarantined"
    assert "have another SHA-256 (Job lonely-verify-" in known[FLIPPED].why
    assert known[STEPS].state == "Certified"
    assert known[STEPS].why.startswith("final: ")
    (verified,) = [one for one in trail.of("Verified") if (one.after or {})["checkpoint"]["step"] == STEPS]
    assert (verified.after or {})["why"].startswith("read back and hashed whole by Job lonely-verify-")

    namespace.cluster.kubectl("delete", "trainingjob", "lonely")
    wait_until("The end of the Jobs and pods", lambda: not left(namespace), seconds=120)


def lonely_job(name: str) -> Json:
    job = training_job(name, prepare_data(), steps=STEPS)
    job["spec"]["trainer"]["numNodes"] = 1
    job["spec"]["checkpoint"]["everySteps"] = EVERY
    return job


def steps_of(after: Json | None) -> list[int]:
    return [one["step"] for one in (after or {})["checkpoints"]]


def own_word(namespace: Namespace) -> dict[int, CheckpointReference]:
    """The checkpoints, by step, of which the world says that it has read them back."""
    said = (one.checkpoint for one in namespace.acks("lonely") if one.state is AckState.VERIFIED)
    return {one.step: one for one in said if one is not None}


def flip_a_byte(namespace: Namespace, reference: CheckpointReference) -> None:
    manifest = decode_manifest(namespace.s3.get_object(Bucket="training", Key=reference.key)["Body"].read())
    name = next(name for name in manifest.objects if name.endswith(".distcp"))
    key = reference.key.replace("manifest.json", name)
    body = bytearray(namespace.s3.get_object(Bucket="training", Key=key)["Body"].read())
    body[len(body) // 2] ^= 1
    namespace.s3.put_object(Bucket="training", Key=key, Body=bytes(body))


def left(namespace: Namespace) -> list[str]:
    """Jobs and pods that read checkpoints back."""
    found = (one for kind in ("jobs", "pods") for one in namespace.items(kind, "trimtab.dev/read-back"))
    return [one["metadata"]["name"] for one in found]
