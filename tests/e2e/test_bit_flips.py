"""A flipped bit in one weight of one rank, on the real node: withheld or caught, rolled back, nothing skipped.

The ranks that stood out are suspects, and a world that follows prefers other nodes; here it finds none, and starts.
"""

from typing import Any

import pytest
from node_processes import world_pod
from surviving_history import assert_each_window_once, losses, usable_checkpoints
from training_jobs import Namespace, Trail, guard_policy, prepare_data, training_job

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

QUERY = "blocks.0.attention.query.weight"
LATE_MLP = "blocks.1.down.weight"
EARLY_MLP = "blocks.0.up.weight"
STEPS = 280
FAULTS: list[dict[str, Any]] = [
    {"attempt": 1, "step": 133, "rank": 1, "kind": "flipBit", "tensor": QUERY, "index": 5, "bit": 30},
    {"attempt": 2, "step": 179, "rank": 1, "kind": "flipBit", "tensor": LATE_MLP, "index": 7, "bit": 30},
    {"attempt": 3, "step": 223, "rank": 0, "kind": "flipBit", "tensor": EARLY_MLP, "index": 11, "bit": 26},
]
"""The second is found by the comparison at step 180, the third by the checkpoint of step 225, which refuses."""
KILL: dict[str, Any] = {"attempt": 4, "step": 264, "rank": 0, "kind": "kill"}
"""Behind the last probation: another world follows."""


def test_flipped_bits_are_rolled_back_without_a_trace_in_what_was_trained(namespace: Namespace) -> None:
    """One run is hit three times; another, beside it, never: both end with the same losses, bit for bit."""
    data = prepare_data()
    healthy = {"replicaCheckEvery": 10}
    struck = training_job("struck", data, steps=STEPS, config={**healthy, "faults": [*FAULTS, KILL]})
    struck["spec"]["checkpoint"]["everySteps"] = 5
    namespace.apply(guard_policy(), struck, training_job("spared", data, steps=STEPS, config=healthy))
    namespace.wait_phase("struck", "Completed", seconds=280)
    namespace.wait_phase("spared", "Completed")

    trail = namespace.trail("struck")
    opened = trail.of("IncidentOpened")
    rules = [(one.reason or {})["rule"] for one in opened]
    assert rules == ["non-finite", "replica-mismatch", "replica-mismatch"]
    assert [(one.after or {})["finding"] for one in trail.of("Diagnosed")] == ["Transient"] * 3
    assert [one.outcome for one in trail.of("IncidentClosed")] == ["Recovered"] * 3
    assert not trail.of("ExtentFound")
    assert trail.state.directive is not None
    assert trail.state.directive.skip == ()

    _assert_suspects_are_avoided(namespace, trail)
    _assert_withheld_before_the_update(namespace, trail)
    _assert_silent_and_caught(namespace, trail)
    _assert_no_mixed_checkpoint(trail)
    assert_each_window_once(namespace, "struck", STEPS)
    assert losses(namespace, "struck") == losses(namespace, "spared")


def _held(trail: Trail, number: int) -> dict[str, Any]:
    record = trail.of("Held")[number]
    return {**(record.reason or {}), **(record.after or {})}


def _assert_suspects_are_avoided(namespace: Namespace, trail: Trail) -> None:
    """Two ranks that differ have no majority: both are named, with their pods and the node that is under both."""
    (node,) = {one["metadata"]["name"] for one in namespace.items("nodes")}
    for number in range(len(FAULTS)):
        suspects = _held(trail, number)["suspects"]
        assert [(one["rank"], one["node"]) for one in suspects] == [(0, node), (1, node)]
        assert all(one["pod"].startswith(f"struck-1-{one['rank']}-") for one in suspects)
    # Three rollbacks later: a world is numbered as its first attempt.
    assert [(one.after or {})["directive"]["world"] for one in trail.of("StartWorld")] == [1, 5]
    for index in (0, 1):
        spec = world_pod(namespace.pods("struck"), attempt=5, index=index)["spec"]
        (preferred,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (elsewhere,) = preferred["preference"]["matchFields"]
        assert (elsewhere["operator"], elsewhere["values"]) == ("NotIn", [node])
        assert spec["nodeName"] == node


def _assert_withheld_before_the_update(namespace: Namespace, trail: Trail) -> None:
    """The query's bit: the step is not finite, no rank updates, and all weights and optimizer state stay finite."""
    held = _held(trail, 0)
    assert held["step"] == 133
    assert held["replicas_agree"] is False
    assert held["differing"] == [f"rank 1: {QUERY}"]
    assert held["nonfinite_state"] == []
    records = namespace.records("struck")
    withheld = records[1, 133].scalars
    assert withheld["skipped_update"] == 1
    assert withheld["nonfinite"] > 0
    assert "update_rms" not in withheld
    assert (1, 134) not in records


def _assert_silent_and_caught(namespace: Namespace, trail: Trail) -> None:
    """The bits in MLP weights: every number stays finite, only the comparison of the replicas shows them."""
    records = namespace.records("struck")
    for number, (fault, tensor, rank) in enumerate(((FAULTS[1], LATE_MLP, 1), (FAULTS[2], EARLY_MLP, 1)), start=1):
        attempt, step = fault["attempt"], fault["step"]
        seen = [one for (of, at), one in records.items() if of == attempt and at >= step]
        assert all(one.scalars["nonfinite"] == 0 and one.scalars["skipped_update"] == 0 for one in seen)
        caught = min(one.step for one in seen if one.scalars.get("replica_mismatch"))
        assert step <= caught <= step + 10
        held = _held(trail, number)
        # Two ranks have no majority: whichever was struck, the other one is compared with rank 0.
        assert any(difference == f"rank {rank}: {tensor}" for difference in held["differing"])
        assert held["nonfinite_state"] == []


def _assert_no_mixed_checkpoint(trail: Trail) -> None:
    for fault in FAULTS:
        assert not [
            (attempt, step)
            for attempt, step in usable_checkpoints(trail)
            if attempt == fault["attempt"] and step >= fault["step"]
        ]
