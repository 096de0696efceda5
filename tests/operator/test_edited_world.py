"""A world that cannot start as its job is written is made anew when the job is edited, and counts for nothing."""

from dataclasses import replace
from typing import Any

import pytest
from operator_objects import training_job
from run_states import checkpoint
from trimtab_contract.directives import Action, Directive
from trimtab_operator.adapters.ports import PodView
from trimtab_operator.commands import Append
from trimtab_operator.kubernetes_view import pods_of_world
from trimtab_operator.observation import Limits, Observation, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import Attempt, JournalAction, RunPhase, RunState, World
from trimtab_operator.workload import TrainingJobView, WorkloadDefaults, world_objects

DEFAULTS = WorkloadDefaults(trainer_image="example/default:1", redis_url="redis://redis.trimtab-system:6379")
NO_IMAGE = "pod demo-1-0 cannot get its image: ImagePullBackOff"


def limits(generation: int) -> Limits:
    return Limits(
        max_rollbacks=3, max_restarts=0, window_seconds=60, certify_steps=40, generation=generation, suspend=False
    )


def state(phase: RunPhase = RunPhase.PENDING, **world: Any) -> RunState:
    return RunState(
        seq=5,
        epoch=1,
        phase=phase,
        attempts=(Attempt(number=1, world=1, parent=None, branch_step=0),),
        world=World(number=1, spec_generation=1, **world),
        directive=Directive(epoch=1, seq=3, world=1, attempt=1, action=Action.RUN),
    )


def next_command(run: RunState, pods: Pods, generation: int = 2) -> Append | None:
    observation = Observation(job="demo", now="2026-01-01T00:00:00+00:00", limits=limits(generation), pods=pods)
    command = advance(run, observation)
    assert command is None or isinstance(command, Append)
    return command


def waiting(trouble: str = NO_IMAGE, pods: PodsState = PodsState.STARTING) -> Pods:
    return Pods(world=1, state=pods, trouble=trouble, names=("demo-1-0", "demo-1-1"))


def test_it_is_told_to_end_when_the_job_is_edited() -> None:
    command = next_command(state(), waiting())
    assert command is not None
    assert command.draft.action is JournalAction.END_WORLD
    assert (command.draft.after or {})["why"] == "Edited"
    assert (command.draft.reason or {})["message"] == "the job was edited before this world could start"


@pytest.mark.parametrize(
    ("run", "pods", "generation"),
    [
        (state(), waiting(), 1),
        (state(), waiting(trouble=""), 2),
        (state(), waiting(pods=PodsState.LIVE), 2),
        (state(RunPhase.WATCHING), waiting(), 2),
    ],
    ids=["not edited", "nothing is wrong", "it runs", "it has trained"],
)
def test_every_other_world_is_left_alone(run: RunState, pods: Pods, generation: int) -> None:
    assert next_command(run, pods, generation) is None


def test_its_end_is_no_fault_and_costs_no_restart() -> None:
    gone = Pods(world=1, state=PodsState.GONE, failed=True)
    lost = next_command(state(told_to_end="Edited"), gone)
    assert lost is not None
    assert (lost.draft.after or {})["reason"] == "Edited"
    again = next_command(state(live=False, lost_reason="Edited"), gone)
    assert again is not None
    assert again.draft.action is JournalAction.START_WORLD
    assert (again.draft.after or {})["counted"] is False


def test_a_suspended_job_goes_on_as_it_was_edited_from_its_newest_checkpoint_and_costs_no_restart() -> None:
    """With another number of nodes, too: a checkpoint fits any number of ranks, and data positions know of none."""
    run = replace(state(RunPhase.WATCHING, live=False, lost_reason="Suspended"), checkpoints=(checkpoint(80),))
    command = next_command(run, Pods(world=1, state=PodsState.GONE), generation=3)
    assert command is not None
    after = command.draft.after or {}
    assert (command.draft.action, after["counted"]) == (JournalAction.START_WORLD, False)
    assert after["generation"] == 3
    assert (after["directive"].world, after["directive"].restore) == (2, checkpoint(80).reference)
    body = training_job(trainer={"numNodes": 3})
    body["metadata"] |= {"uid": "u-1", "generation": 3}
    job = world_objects(TrainingJobView.of(body), DEFAULTS, after["directive"].world, "password").job
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    assert "--nnodes 3" in job["spec"]["template"]["spec"]["containers"][0]["command"][2]


def test_an_image_that_cannot_be_had_is_named_with_its_field() -> None:
    pod = PodView(
        name="demo-1-0",
        uid="u",
        index=0,
        node="n",
        phase="Pending",
        deleted=False,
        ready=False,
        exit_codes=(),
        termination_messages=(),
        waiting="ImagePullBackOff",
        waiting_message='Back-off pulling image "localhost/absent:1"',
        unschedulable="",
        image_id="",
        reason="",
        message="",
    )
    trouble = pods_of_world(1, {"status": {}}, [pod]).trouble
    assert "correct spec.trainer.image" in trouble
    assert "localhost/absent:1" in trouble


def test_one_that_never_spoke_is_told_to_end_for_what_kept_it_from_starting() -> None:
    silent = "no word from the world within the startup deadline of 600 s"
    observation = Observation(
        job="demo", now="2026-01-01T00:00:00+00:00", limits=limits(1), pods=waiting(), hung=silent
    )
    command = advance(state(), observation)
    assert isinstance(command, Append)
    assert (command.draft.reason or {})["message"] == f"{silent}; {NO_IMAGE}"
