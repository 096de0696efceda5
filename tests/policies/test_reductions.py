"""A vector becomes one number, and a non-finite element is never hidden."""

import math

import pytest
from judged_runs import accepted, judged, new_run, record
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.explanation import explain
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.verdicts import State


def gamma(step: int, *values: float, attempt: int = 1, shape: tuple[int, ...] | None = None) -> MetricRecord:
    return record(step, attempt=attempt, vectors={"qk_clip_gamma": Vector.pack(shape or (len(values),), values)})


def policy(reduce: dict[str, object], bounds: dict[str, float], **rule: object) -> AcceptedPolicy:
    return accepted({"metric": "qk_clip_gamma", "reduce": reduce, "range": bounds, **rule})


def test_max_is_the_largest_element_and_names_its_layer_and_head() -> None:
    [verdict] = judged(policy({"max": True}, {"max": 0.5}), [gamma(1, 0.25, -3, 0.75, 0.5, shape=(2, 2))])
    assert (verdict.state, verdict.observed, verdict.element) == (State.FIRING, 0.75, (1, 0))
    assert explain(verdict) == "max of qk_clip_gamma 0.75 at layer 1 head 0 > 0.5, 1 record since step 1"


def test_fraction_below_counts_elements_strictly_below_the_limit() -> None:
    [verdict] = judged(policy({"fractionBelow": 1}, {"max": 0.6}), [gamma(1, 1, 0.5, 0.5, 1)])
    assert (verdict.observed, verdict.element) == (0.5, None)


def test_fraction_below_is_zero_while_fewer_than_min_count_are_below() -> None:
    rule = policy({"fractionBelow": 1, "minCount": 2}, {"max": 0})
    verdicts = judged(rule, [gamma(1, 0.5, 1, 1, 1), gamma(2, 0.5, 0.5, 1, 1)])
    assert [verdict.observed for verdict in verdicts] == [0, 0.5]
    assert [verdict.state for verdict in verdicts] == [State.HEALTHY, State.FIRING]


def test_the_longest_streak_belongs_to_one_and_the_same_element() -> None:
    rows = [(0.5, 1.0), (1.0, 0.5), (0.5, 1.0), (0.5, 1.0), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0)]
    verdicts = judged(policy({"longestStreakBelow": 1}, {"max": 2}), [gamma(i, *row) for i, row in enumerate(rows, 1)])
    assert [verdict.observed for verdict in verdicts] == [1, 1, 1, 2, 3, 2, 0]
    assert [verdict.element for verdict in verdicts] == [(0,), (1,), (0,), (0,), (0,), (1,), None]
    assert [verdict.state for verdict in verdicts].count(State.FIRING) == 1


def test_a_head_clipped_twenty_records_in_a_row_fires_at_the_twentieth() -> None:
    verdicts = judged(policy({"longestStreakBelow": 1}, {"max": 19}), [gamma(i, 1, 0.9) for i in range(1, 22)])
    assert [verdict.step for verdict in verdicts if verdict.state is State.FIRING] == [20, 21]


def test_a_long_streak_is_counted_in_full_wherever_it_began() -> None:
    rule = policy({"longestStreakBelow": 1}, {"max": 899})
    verdicts = judged(rule, [gamma(step, 1.0 if step <= 777 else 0.9) for step in range(1, 2000)])
    assert next(verdict.step for verdict in verdicts if verdict.state is State.FIRING) == 777 + 900


def test_records_without_the_vector_do_not_end_an_elements_streak() -> None:
    records = [gamma(1, 0.5), record(2), gamma(3, 0.5)]
    verdicts = judged(policy({"longestStreakBelow": 1}, {"max": 1}), records)
    assert [verdict.state for verdict in verdicts] == [State.HEALTHY, State.NO_DATA, State.FIRING]


def test_a_non_finite_vector_ends_every_elements_streak() -> None:
    verdicts = judged(policy({"longestStreakBelow": 1}, {"max": 9}), [gamma(1, 0.5), gamma(2, math.nan), gamma(3, 0.5)])
    assert verdicts[2].observed == 1


def test_a_new_attempt_ends_every_elements_streak() -> None:
    rule = policy({"longestStreakBelow": 1}, {"max": 2})
    run = new_run(rule)
    judged(rule, [gamma(1, 0.5), gamma(2, 0.5)], run)
    run.rebase(2, 1, 2)
    assert [one.observed for one in judged(rule, [gamma(3, 0.5, attempt=2)], run)] == [1]


@pytest.mark.parametrize("reduce", [{"max": True}, {"fractionBelow": 0.1}, {"longestStreakBelow": 0.1}])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_any_non_finite_element_breaches_and_is_named(reduce: dict[str, object], bad: float) -> None:
    [verdict] = judged(policy(reduce, {"max": 100}), [gamma(1, 1, 2, bad, 3, shape=(2, 2))])
    assert (verdict.state, verdict.reason.value, verdict.element) == (State.FIRING, "NonFinite", (1, 0))


def test_a_scalar_rule_on_a_vector_is_an_error_that_says_what_to_do() -> None:
    rule = accepted({"metric": "my_vector", "range": {"max": 1}})
    [verdict] = judged(rule, [record(1, vectors={"my_vector": Vector.pack((1,), [9])})])
    assert (verdict.state, verdict.reason.value) == (State.ERROR, "MetricMismatch")
    assert explain(verdict) == "my_vector is a vector of shape [1]; give the rule a `reduce`"


def test_a_reducing_rule_on_a_scalar_is_an_error_that_says_what_to_do() -> None:
    rule = accepted({"metric": "my_scalar", "reduce": {"max": True}, "range": {"max": 1}})
    [verdict] = judged(rule, [record(1, my_scalar=9)])
    assert (verdict.state, explain(verdict)) == (State.ERROR, "my_scalar is a scalar; take `reduce` out of the rule")
