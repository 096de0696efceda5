"""A spec either becomes a policy or comes back with every error at once, each with its path and what to do."""

from collections.abc import Mapping
from typing import Any

import pytest
from judged_runs import accepted
from trimtab_policies.errors import InvalidPolicy
from trimtab_policies.policy import nearest_name, parse_policy, policy_hash
from trimtab_policies.rules import Action


def rule(**fields: Any) -> dict[str, Any]:
    return {"name": "one", "metric": "loss", "range": {"max": 3}, "action": "Record", **fields}


def spike_rule(*, for_records: int = 1, **baseline: Any) -> dict[str, Any]:
    spike = {"sigma": 4, "baseline": baseline}
    return {"name": "one", "metric": "loss", "spike": spike, "forRecords": for_records, "action": "Record"}


def reduced(reduce: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return rule(metric="qk_clip_gamma", reduce=reduce, **fields)


def errors_of(spec: object) -> dict[str, str]:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(spec)
    return {error.path: error.message for error in caught.value.errors}


def test_a_spec_as_users_write_it_is_accepted_with_its_defaults() -> None:
    spec = parse_policy({"rules": [spike_rule()]})
    [only] = spec.rules
    assert only.spike is not None
    assert (only.spike.baseline.records, only.spike.baseline.min_records, only.spike.baseline.max_freeze) == (
        100,
        50,
        100,
    )
    assert (only.for_records, only.action, only.spike.floor) == (1, Action.RECORD, None)
    assert (spec.remediation.margin, spec.remediation.skip_batches.probe, spec.remediation.learning_rate) == (
        100,
        64,
        None,
    )


@pytest.mark.parametrize(
    ("wrong", "path", "advice"),
    [
        (rule(name="Not_A_Label"), "spec.rules[0].name", "must match"),
        (rule(name="n" * 64), "spec.rules[0].name", "at most 63"),
        (rule(name=""), "spec.rules[0].name", "must"),
        (rule(metric="Loss-1"), "spec.rules[0].metric", "must match"),
        (rule(forRecords=0), "spec.rules[0].forRecords", "at least 1"),
        (rule(forRecords=1001), "spec.rules[0].forRecords", "at most 1000"),
        (rule(forRecords="3"), "spec.rules[0].forRecords", "whole number"),
        (rule(forRecords=True), "spec.rules[0].forRecords", "whole number"),
        (rule(afterSteps=-1), "spec.rules[0].afterSteps", "at least 0"),
        (rule(graceSteps=-1), "spec.rules[0].graceSteps", "at least 0"),
        (rule(action="Rewind"), "spec.rules[0].action", "'Rollback'"),
        (rule(onNoData="Panic"), "spec.rules[0].onNoData", "'Breach'"),
        (rule(noDataFor="5m"), "spec.rules[0].noDataFor", "belongs to onNoData"),
        (rule(noDataFor="five", onNoData="Pause"), "spec.rules[0].noDataFor", "must match"),
        (rule(divergence={}, range=None), "spec.rules[0].divergence.relative", "is required"),
        (rule(spike={"sigma": 4}), "spec.rules[0]", "exactly one detector"),
        (rule(range=None), "spec.rules[0]", "exactly one detector"),
        (rule(range={}), "spec.rules[0].range", "min or max"),
        (rule(range={"min": 3, "max": 2}), "spec.rules[0].range.max", "at least min, which is 3"),
        (rule(range={"max": float("nan")}), "spec.rules[0].range.max", "finite"),
        (rule(spike={"sigma": 0}, range=None), "spec.rules[0].spike.sigma", "greater than 0"),
        (rule(spike={"sigma": 4, "floor": 0}, range=None), "spec.rules[0].spike.floor", "greater than 0"),
        (rule(spike={}, range=None), "spec.rules[0].spike", "exactly one of sigma and ratio"),
        (spike_rule(statistic="Mode"), "spec.rules[0].spike.baseline.statistic", "'Mean' or 'Median'"),
        (spike_rule(records=10_001), "spec.rules[0].spike.baseline.records", "at most 10000"),
        (
            spike_rule(records=20, minRecords=21),
            "spec.rules[0].spike.baseline.minRecords",
            "at most records, which is 20",
        ),
        (spike_rule(records=20), "spec.rules[0].spike.baseline.minRecords", "at most records, which is 20; it is 50"),
        (spike_rule(maxFreeze=0), "spec.rules[0].spike.baseline.maxFreeze", "at least 1"),
        (spike_rule(maxFreeze=2, for_records=3), "spec.rules[0].forRecords", "could never fire"),
        (rule(reduce={"max": True}), "spec.rules[0].reduce", "loss is a scalar"),
        (rule(metric="qk_max_logit"), "spec.rules[0].reduce", "qk_max_logit is a vector"),
        (reduced({"median": 1}), "spec.rules[0].reduce.median", "remove it"),
        (reduced({}), "spec.rules[0].reduce", "exactly one of"),
        (reduced({"max": True, "fractionBelow": 1}), "spec.rules[0].reduce", "max and fractionBelow"),
        (reduced({"max": False}), "spec.rules[0].reduce.max", "must be true"),
        (
            reduced({"max": True, "minCount": 8}),
            "spec.rules[0].reduce.minCount",
            "belongs to fractionAbove and fractionBelow",
        ),
        (reduced({"longestStreakBelow": 1}, range={"max": 20_000}), "spec.rules[0].range.max", "for a streak"),
        (
            rule(action="Rollback", forRecords=60),
            "spec.remediation.skipBatches.probe",
            "forRecords + 8 = 68 of rule one",
        ),
    ],
)
def test_a_wrong_rule_is_refused_with_its_path_and_what_to_do(wrong: dict[str, Any], path: str, advice: str) -> None:
    assert advice in errors_of({"rules": [wrong]})[path]


@pytest.mark.parametrize(
    ("remediation", "path", "advice"),
    [
        ({"margin": 0}, "margin", "at least 1"),
        ({"skipBatches": {"probe": 8}}, "skipBatches.probe", "at least 9"),
        ({"skipBatches": {"before": -1}}, "skipBatches.before", "at least 0"),
        ({"probationSteps": 0}, "probationSteps", "at least 1"),
        ({"learningRate": {"scale": 1.5, "forSteps": 10}}, "learningRate.scale", "less than 1"),
        ({"learningRate": {"scale": 0.5}}, "learningRate.forSteps", "is required"),
        ({"escalate": {"marginFactor": 0.5}}, "escalate.marginFactor", "at least 1"),
        ({"approval": "Manual"}, "approval", "'Automatic' or 'Required'"),
        ({"approvalDeadline": "24h"}, "approvalDeadline", "belongs to approval Required"),
        ({"approval": "Required", "approvalDeadline": "a day"}, "approvalDeadline", "must match"),
        ({"approval": "Required", "approvalDeadline": "0h"}, "approvalDeadline", "longer than zero"),
    ],
)
def test_a_wrong_remediation_is_refused(remediation: dict[str, Any], path: str, advice: str) -> None:
    assert advice in errors_of({"rules": [rule()], "remediation": remediation})[f"spec.remediation.{path}"]


def test_all_errors_come_at_once_also_those_that_span_fields() -> None:
    wrong = {
        "mode": "Off",
        "rules": [
            rule(range={"min": 3, "max": 2}, sigma=4),
            {**spike_rule(records=10, minRecords=20), "metric": "BAD"},
        ],
        "remediation": {"margin": 0},
    }
    assert set(errors_of(wrong)) == {
        "spec.mode",
        "spec.rules[0].sigma",
        "spec.rules[0].range.max",
        "spec.rules[1].metric",
        "spec.rules[1].spike.baseline.minRecords",
        "spec.rules[1].name",
        "spec.remediation.margin",
    }


@pytest.mark.parametrize("spec", [None, [], "rules", 3])
def test_a_spec_that_is_no_object_is_refused(spec: object) -> None:
    assert "must be an object" in errors_of(spec)["spec"]


@pytest.mark.parametrize("spec", [{"rules": "x"}, {"rules": [3]}, {"rules": [{"range": 3, "reduce": [1]}]}, {3: 4}])
def test_nonsense_of_any_shape_is_refused_without_a_crash(spec: object) -> None:
    assert errors_of(spec)


def test_a_policy_has_between_one_and_64_rules() -> None:
    assert errors_of({"rules": []}) == {"spec.rules": "must not be empty"}
    assert errors_of({}) == {"spec.rules": "is required; add it"}
    many = [rule(name=f"rule-{index}") for index in range(65)]
    assert errors_of({"rules": many}) == {"spec.rules": "must have at most 64 items; it has 65"}
    assert len(parse_policy({"rules": many[:64]}).rules) == 64


def test_a_rule_that_never_rolls_back_puts_no_bound_on_the_probe() -> None:
    assert parse_policy({"rules": [rule(action="Notify", forRecords=500)]})


def test_the_hash_is_the_same_however_the_spec_is_written_down() -> None:
    brief = parse_policy({"rules": [rule()]})
    spelled_out = parse_policy({"mode": "Enforce", "rules": [rule(range={"max": 3.0, "min": None}, forRecords=1)]})
    other = parse_policy({"rules": [rule(range={"max": 3.5})]})
    assert policy_hash(brief) == policy_hash(spelled_out) != policy_hash(other)
    assert len(policy_hash(brief)) == 64


def test_an_accepted_policy_carries_the_hash_and_mode_of_its_spec() -> None:
    policy = accepted({"range": {"max": 3}}, mode="Observe")
    assert (policy.hash, policy.mode) == (policy_hash(policy.spec), policy.spec.mode)


@pytest.mark.parametrize(
    ("wrong", "right"), [("los", "loss"), ("gradnorm", "grad_norm"), ("qk_max_logits", "qk_max_logit"), ("zzzz", None)]
)
def test_the_nearest_known_name_is_offered_for_a_metric_never_seen(wrong: str, right: str | None) -> None:
    assert nearest_name(wrong) == right


def test_names_seen_in_records_are_offered_too() -> None:
    assert nearest_name("val_loos", ("val_loss",)) == "val_loss"
