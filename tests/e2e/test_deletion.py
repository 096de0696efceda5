"""Deleting a job ends its pods and its trail, leaves its data, and leaves nothing to a new job of the same name."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sandbox_fixture import Cluster
from training_jobs import Json, Namespace, guard_policy, prepare_data, training_job
from trimtab_contract.keys import REDIS_TTL_SECONDS, RunId, redis_user
from trimtab_sandbox.commands import wait_until

pytestmark = pytest.mark.node

KINDS = ("trainingjobs", "guardpolicies", "guardincidents", "jobs", "services", "configmaps", "secrets")
LAST_STEP = 1500
"""Far beyond what a run trains before it is deleted."""


def small_job(name: str) -> Json:
    job = training_job(name, prepare_data(), steps=LAST_STEP)
    job["spec"]["trainer"]["numNodes"] = 1
    return job


def test_a_deleted_job_ends_with_its_pods_and_a_new_one_of_its_name_inherits_nothing(namespace: Namespace) -> None:
    namespace.apply(guard_policy(), small_job("twice"))
    namespace.wait_step("twice", 15)
    run = namespace.run("twice")
    assert _finalizers(namespace) == []
    assert _redis_user_exists(namespace, run)
    left = Left(run, _pod_names(namespace), namespace.stored(run))

    namespace.cluster.kubectl("delete", "trainingjob", "twice")
    namespace.apply(small_job("twice"))

    _assert_ended_and_kept(namespace, left)
    namespace.wait_step("twice", 3)
    fresh = namespace.run("twice")
    assert fresh.uid != run.uid
    trail = namespace.trail("twice")
    assert trail.state.attempt == 1
    assert trail.state.directive is not None
    assert trail.state.directive.restore is None
    assert trail.records[0].action == "Takeover"
    assert {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods("twice")} == {"1"}
    wait_until("The end of all the earlier job owned", lambda: _owners(namespace, "twice") == {fresh.uid})
    assert not namespace.stored(fresh) & left.stored


def test_a_job_deleted_while_no_operator_looked_ends_the_same(namespace: Namespace, system: Cluster) -> None:
    namespace.apply(guard_policy(), small_job("unseen"))
    namespace.wait_step("unseen", 15)
    run = namespace.run("unseen")
    left = Left(run, _pod_names(namespace), namespace.stored(run))

    system.kubectl("scale", "deployment/trimtab", "--replicas=0")
    system.kubectl("wait", "--for=delete", "pod", "-l=app.kubernetes.io/component=operator", "--timeout=60s")
    namespace.cluster.kubectl("delete", "trainingjob", "unseen")
    system.kubectl("scale", "deployment/trimtab", "--replicas=1")

    _assert_ended_and_kept(namespace, left)


@pytest.fixture
def system(operator: Cluster) -> Iterator[Cluster]:
    """The operator's namespace; the operator is back at the end, whatever happened."""
    yield Cluster(operator.environment, "trimtab-system")
    operator.kubectl("-n=trimtab-system", "scale", "deployment/trimtab", "--replicas=1")
    operator.kubectl("-n=trimtab-system", "rollout", "status", "deployment/trimtab", "--timeout=120s")


@dataclass(frozen=True)
class Left:
    """A run as it was just before its TrainingJob was deleted."""

    run: RunId
    pods: set[str]
    stored: set[str]


def _pod_names(namespace: Namespace) -> set[str]:
    return {pod["metadata"]["name"] for pod in namespace.items("pods")}


def _assert_ended_and_kept(namespace: Namespace, left: Left) -> None:
    """Pods and Redis user are gone, the trail has its last record, keys expire by themselves, S3 is as it was."""
    run = left.run
    assert left.pods
    wait_until("The end of the pods", lambda: not left.pods & _pod_names(namespace), seconds=90)
    wait_until("RunEnded", lambda: namespace.trail_of(run).records[-1].action == "RunEnded", seconds=90)
    assert namespace.trail_of(run).records[-1].outcome == "Deleted"
    wait_until("The sweep of the user", lambda: not _redis_user_exists(namespace, run), seconds=90)
    lives = [namespace.redis.ttl(key) for key in namespace.redis.keys(f"tt:{{{run}}}:*")]
    assert lives
    assert all(0 < seconds <= REDIS_TTL_SECONDS for seconds in lives)
    assert any(key.endswith("manifest.json") for key in left.stored)
    assert left.stored <= namespace.stored(run)


def _finalizers(namespace: Namespace) -> list[str]:
    """Every finalizer of an object of ours; only its pods carry the Job controller's own."""
    found = [one for kind in KINDS for one in namespace.items(kind)]
    return [finalizer for one in found for finalizer in one["metadata"].get("finalizers", [])]


def _redis_user_exists(namespace: Namespace, run: RunId) -> bool:
    return redis_user(run) in namespace.redis.acl_users()


def _owners(namespace: Namespace, job: str) -> set[str]:
    """The uids of the TrainingJobs that own what was made for a job."""
    found = [one for kind in KINDS for one in namespace.items(kind, f"trimtab.dev/job={job}")]
    return {owner["uid"] for one in found for owner in one["metadata"].get("ownerReferences", [])}
