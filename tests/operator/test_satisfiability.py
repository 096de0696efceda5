"""What a policy asks of a job and cannot get is named with both fields."""

from typing import Any

import pytest
from judged_runs import accepted
from trimtab_operator.satisfiability import unsatisfiable
from trimtab_policies.policy import GuardPolicySpec, parse_policy

SPIKE: dict[str, Any] = {"name": "spike", "metric": "loss", "spike": {"sigma": 4}, "action": "Rollback"}


def policy(margin: int = 50, **rule: Any) -> GuardPolicySpec:
    return parse_policy({"rules": [{**SPIKE, **rule}], "remediation": {"margin": margin}})


def test_a_job_with_the_defaults_satisfies_the_default_margin() -> None:
    assert unsatisfiable(policy(), {}) == ()


@pytest.mark.parametrize("config", [{}, {"replicaCheckEvery": 50}, {"replicaCheckEvery": "50"}])
def test_a_margin_below_the_distance_of_two_comparisons_is_unsatisfiable(config: dict[str, Any]) -> None:
    (sentence,) = unsatisfiable(policy(49), config)
    assert "spec.remediation.margin is 49" in sentence
    assert "spec.trainer.config.replicaCheckEvery, which is 50" in sentence


def test_a_policy_that_never_rolls_back_needs_no_margin() -> None:
    assert unsatisfiable(policy(1, action="Notify"), {}) == ()


def test_a_rule_that_looks_back_further_than_records_are_kept_is_unsatisfiable() -> None:
    baseline = {"records": 800, "minRecords": 50, "maxFreeze": 600}
    longer = policy(spike={"sigma": 4, "baseline": baseline})
    (sentence,) = unsatisfiable(longer, {})
    assert "rule spike looks back over 2201 records" in sentence
    assert "telemetry.streamRecords = 2000" in sentence
    assert unsatisfiable(longer, {"telemetry": {"streamRecords": 2201}}) == ()


def test_all_problems_are_said_at_once() -> None:
    baseline = {"records": 800, "minRecords": 50, "maxFreeze": 600}
    assert len(unsatisfiable(policy(5, spike={"sigma": 4, "baseline": baseline}), {})) == 2


def test_an_accepted_policy_is_the_same_as_its_spec() -> None:
    assert unsatisfiable(accepted(SPIKE).spec, {"replicaCheckEvery": 10}) == ()
