"""What people read of a job while its world starts: what it waits for, in numbers and in the cluster's own words."""

from dataclasses import replace
from typing import Any

import pytest
from operator_objects import training_job
from run_states import ack, incident, run_state
from trimtab_contract.directives import AckState
from trimtab_operator.observation import Acks, Pods, PodsState
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import RunPhase, RunState, World
from trimtab_operator.status import Situation, job_status
from trimtab_operator.workload import TrainingJobView

NO_ROOM = "pod demo-1-1 cannot be scheduled: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
NO_IMAGE = "pod demo-1-1 cannot get its image: ImagePullBackOff: correct spec.trainer.image"


def pods(state: PodsState = PodsState.STARTING, **changes: Any) -> Pods:
    return replace(Pods(world=1, state=state, wanted=2, made=2), **changes)


def shown(
    seen: Pods, heard: AckState | None = None, phase: RunPhase = RunPhase.PENDING, **changes: Any
) -> dict[str, Any]:
    body = training_job()
    body["metadata"] |= {"uid": "u-1", "generation": 1}
    state = run_state(phase=phase, **changes)
    situation = Situation(pods=seen, heard=heard)
    return job_status(TrainingJobView.of(body), state, situation, now="2026-01-01T00:00:00+00:00", before=())


@pytest.mark.parametrize(
    ("seen", "heard", "says"),
    [
        (pods(made=1), None, "1 of 2 pods are made"),
        (pods(scheduled=1, trouble=NO_ROOM, trouble_reason=Reason.UNSCHEDULABLE), None, NO_ROOM),
        (pods(scheduled=1), None, "1 of 2 pods are scheduled, 0 run"),
        (pods(scheduled=2, starting="pod demo-1-0: ContainerCreating"), None, "(pod demo-1-0: ContainerCreating)"),
        (pods(scheduled=2, running=1, trouble=NO_IMAGE), None, f"2 of 2 pods are scheduled, 1 run; {NO_IMAGE}"),
        (pods(PodsState.LIVE, scheduled=2, running=2), None, "all 2 pods run, and nothing was heard of"),
        (pods(PodsState.LIVE, scheduled=2, running=2), AckState.WAITING, "every rank is ready and waits to be told to"),
    ],
)
def test_a_pending_job_says_what_its_world_waits_for(seen: Pods, heard: AckState | None, says: str) -> None:
    status = shown(seen, heard)
    running = next(one for one in status["conditions"] if one["type"] == "Running")
    assert status["phase"] == "Pending"
    assert says in status["message"]
    assert says in running["message"]


@pytest.mark.parametrize("phase", [RunPhase.WATCHING, RunPhase.PROBATION])
@pytest.mark.parametrize("reason", [Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_NOT_STARTED, Reason.UNSCHEDULABLE])
def test_a_run_whose_next_world_cannot_start_is_pending(phase: RunPhase, reason: Reason) -> None:
    """`Watching` beside a world that trains nothing would be no news to anybody."""
    stuck = pods(trouble=NO_IMAGE, trouble_reason=reason)
    found = incident() if phase is RunPhase.PROBATION else None
    assert shown(stuck, phase=phase, incident=found)["phase"] == "Pending"
    assert shown(pods(), phase=phase, incident=found)["phase"] == phase.value


@pytest.mark.parametrize(
    ("seen", "heard", "phase"),
    [
        (pods(PodsState.LIVE, scheduled=2, running=2), AckState.RUNNING, RunPhase.WATCHING),
        (pods(PodsState.LIVE, scheduled=2, running=2), AckState.HOLDING, RunPhase.WATCHING),
        (pods(PodsState.ENDING, made=1, running=1), None, RunPhase.WATCHING),
    ],
)
def test_a_world_that_has_spoken_or_ends_waits_for_nothing(seen: Pods, heard: AckState, phase: RunPhase) -> None:
    assert shown(seen, heard, phase)["message"] is None


def test_a_world_of_a_run_that_trained_before_says_so_too() -> None:
    status = shown(pods(scheduled=1), None, RunPhase.WATCHING, world=World(number=2))
    assert status["message"] == "1 of 2 pods are scheduled, 0 run"


def test_the_word_of_a_world_that_is_gone_is_not_that_of_the_next() -> None:
    acks = Acks().fold("1-0", ack(AckState.RUNNING))
    first: RunState = run_state()
    assert acks.word_of_world(first) is AckState.RUNNING
    assert acks.word_of_world(run_state(world=World(number=2))) is None
