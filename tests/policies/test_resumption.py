"""A run that was held and goes on: streaks begin anew there, grace does too, and baselines stay."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from judged_runs import SPIKE, accepted, healthy, losses
from trimtab_policies.evaluation import Engine
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.verdicts import State


def firings(
    policy: AcceptedPolicy, values: Iterable[float], resumed: Collection[int], *, attempt: int = 1
) -> list[int]:
    """The steps at which the policy's last rule fires."""
    engine = Engine([policy], attempt=attempt, resumed=resumed)
    return [one.step for one in losses(values) if engine.judge(one, [policy])[-1].state is State.FIRING]


def above(limit: float, **changes: Any) -> Mapping[str, Any]:
    return {"range": {"max": limit}, "forRecords": 3, **changes}


def test_a_streak_begins_anew_where_the_run_went_on() -> None:
    policy = accepted(above(5))
    values = [2.0, *[9.0] * 9]
    assert firings(policy, values, ()) == [4, 5, 6, 7, 8, 9, 10]
    assert firings(policy, values, {6}) == [4, 5, 6, 9, 10]
    assert firings(policy, values, {4, 6}) == [4, 9, 10]


def test_another_attempts_hold_changes_nothing() -> None:
    policy = accepted(above(5))
    assert firings(policy, [2.0, *[9.0] * 9], {6}, attempt=2) == [4, 5, 6, 7, 8, 9, 10]


def test_a_composite_counts_anew_too() -> None:
    policy = accepted(
        {"name": "high", "range": {"max": 5}},
        {"name": "higher", "range": {"max": 6}},
        {"name": "both", "metric": None, "allOf": ["high", "higher"], "forRecords": 2},
    )
    assert firings(policy, [9.0] * 6, {3}) == [2, 3, 5, 6]


def test_the_baseline_of_a_spike_is_the_one_before_the_hold() -> None:
    policy = accepted({"spike": SPIKE, "forRecords": 2})
    assert firings(policy, [*healthy(20), *[9.0] * 6], {22}) == [22, 24, 25, 26]


def test_grace_steps_count_from_where_the_run_went_on() -> None:
    policy = accepted(above(5, forRecords=1, graceSteps=2))
    assert firings(policy, [9.0] * 8, {5}) == [3, 4, 5, 8]
