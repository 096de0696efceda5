"""Guard policies edited, broken and deleted while a job runs: the next record is judged by what is valid then."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from head_starts import HeadStart, head_start
from sandbox_fixture import Cluster
from surviving_history import assert_each_window_once, worlds
from training_jobs import Namespace, guard_policy, prepare_data, training_job
from trimtab_contract.keys import policy_text
from trimtab_sandbox.cluster import SandboxInfo

pytestmark = pytest.mark.node

STEPS = 500
DAMAGE = (420, 424)
SLOW = [{"attempt": 1, "step": step, "rank": 0, "kind": "slow", "seconds": 4} for step in (20, 130, 200, 270, 340)]
"""The job waits a moment at known steps, so that an edit lands well before the next one."""

OBSERVER = {
    "mode": "Observe",
    "rules": [{"name": "any-loss", "metric": "loss", "range": {"max": 0}, "action": "Rollback"}],
}
UNFIT = {
    "rules": [
        {
            "name": "streak",
            "metric": "qk_clip_gamma",
            "reduce": {"longestStreakBelow": 1},
            "range": {"max": 20000},
            "action": "Notify",
        }
    ],
}
"""Passes the API server's schema; only the operator sees that no streak can be so long."""


def _edited(max_loss: float) -> dict[str, Any]:
    policy = guard_policy()
    rule = {"name": "too-high", "metric": "loss", "range": {"max": max_loss}, "forRecords": 3, "action": "Rollback"}
    policy["spec"]["rules"] = [rule | {"afterSteps": 100}]
    return policy


@pytest.fixture(scope="module")
def mistyped(operator: Cluster, sandbox: SandboxInfo) -> Iterator[HeadStart]:
    """A job that stands for a while, with a rule whose metric never comes."""
    policy = guard_policy()
    policy["spec"]["rules"].append({"name": "typo", "metric": "grad_nrom", "range": {"max": 9}, "action": "Notify"})
    slow = [{"attempt": 1, "step": 5, "rank": 0, "kind": "slow", "seconds": 55}]
    job = training_job("typo", prepare_data(), steps=40, config={"faults": slow}, startupDeadline="50s")
    with head_start(operator, sandbox, "mistyped", policy, job) as started:
        yield started


@pytest.mark.usefixtures("mistyped")
def test_edits_take_effect_at_the_next_record_and_nothing_restarts(namespace: Namespace) -> None:
    """One job: edited, refused, broken, deleted; then damaged data, judged by the text that stayed in force."""
    data = prepare_data(damage=[DAMAGE])
    job = training_job("edited", data, steps=STEPS, config={"faults": SLOW})
    job["spec"]["guard"]["policies"].append({"name": "watcher"})
    job["spec"]["startupDeadline"] = "100s"
    namespace.apply(guard_policy(), guard_policy("watcher", **OBSERVER), job)

    # An edit: accepted from the very next record on, its text kept under its hash.
    namespace.wait_step("edited", 19)
    namespace.apply(_edited(4.5))
    trail = namespace.wait_action("edited", "PolicyAccepted", 2)
    first, second = ((one.after or {})["guard"] for one in trail.of("PolicyAccepted"))
    assert (first["from_attempt"], first["from_step"]) == (1, 1)
    assert second["from_attempt"] == 1
    assert 1 < second["from_step"] < 130
    before, after = ({one["name"]: one for one in guard["policies"]} for guard in (first, second))
    assert after["guard"]["generation"] == before["guard"]["generation"] + 1
    assert after["watcher"] == before["watcher"]
    for identity in (*before.values(), *after.values()):
        body = namespace.s3.get_object(Bucket="trimtab-audit", Key=policy_text(identity["hash"]))["Body"].read()
        assert json.loads(body)["rules"]

    # The API server refuses what its schema sees; what only the operator sees leaves the last valid text in force.
    refused = guard_policy()
    refused["spec"]["rules"][0]["forRecords"] = 0
    with pytest.raises(AssertionError, match="forRecords"):
        namespace.apply(refused)
    namespace.wait_step("edited", 129)
    namespace.apply(guard_policy("guard", **UNFIT))
    condition = _condition(namespace, "Guarded", "False")
    assert condition["reason"] == "PolicyInvalid"
    assert "range.max" in condition["message"]
    assert f"generation {after['guard']['generation']} stays in force" in condition["message"]

    # A margin that this job cannot satisfy likewise, with a condition of its own.
    narrow = guard_policy()
    narrow["spec"]["remediation"]["margin"] = 4
    namespace.apply(narrow)
    assert "replicaCheckEvery" in _condition(namespace, "PolicyUnsatisfiable", "True")["message"]

    # Deleted: it goes on judging.
    namespace.cluster.kubectl("delete", "guardpolicy", "guard")
    assert _condition(namespace, "Guarded", "False", "PolicyMissing")["reason"] == "PolicyMissing"
    _condition(namespace, "PolicyUnsatisfiable", "False")
    namespace.wait_phase("edited", "Completed")

    trail = namespace.trail("edited")
    assert len(trail.of("PolicyAccepted")) == 2
    (opened,) = trail.of("IncidentOpened")
    latch = (opened.after or {})["latch"]
    assert latch["rule"] == "too-high"
    assert latch["policy"]["generation"] == after["guard"]["generation"]
    assert latch["policy"]["hash"] == after["guard"]["hash"] == opened.policy_hash
    (incident,) = namespace.items("guardincident")
    assert incident["spec"]["trigger"]["policy"]["generation"] == after["guard"]["generation"]
    assert incident["spec"]["trigger"]["policy"]["hash"] == after["guard"]["hash"]

    # The one that observes wrote down what it would have done, and did nothing.
    notes = [one for one in trail.of("RuleFired") if (one.after or {})["rule"] == "watcher/any-loss"]
    assert (notes[0].after or {})["step"] == 1
    assert {(one.after or {})["would_have"] for one in notes} == {"Rollback"}
    assert {one.policy_hash for one in notes} == {after["watcher"]["hash"]}

    assert worlds(namespace, "edited") == {"1"}
    assert trail.state.world is not None
    assert trail.state.world.number == 1
    (extent,) = trail.of("ExtentFound")
    skip = (extent.after or {})["skip"]
    assert_each_window_once(namespace, "edited", STEPS, range(skip["first"], skip["last"] + 1))


def test_a_rule_on_a_metric_that_never_comes_is_said_with_the_nearest_name(mistyped: HeadStart) -> None:
    """A mistyped metric is no healthy metric; the sentence names the one that was meant."""
    namespace = mistyped()
    condition = _condition(namespace, "MetricMissing", "True", job="typo")
    assert "rule guard/typo" in condition["message"]
    assert "did you mean grad_norm?" in condition["message"]
    namespace.wait_phase("typo", "Completed")


def _condition(namespace: Namespace, kind: str, value: str, reason: str = "", job: str = "edited") -> dict[str, Any]:
    """Wait for a condition of the job."""

    def found(status: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            one
            for one in status.get("conditions", [])
            if (one["type"], one["status"]) == (kind, value) and reason in {"", one["reason"]}
        ]

    return found(namespace.wait(job, f"{kind} {value} {reason}", lambda status: bool(found(status)), 120))[0]
