"""The incremental engine equals a slow, obvious one on random records: every detector, reduction and composite."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from judged_runs import accepted, record
from slow_engine import SlowVerdict, slow_verdicts
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies import reach
from trimtab_policies.evaluation import Engine
from trimtab_policies.explanation import explain
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.verdicts import Verdict

SCALARS = st.sampled_from([2.0, 2.0, 1.9, 2.1, 2.05, 1.85, 2.3, 2.6, 3.0, 9.0, -1.0, 0.0, 1e300, math.nan, math.inf])
ELEMENTS = st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.5, 2.0, 0.1, -3.0, math.nan])
SHAPES = st.sampled_from([(2, 3), (2, 3), (2, 3), (3, 2), (4,), (1,)])


@st.composite
def records(draw: st.DrawFn, *, vectors: bool = False) -> tuple[list[MetricRecord], int, int, list[int], int]:
    """A surviving history of one or two attempts, the attempt, and the step after which it began.

    And the steps behind which people let it go on, and the first for which the policy is in force.
    """
    count = draw(st.integers(1, 32))
    branch = draw(st.none() | st.integers(0, count))
    present = draw(st.sampled_from([0.3, 0.9, 1.0]))
    every = []
    time = 0.0
    for step in range(1, count + 1):
        time += draw(st.sampled_from([1.0, 1.0, 20.0]))
        attempt = 2 if branch is not None and step > branch else 1
        values: dict[str, Any] = {}
        if draw(st.floats(0, 1)) < present:
            values["loss"] = draw(SCALARS)
        if vectors and draw(st.floats(0, 1)) < present:
            shape = draw(SHAPES)
            size = math.prod(shape)
            values["vectors"] = {"gamma": Vector.pack(shape, draw(st.lists(ELEMENTS, min_size=size, max_size=size)))}
        one = record(step, attempt=attempt, **values)
        every.append(MetricRecord(**{name: getattr(one, name) for name in one.__struct_fields__} | {"time": time}))
    attempt, start_step = every[-1].attempt, branch or 0
    resumed = draw(st.lists(st.integers(start_step + 1, count), max_size=2) if start_step < count else st.just([]))
    since = draw(st.just(0) | st.integers(start_step + 1, count + 1))
    return every, attempt, start_step, resumed, since


COUNTING = st.fixed_dictionaries(
    {},
    optional={
        "afterSteps": st.integers(0, 20),
        "graceSteps": st.integers(0, 5),
        "onNoData": st.sampled_from(["Ignore", "Pause", "Breach"]),
    },
).flatmap(
    lambda fields: st.just({**fields, **({"noDataFor": "30s"} if fields.get("onNoData", "Ignore") != "Ignore" else {})})
)
STREAK = st.integers(1, 4).flatmap(
    lambda needed: st.sampled_from([{"forRecords": needed}, {"forRecords": needed, "withinRecords": needed + 2}])
)
BASELINE = st.builds(
    lambda statistic, few, more, freeze: {
        "statistic": statistic,
        "minRecords": few,
        "records": few + more,
        "maxFreeze": freeze,
    },
    st.sampled_from(["Mean", "Median"]),
    st.integers(2, 6),
    st.integers(0, 5),
    st.integers(4, 7),
)
SPIKE = st.one_of(
    st.builds(lambda baseline, sigma: {"baseline": baseline, "sigma": sigma}, BASELINE, st.sampled_from([1, 2.5, 4])),
    st.builds(lambda baseline, ratio: {"baseline": baseline, "ratio": ratio}, BASELINE, st.sampled_from([1.1, 2])),
    st.builds(lambda baseline: {"baseline": baseline, "sigma": 2, "floor": 0.3}, BASELINE),
)
DIVERGENCE = st.builds(
    lambda records, settle, lookback, sigma, freeze: {
        "records": records,
        "settleRecords": settle,
        "lookbackRecords": settle + lookback,
        "relative": 0.1,
        "absolute": 0.05,
        "maxFreeze": freeze,
        **({"sigma": sigma} if sigma else {}),
    },
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 20),
    st.sampled_from([None, None, 0.5]),
    st.integers(4, 7),
)
RANGE = st.sampled_from([{"max": 2.5}, {"min": 1.9}, {"min": 0, "max": 3}, {"min": 2, "max": 2}])
DETECTORS = {
    "range": RANGE,
    "spike": SPIKE,
    "nonFinite": st.just({}),
    "divergence": DIVERGENCE,
}
REDUCTIONS = {
    "max": True,
    "min": True,
    "mean": True,
    "quantile": 0.5,
    "fractionAbove": 0.95,
    "fractionBelow": 0.95,
    "countAbove": 0.95,
    "countBelow": 0.95,
    "longestStreakAbove": 0.95,
    "longestStreakBelow": 0.95,
}


def near_tie(value: float, threshold: float) -> None:
    """Two ways of computing a threshold may round differently: values that close to it are not compared."""
    assume(value == threshold or abs(value - threshold) > 1e-9 * max(1.0, abs(value), abs(threshold)))


def said(verdict: Verdict) -> SlowVerdict:
    pauses = verdict.reason.value == "AbsentTooLong" and verdict.action.value == "Pause"
    return SlowVerdict(
        verdict.state.value,
        verdict.reason.value,
        verdict.observed,
        verdict.element,
        verdict.threshold,
        verdict.streak,
        verdict.first_bad_step,
        pauses,
    )


def close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return left == right or (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-9)


def compare(
    policy: AcceptedPolicy,
    history: Sequence[MetricRecord],
    attempt: int,
    start_step: int,
    resumed: Sequence[int],
    since: int,
) -> None:
    engine = Engine([policy], attempt=attempt, start_step=start_step, resumed=resumed, in_force={policy.hash: since})
    rules = policy.spec.rules
    expected = slow_verdicts(
        rules,
        history,
        attempt=attempt,
        start_step=start_step,
        resumed=resumed,
        since=since,
        near_tie=near_tie,
    )
    for one, slow in zip(history, expected, strict=True):
        for verdict in engine.judge(one, [policy], now=one.time):
            fast, obvious = said(verdict), slow[verdict.rule.name]
            assert explain(verdict)
            words = (fast.state, fast.reason, fast.streak, fast.first_bad)
            assert words == (obvious.state, obvious.reason, obvious.streak, obvious.first_bad), (
                one.step,
                fast,
                obvious,
            )
            if not verdict.rule.components:
                assert fast.element == obvious.element
                assert close(fast.observed, obvious.observed), (one.step, fast, obvious)
                assert close(fast.threshold, obvious.threshold), (one.step, fast, obvious)


SLOWLY = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.fixture(autouse=True)
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judgement begins anew so often that a short history has many origins."""
    monkeypatch.setattr(reach, "LEAST_REACH", 7)


@pytest.mark.parametrize("detector", DETECTORS)
@given(data=st.data())
@SLOWLY
def test_every_detector_says_what_its_plain_reading_says(detector: str, data: st.DataObject) -> None:
    rule = {detector: data.draw(DETECTORS[detector]), **data.draw(STREAK), **data.draw(COUNTING)}
    compare(accepted(rule), *data.draw(records()))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(data=st.data())
@SLOWLY
def test_every_reduction_says_what_its_plain_reading_says(reduction: str, data: st.DataObject) -> None:
    reduce: dict[str, Any] = {reduction: REDUCTIONS[reduction]}
    if reduction.startswith("fraction"):
        reduce["minCount"] = data.draw(st.integers(1, 3))
    limits = data.draw(st.sampled_from([{"max": 0.6}, {"max": 2}, {"min": 0.2}]))
    rule = {"metric": "gamma", "reduce": reduce, "range": limits, **data.draw(STREAK), **data.draw(COUNTING)}
    compare(accepted(rule), *data.draw(records(vectors=True)))


@pytest.mark.parametrize("kind", ["allOf", "anyOf"])
@given(data=st.data())
@SLOWLY
def test_every_composite_says_what_its_plain_reading_says(kind: str, data: st.DataObject) -> None:
    counting = data.draw(COUNTING)
    components: list[dict[str, Any]] = [
        {"name": "high", "range": {"max": 2.2}, **data.draw(STREAK), **data.draw(COUNTING)},
        {"name": "clipped", "metric": "gamma", "reduce": {"longestStreakBelow": 0.95}, "range": {"max": 1}},
        {"name": "spiking", "spike": data.draw(SPIKE), **data.draw(COUNTING)},
        {"name": "a-vector", "metric": "gamma", "range": {"max": 1}},
    ]
    names = [one["name"] for one in components]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=4, unique=True))
    unguarded = {key: value for key, value in counting.items() if key not in ("onNoData", "noDataFor")}
    both = {"name": "both", "metric": None, kind: chosen, **data.draw(STREAK), **unguarded}
    compare(accepted(*components, both), *data.draw(records(vectors=True)))


@given(data=st.data())
@SLOWLY
def test_silence_is_what_its_plain_reading_says(data: st.DataObject) -> None:
    after = data.draw(st.sampled_from(["1s", "21s", "1m"]))
    held_back = {"afterSteps": data.draw(st.integers(0, 5)), "graceSteps": data.draw(st.integers(0, 3))}
    rules = [{"metric": None, "stale": {"after": after}}, {"metric": "loss", "stale": {"after": after}, **held_back}]
    compare(accepted(*rules), *data.draw(records()))
