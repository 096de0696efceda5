"""Which nodes an incident points at, and that later worlds prefer others without needing any."""

from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from operator_objects import training_job
from run_states import ack, incident, run_state
from trimtab_contract.directives import Ack, AckState, Action, Directive, ReplicaReport
from trimtab_contract.journal import Actor, JournalRecord, plain
from trimtab_operator.adapters.pods import pod_view
from trimtab_operator.commands import Append
from trimtab_operator.journal_fold import fold
from trimtab_operator.kubernetes_view import pods_of_world
from trimtab_operator.observation import Acks, Limits, Observation, PodPlace, Pods, PodsState
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import RunPhase
from trimtab_operator.suspects import KEPT_NODES, avoided, suspects
from trimtab_operator.workload import AVOIDED_WEIGHT, TrainingJobView, WorkloadDefaults, world_objects

PLACES = tuple(PodPlace(index, f"demo-1-{index}-x{index}yz", f"node-{index}", "sha256:1") for index in range(4))
HOSTS = tuple(f"demo-1-{rank // 2}" for rank in range(8))


def held(**changes: Any) -> Ack:
    return ack(AckState.HOLDING, **{"ranks": 8, "hosts": HOSTS, **changes})


def differing(*ranks: int) -> ReplicaReport:
    return ReplicaReport(agree=False, differing=tuple(f"rank {rank}: head.weight" for rank in ranks))


def test_a_rank_outside_the_majority_points_at_its_pod_and_node() -> None:
    (found,) = suspects(held(replicas=differing(5)), PLACES)
    assert (found.rank, found.pod, found.node) == (5, "demo-1-2-x2yz", "node-2")


def test_without_a_majority_either_side_may_be_damaged() -> None:
    two = held(ranks=2, hosts=("demo-1-0", "demo-1-1"), replicas=differing(1))
    assert [one.node for one in suspects(two, PLACES)] == ["node-0", "node-1"]


def test_what_is_not_finite_on_one_rank_points_at_it_and_on_most_at_none() -> None:
    def nonfinite(*ranks: int) -> Ack:
        return held(nonfinite=tuple(f"rank {rank}: 3 elements of head.weight" for rank in ranks))

    assert [one.rank for one in suspects(nonfinite(7), PLACES)] == [7]
    assert suspects(nonfinite(*range(8)), PLACES) == ()


def test_one_pod_is_not_taken_for_another_whose_number_begins_alike() -> None:
    places = (PodPlace(1, "demo-1-1-abc", "node-1", ""), PodPlace(10, "demo-1-10-abc", "node-10", ""))
    report = ReplicaReport(agree=False, differing=("rank 2: w",))
    hosts = ("demo-1-0", "demo-1-1", "demo-1-10")
    (found,) = suspects(held(ranks=3, hosts=hosts, replicas=report), places)
    assert found.node == "node-10"


@pytest.mark.parametrize("text", ["rank x: w", "2 more ranks", "rank 99: w", ""])
def test_words_that_name_no_rank_of_the_world_point_at_no_node(text: str) -> None:
    report = ReplicaReport(agree=False, differing=(text,))
    assert all(not one.node for one in suspects(held(replicas=report), PLACES))


def test_the_newest_suspects_are_avoided_and_so_many_only() -> None:
    assert avoided(("a", "b"), ("a", "", "c")) == ("b", "a", "c")
    assert len(avoided([f"n{n}" for n in range(20)], ["new"])) == KEPT_NODES


def test_pods_say_where_they_run_and_of_which_image() -> None:
    pod = {
        "metadata": {
            "name": "demo-1-0-abc",
            "uid": "u",
            "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        },
        "spec": {"nodeName": "node-0"},
        "status": {"phase": "Running", "containerStatuses": [{"imageID": "repository@sha256:12"}]},
    }
    assert pods_of_world(1, None, (pod_view(pod),)).places == (
        PodPlace(0, "demo-1-0-abc", "node-0", "repository@sha256:12"),
    )


def test_the_suspicion_is_journaled_with_the_hold_and_outlives_the_operator() -> None:
    base = run_state(phase=RunPhase.HOLDING, incident=incident())
    order = Directive(epoch=1, seq=28, world=1, attempt=1, action=Action.HOLD, incident=incident().name)
    state = run_state(phase=RunPhase.HOLDING, incident=base.incident, directive=order)
    told = held(replicas=differing(5), seq=28, step=190)
    limits = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=10, generation=1, suspend=False)
    seen = Observation(
        job="demo",
        now="2026-01-01T00:00:00+00:00",
        limits=limits,
        acks=Acks(latest=told),
        pods=Pods(world=1, state=PodsState.LIVE, places=PLACES),
        judged_step=190,
    )
    command = advance(state, seen)
    assert isinstance(command, Append)
    assert command.draft.action == "Held"
    record = JournalRecord(
        seq=31,
        prev="",
        id="x",
        time="2026-01-01T00:00:00+00:00",
        actor=Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1),
        action=command.draft.action.value,
        incident=command.draft.incident,
        after=plain(command.draft.after),
    )
    assert fold(state, record).suspect_nodes == ("node-2",)


def world_job(body: dict[str, Any], avoid: tuple[str, ...]) -> dict[str, Any]:
    metadata = {"uid": "u", "generation": 1, **body["metadata"]}
    job = TrainingJobView.of({**body, "metadata": metadata})
    return world_objects(job, WorkloadDefaults("image", "redis://redis:6379"), 2, "password", avoid).job


def affinity(body: dict[str, Any], avoid: tuple[str, ...]) -> dict[str, Any]:
    return world_job(body, avoid)["spec"]["template"]["spec"].get("affinity", {})


def test_the_api_server_takes_a_world_that_avoids_several_nodes(api: ControlPlane) -> None:
    namespace = api.create_namespace("avoiding")
    api.apply(world_job(training_job("demo", namespace), ("node-2", "node-5.example")))
    stored = api.kubectl("get", "job", "demo-2", f"-n={namespace}", "-o=jsonpath={..matchFields[*].values[0]}")
    assert stored.split() == ["node-2", "node-5.example"]


def test_the_next_world_prefers_other_nodes_and_requires_none() -> None:
    nodes = affinity(training_job(), ("node-2", "node-5"))["nodeAffinity"]
    assert list(nodes) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    (term,) = nodes["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["weight"] == AVOIDED_WEIGHT
    assert [one["values"] for one in term["preference"]["matchFields"]] == [["node-2"], ["node-5"]]
    assert affinity(training_job(), ()) == {}


def test_the_jobs_own_affinity_stays() -> None:
    own = {
        "podAffinity": {"x": 1},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
        },
    }
    body = training_job()
    body["spec"].setdefault("podTemplate", {})["affinity"] = own
    merged = affinity(body, ("node-2",))
    assert merged["podAffinity"] == own["podAffinity"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert merged["nodeAffinity"][required] == own["nodeAffinity"][required]
    assert [one["weight"] for one in merged["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]] == [
        1,
        AVOIDED_WEIGHT,
    ]
