"""The pods of a world, reduced to what decisions need."""

from typing import Any

import pytest
from trimtab_contract.directives import Reason, TerminationMessage, encode
from trimtab_operator.adapters.ports import PodView
from trimtab_operator.kubernetes_view import owned_by, pods_of_world
from trimtab_operator.observation import PodsState
from trimtab_operator.reasons import Reason as Why

RUNNING_JOB: dict[str, Any] = {"metadata": {"name": "demo-1"}, "status": {}}
FAILED_JOB = {**RUNNING_JOB, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
COMPLETE_JOB = {**RUNNING_JOB, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
FAILING_JOB = {**RUNNING_JOB, "status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}}
MESSAGE = TerminationMessage(reason=Reason.TERMINATED, world=1, attempt=1, step=80)


def pod(phase: str = "Running", **changes: Any) -> PodView:
    base: dict[str, Any] = {
        "name": "demo-1-0",
        "uid": "u",
        "index": 0,
        "node": "n",
        "phase": phase,
        "deleted": False,
        "ready": True,
        "exit_codes": (),
        "termination_messages": (),
        "waiting": "",
        "waiting_message": "",
        "unschedulable": "",
        "image_id": "",
        "reason": "",
        "message": "",
    }
    return PodView(**{**base, **changes})


@pytest.mark.parametrize(
    ("job", "pods", "state"),
    [
        (None, [], PodsState.ABSENT),
        (RUNNING_JOB, [], PodsState.STARTING),
        (RUNNING_JOB, [pod("Pending")], PodsState.STARTING),
        (RUNNING_JOB, [pod(), pod("Pending")], PodsState.STARTING),
        (RUNNING_JOB, [pod(), pod()], PodsState.LIVE),
        (RUNNING_JOB, [pod(), pod("Failed")], PodsState.ENDING),
        (RUNNING_JOB, [pod(), pod("Succeeded")], PodsState.ENDING),
        (RUNNING_JOB, [pod(deleted=True), pod()], PodsState.ENDING),
        (RUNNING_JOB, [pod("Failed"), pod("Failed")], PodsState.ENDING),
        (FAILING_JOB, [pod("Failed"), pod("Failed")], PodsState.ENDING),
        (FAILED_JOB, [pod(deleted=True)], PodsState.ENDING),
        (FAILED_JOB, [pod("Failed")], PodsState.GONE),
        (FAILED_JOB, [], PodsState.GONE),
        (COMPLETE_JOB, [pod("Succeeded")], PodsState.GONE),
        (None, [pod(deleted=True)], PodsState.ENDING),
        (FAILED_JOB, [pod("Unknown")], PodsState.ENDING),
    ],
)
def test_a_world_is_gone_only_when_no_process_of_it_can_run(job: Any, pods: list[PodView], state: PodsState) -> None:
    assert pods_of_world(1, job, pods).state is state


def test_only_pods_that_nobody_told_to_end_are_named() -> None:
    pods = [pod(name="a"), pod(name="b", deleted=True), pod("Failed", name="c"), pod("Pending", name="d")]
    assert pods_of_world(1, RUNNING_JOB, pods).names == ("a", "d")


def test_our_own_line_is_found_among_what_others_write() -> None:
    noise = "torchrun: signal 15\n{not json}\n" + encode(MESSAGE).decode() + "\nKilled\n"
    seen = pods_of_world(1, FAILED_JOB, [pod("Failed", termination_messages=(noise, "", "OOMKilled"))])
    assert seen.messages == (MESSAGE,)
    assert seen.failed


@pytest.mark.parametrize(
    "reason", ["Evicted", "PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"]
)
def test_an_eviction_is_known_as_such(reason: str) -> None:
    assert pods_of_world(1, FAILED_JOB, [pod("Failed", reason=reason)]).evicted
    assert not pods_of_world(1, FAILED_JOB, [pod("Failed", reason="Error")]).evicted


def test_the_pods_are_counted_as_far_as_they_have_come() -> None:
    job = {**RUNNING_JOB, "spec": {"completions": 4}}
    waiting = pod("Pending", name="c", waiting="ContainerCreating")
    pods = [pod(), waiting, pod("Pending", node="", unschedulable="0/3 nodes are available")]
    seen = pods_of_world(1, job, pods)
    assert (seen.wanted, seen.made, seen.scheduled, seen.running) == (4, 3, 2, 1)
    assert seen.starting == "pod c: ContainerCreating"


def test_the_trouble_of_a_pod_is_told_in_words() -> None:
    def trouble(one: PodView) -> str:
        return pods_of_world(1, RUNNING_JOB, [pod(), one]).trouble

    assert "ImagePullBackOff" in trouble(pod("Pending", waiting="ImagePullBackOff", waiting_message="no such image"))
    assert trouble(pod("Pending", waiting="ContainerCreating")) == ""
    assert (
        trouble(pod("Pending", waiting="ContainerCreating", waiting_message="FailedMount: no path"))
        == "pod demo-1-0 waits: ContainerCreating: correct spec.podTemplate.volumes: FailedMount: no path"
    )
    assert "cannot be scheduled: 0/3 nodes" in trouble(pod("Pending", unschedulable="0/3 nodes are available"))
    assert (
        trouble(pod("Failed", exit_codes=(137,), reason="OOMKilled"))
        == "pod demo-1-0 ended with exit code 137 (OOMKilled)"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"waiting": "ErrImagePull", "waiting_message": "no such image"}, Why.IMAGE_PULL_FAILED),
        ({"waiting": "CreateContainerConfigError", "waiting_message": "no secret"}, Why.CONTAINER_NOT_STARTED),
        ({"unschedulable": "0/3 nodes are available"}, Why.UNSCHEDULABLE),
        ({"waiting": "ContainerCreating"}, None),
        ({"waiting": "ContainerCreating", "waiting_message": "FailedMount: no path"}, Why.CONTAINER_NOT_STARTED),
    ],
)
def test_what_keeps_a_pod_from_starting_has_a_reason(changes: dict[str, Any], reason: Why | None) -> None:
    assert pods_of_world(1, RUNNING_JOB, [pod("Pending", **changes)]).trouble_reason is reason


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('persistentvolumeclaim "corpus" not found. not found', 'persistentvolumeclaim "corpus" not found'),
        (
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No victims found.",
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No victims found",
        ),
    ],
)
def test_nothing_is_told_twice_that_the_scheduler_says_twice(said: str, told: str) -> None:
    assert pods_of_world(1, RUNNING_JOB, [pod("Pending", unschedulable=said)]).trouble.endswith(f"scheduled: {told}")


def test_an_object_of_another_owner_is_not_ours() -> None:
    assert owned_by({"metadata": {"ownerReferences": [{"uid": "a"}, {"uid": "b"}]}}, "b")
    assert not owned_by({"metadata": {"ownerReferences": [{"uid": "a"}]}}, "b")
    assert not owned_by({"metadata": {}}, "b")
