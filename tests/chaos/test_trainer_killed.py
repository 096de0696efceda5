"""Trainer pods that are killed, drained or hang: the next world goes on, bit for bit as if nothing had happened."""

import time
from collections.abc import Iterator

import pytest
from node_processes import TORCHRUN, TRAINER, PodProcess, world_pod
from sandbox_fixture import Cluster
from surviving_history import assert_each_window_once
from training_jobs import CHECKPOINT_ROOT, Namespace, Trail, guard_policy, new_namespace
from trimtab_sandbox.cluster import SandboxInfo
from undisturbed_runs import HEALTHY_STEPS, healthy_job, numbers

pytestmark = pytest.mark.node


JOBS = ("spared", "killed", "drained", "hung")
HANG = {"attempt": 1, "step": 55, "rank": 1, "kind": "hang", "seconds": 600}
"""Rank 1 stands still in its main thread: no process is gone, and no collective fails for a long time."""


@pytest.fixture(scope="module")
def runs(operator: Cluster, sandbox: SandboxInfo) -> Iterator[Namespace]:
    """Four equal jobs at once, completed.

    `killed` lost rank 1's process, and in its second world all of rank 0's pod; a pod of `drained` was deleted with
    its grace; rank 1 of `hung` stood still; nothing happened to `spared`.
    """
    with new_namespace(operator, sandbox, "trainers killed") as namespace:
        jobs = [healthy_job(name) for name in ("spared", "killed", "drained")]
        hung = healthy_job("hung", config={"faults": [HANG]}, progressDeadline="16s")
        namespace.apply(guard_policy(), *jobs, hung)
        namespace.wait_step("killed", 45)
        _process(namespace, "killed", attempt=1, index=1, program=TRAINER).kill()
        struck = {("killed", 2): time.time()}
        namespace.wait_step("drained", 35)
        pod = world_pod(namespace.pods("drained"), attempt=1, index=1)
        namespace.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        struck["drained", 2] = time.time()
        namespace.wait_action("killed", "WorldRestored")
        namespace.wait_step("killed", 95)
        _process(namespace, "killed", attempt=2, index=0, program=TORCHRUN).kill()
        struck["killed", 3] = time.time()
        for job in JOBS:
            namespace.wait_phase(job, "Completed")
        for (job, attempt), since in struck.items():
            began = [record for record in namespace.records(job).values() if record.attempt == attempt]
            seconds = min(began, key=lambda record: record.step).time - since
            print(f"{job}: the first step of attempt {attempt} was published {seconds:.1f} s later")
        yield namespace


@pytest.mark.parametrize("job", ["killed", "drained", "hung"])
def test_the_surviving_losses_are_those_of_a_run_nothing_happened_to(runs: Namespace, job: str) -> None:
    """Bit for bit, each window once, by the word of both ranks."""
    assert numbers(runs, job) == numbers(runs, "spared")
    assert_each_window_once(runs, job, HEALTHY_STEPS)


def test_a_world_that_lost_a_pod_is_followed_by_one_from_the_newest_checkpoint(runs: Namespace) -> None:
    trail = runs.trail("killed")
    assert (trail.state.attempt, trail.state.restarts) == (3, 2)
    _assert_resumed_from_the_newest(trail)


def test_a_drained_world_loses_no_step_and_counts_as_no_restart(runs: Namespace) -> None:
    trail = runs.trail("drained")
    assert [(one.after or {})["reason"] for one in trail.of("WorldLost")] == ["Terminated"]
    assert (trail.state.attempt, trail.state.restarts) == (2, 0)
    _assert_resumed_from_the_newest(trail)
    records = runs.records("drained")
    last = max(step for attempt, step in records if attempt == 1)
    assert min(step for attempt, step in records if attempt == 2) == last + 1
    assert trail.state.attempts[1].branch_step == last


def test_a_hung_rank_is_found_by_its_progress_and_leaves_its_stacks(runs: Namespace) -> None:
    trail = runs.trail("hung")
    (ended,) = trail.of("EndWorld")
    assert "no progress" in (ended.reason or {})["message"]
    assert (trail.state.attempt, trail.state.restarts) == (2, 1)
    _assert_resumed_from_the_newest(trail)
    stacks = dict(_stacks(runs, "hung"))
    assert sorted(stacks) == [0, 1]
    assert b"faults.py" in stacks[1]
    assert b"collectives.py" in stacks[0]


def _process(namespace: Namespace, job: str, *, attempt: int, index: int, program: str) -> PodProcess:
    return PodProcess.of(world_pod(namespace.pods(job), attempt, index), program)


def _assert_resumed_from_the_newest(trail: Trail) -> None:
    """Every later world began with the newest checkpoint that the journal knew of when it was started."""
    starts = [record for record in trail.of("StartWorld") if (record.after or {})["directive"]["attempt"] > 1]
    assert starts
    for start in starts:
        known = [one for one in trail.of("Committed") if one.seq < start.seq]
        newest = max((one.after or {})["checkpoint"]["step"] for one in known)
        assert (start.after or {})["directive"]["restore"]["step"] == newest
        assert newest > 0


def _stacks(namespace: Namespace, job: str) -> list[tuple[int, bytes]]:
    """(rank, stacks) of every stack file."""
    prefix = f"{CHECKPOINT_ROOT}/{namespace.run(job)}/stacks/"
    found = namespace.s3.list_objects_v2(Bucket="training", Prefix=prefix).get("Contents", [])
    stacks: list[tuple[int, bytes]] = []
    for key in (one["Key"] for one in found):
        rank = int(key.rsplit("-r", 1)[1].split("-")[0])
        stacks.append((rank, namespace.s3.get_object(Bucket="training", Key=key)["Body"].read()))
    return stacks
