"""A metric that never comes is named once its time is over, with the name that was probably meant."""

from typing import Any

from judged_runs import accepted
from trimtab_operator.metric_watch import MetricWatch

SEEN = frozenset({"loss", "grad_norm"})
DEADLINE = 60.0


def rule(metric: str) -> dict[str, Any]:
    return {"name": "high", "metric": metric, "range": {"max": 1}, "action": "Notify"}


def test_a_mistyped_metric_is_named_with_the_nearest_one_after_the_deadline() -> None:
    watch, policies = MetricWatch(), [accepted(rule("los"))]
    assert watch.observe(100.0, policies, SEEN, DEADLINE) == ()
    assert watch.observe(159.0, policies, SEEN, DEADLINE) == ()
    (missing,) = watch.observe(160.0, policies, SEEN, DEADLINE)
    assert (missing.policy, missing.metric, missing.rule) == ("GuardPolicy/guard", "los", "guard/high")
    assert "rule guard/high" in missing.message
    assert "a metric named los: did you mean loss?" in missing.message


def test_each_policy_that_waits_for_a_metric_is_named_once() -> None:
    watch = MetricWatch()
    policies = [accepted(rule("los"), {**rule("los"), "name": "higher"}), accepted(rule("los"), name="other")]
    watch.observe(0.0, policies, SEEN, DEADLINE)
    found = watch.observe(60.0, policies, SEEN, DEADLINE)
    assert [(one.policy, one.metric) for one in found] == [("GuardPolicy/guard", "los"), ("GuardPolicy/other", "los")]


def test_nothing_is_missing_before_the_first_record() -> None:
    watch, policies = MetricWatch(), [accepted(rule("los"))]
    assert watch.observe(0.0, policies, frozenset(), DEADLINE) == ()
    assert watch.observe(1000.0, policies, frozenset(), DEADLINE) == ()
    assert watch.observe(1001.0, policies, SEEN, DEADLINE) == ()


def test_a_metric_that_comes_late_or_is_asked_for_no_more_is_forgotten() -> None:
    watch, policies = MetricWatch(), [accepted(rule("z_loss"))]
    watch.observe(0.0, policies, SEEN, DEADLINE)
    assert watch.observe(90.0, policies, SEEN, DEADLINE)
    assert watch.observe(91.0, policies, SEEN | {"z_loss"}, DEADLINE) == ()
    assert watch.observe(92.0, [accepted(rule("loss"))], SEEN, DEADLINE) == ()
    assert watch.observe(93.0, policies, SEEN, DEADLINE) == ()


def test_a_name_that_resembles_nothing_gets_other_advice() -> None:
    watch, policies = MetricWatch(), [accepted(rule("perplexity_of_validation"))]
    watch.observe(0.0, policies, SEEN, DEADLINE)
    (missing,) = watch.observe(60.0, policies, SEEN, DEADLINE)
    assert missing.message.endswith("correct the name, or publish it")
