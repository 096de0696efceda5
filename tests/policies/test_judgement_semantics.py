"""What docs/policies.md promises of judgement, one promise a test, where no other file has it."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, Run, accepted, healthy, judged, losses, new_run, record, states
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.decision import decide
from trimtab_policies.evaluation import Engine
from trimtab_policies.explanation import explain
from trimtab_policies.lineage import Appended, Attempt, Lineage
from trimtab_policies.policy import AcceptedPolicy, Mode
from trimtab_policies.reach import LEAST_REACH, retention
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import Reason, State, Verdict

SUSTAINED = {"spike": SPIKE, "forRecords": 3}
LEVELS = {"records": 3, "settleRecords": 5, "lookbackRecords": 40, "relative": 0.1, "absolute": 0.1}
EVERY_DETECTOR = {
    "range": {"range": {"max": 1e300}},
    "spike": {"spike": SPIKE},
    "median": {"spike": {**SPIKE, "baseline": {**SPIKE["baseline"], "statistic": "Median"}}},
    "ratio": {"spike": {"baseline": SPIKE["baseline"], "ratio": 3}},
    "nonFinite": {"nonFinite": {}},
    "divergence": {"divergence": LEVELS},
}


def timed(policy: AcceptedPolicy, records: list[MetricRecord], *, seconds: float) -> list[Verdict]:
    """The first rule's verdict on each record, one every `seconds`."""
    engine = Engine([policy], attempt=1)
    return [engine.judge(one, [policy], now=seconds * one.step)[0] for one in records]


@pytest.mark.parametrize("detector", EVERY_DETECTOR)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_breaches_every_detector_and_enters_no_baseline(detector: str, value: float) -> None:
    policy = accepted(EVERY_DETECTOR[detector])
    curve = healthy(60)
    verdict = judged(policy, losses([*curve, value]))[-1]
    assert (verdict.state, verdict.reason) == (State.FIRING, Reason.NON_FINITE)
    [after] = judged(policy, losses([*curve, value, 2.0]))[-1:]
    [without] = judged(policy, losses([*curve, 2.0]))[-1:]
    assert (after.state, after.threshold) == (without.state, without.threshold)


def test_a_missing_field_is_no_data_and_neither_counts_nor_interrupts() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*healthy(20), 9, None, 9, None, None, 9, 2]))
    assert states(verdicts)[20:] == "PNPNNFH"
    assert verdicts[25].first_bad_step == 21


def test_a_gap_stops_judgement_until_the_missing_record_is_found() -> None:
    policy = accepted({"range": {"max": 5}})
    run = new_run(policy)
    run.append(record(1, loss=2.0))
    assert run.append(record(3, loss=9.0)) is Appended.GAP
    assert run.judge()[0].step == 1
    assert run.append(record(2, loss=2.0)) is Appended.ACCEPTED
    assert run.append(record(3, loss=9.0)) is Appended.ACCEPTED
    assert run.judge()[0].state is State.FIRING


def test_a_duplicate_counts_once() -> None:
    policy = accepted({"range": {"max": 5}, "forRecords": 2})
    run = new_run(policy)
    run.append(record(1, loss=9.0))
    assert run.append(record(1, loss=9.0)) is Appended.DUPLICATE
    assert (run.judge()[0].state, run.judge()[0].streak) == (State.PENDING, 1)


def test_records_out_of_order_are_judged_in_the_order_of_steps() -> None:
    policy = accepted(SUSTAINED)
    curve = losses([*healthy(20), 9, 9, 9])
    arrived = [*curve[:20], curve[22], curve[21], curve[20], curve[21], curve[22]]
    ordered = judged(policy, curve)[-1]
    run = new_run(policy)
    answers = [run.append(one) for one in arrived]
    assert answers[20:] == [Appended.GAP] * 2 + [Appended.ACCEPTED] * 3
    assert run.judge()[0].finding == ordered.finding


def test_a_replayed_step_of_an_older_attempt_is_not_judged_again() -> None:
    policy = accepted({"range": {"max": 5}})
    run = new_run(policy)
    judged(policy, losses([2.0] * 10), run)
    run.rebase(2, 1, 5)
    assert run.append(record(8, attempt=1, loss=9.0)) is Appended.STALE
    assert run.append(record(6, attempt=2, loss=2.0)) is Appended.ACCEPTED
    assert (run.judge()[0].step, run.judge()[0].state) == (6, State.HEALTHY)


def test_for_records_counts_observations_on_a_log_written_every_k_steps() -> None:
    policy = accepted(SUSTAINED)
    engine = Engine([policy], attempt=1)
    curve = [*healthy(20), 9, 9, 9]
    found = [
        engine.judge(record(5 * number, loss=value), [policy], ordinal=number)[0]
        for number, value in enumerate(curve, 1)
    ]
    assert states(found)[20:] == "PPF"
    assert (found[-1].step, found[-1].first_bad_step) == (115, 105)


def test_the_first_step_is_judged_like_any_other() -> None:
    [verdict] = judged(accepted({"range": {"max": 5}}), losses([9.0]))
    assert (verdict.state, verdict.first_bad_step, verdict.flagged_windows) == (State.FIRING, 1, (0, 0))
    [pending] = judged(accepted(SUSTAINED), losses([9.0]))
    assert (pending.state, pending.reason) == (State.PENDING, Reason.WARMING_UP)


def test_a_metric_that_starts_late_fills_its_baseline_from_where_it_starts() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*[None] * 30, *healthy(12), 9, 9, 9]))
    assert states(verdicts) == "N" * 30 + "P" * 10 + "HH" + "PPF"


def test_a_metric_that_vanishes_is_no_data_for_good_and_never_healthy() -> None:
    verdicts = judged(accepted({**SUSTAINED, "action": "Rollback"}), losses([*healthy(20), *[None] * 700]))
    assert set(states(verdicts)[20:]) == {"N"}
    assert decide(verdicts[-1:], guard_mode=Mode.ENFORCE).action is None


def test_a_metric_that_vanishes_in_the_middle_of_a_streak_does_not_fire() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*healthy(20), 9, 9, *[None] * 50]))
    assert "F" not in states(verdicts)


@pytest.mark.parametrize("detector", EVERY_DETECTOR)
def test_a_constant_series_is_healthy(detector: str) -> None:
    for value in (0.0, 2.0, -3.5, 1e-12, 1e12):
        rounded = [value, value * (1 + 2**-50)] * 40
        assert set(states(judged(accepted(EVERY_DETECTOR[detector]), losses(rounded)))) <= {"P", "H"}, value


def bf16(value: float) -> float:
    [bits] = struct.unpack("<I", struct.pack("<f", value))
    [rounded] = struct.unpack("<f", struct.pack("<I", bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000))
    return rounded


@pytest.mark.parametrize("detector", EVERY_DETECTOR)
def test_values_quantised_to_bf16_stay_healthy_and_a_spike_among_them_is_seen(detector: str) -> None:
    curve = [bf16(value) for value in healthy(80)]
    assert len(set(curve)) < 10
    assert set(states(judged(accepted(EVERY_DETECTOR[detector]), losses(curve)))) <= {"P", "H"}
    seen = judged(accepted(EVERY_DETECTOR[detector]), losses([*curve, *[bf16(9.0)] * 3]))[-1]
    assert (seen.state is State.FIRING) == (detector not in {"range", "nonFinite"})


def test_on_a_metric_of_two_neighbouring_bf16_values_the_usual_step_is_no_spike() -> None:
    low, high = bf16(2.0), bf16(2.0156)
    assert low != high
    curve = [low if index % 3 else high for index in range(100)]
    assert set(states(judged(accepted({"spike": {**SPIKE, "sigma": 4}}), losses(curve)))) == {"P", "H"}


@pytest.mark.parametrize("detector", EVERY_DETECTOR)
def test_huge_values_of_either_sign_break_nothing(detector: str) -> None:
    huge = [1.7e308, -1.7e308, 1e300, -1e300, 5e-324, 0.0] * 20
    for verdict in judged(accepted(EVERY_DETECTOR[detector]), losses(huge)):
        assert verdict.state in {State.HEALTHY, State.PENDING, State.FIRING}
        assert explain(verdict)


def test_two_values_at_the_ends_of_the_floats_have_a_deviation() -> None:
    spike = {"baseline": {"records": 2, "minRecords": 2}, "sigma": 1}
    verdicts = judged(accepted({"spike": spike}), losses([1.79e308, -1.79e308, 1.0]))
    assert (states(verdicts), verdicts[-1].threshold) == ("PPH", math.inf)


def test_a_job_resumed_at_step_140749_is_judged_as_one_that_began_there() -> None:
    policy = accepted(SUSTAINED)
    run = new_run(policy, start_step=140_749)
    verdicts = judged(policy, losses([*healthy(20), 9, 9, 9], first=140_750), run)
    assert states(verdicts) == "P" * 10 + "H" * 10 + "PPF"
    assert verdicts[-1].first_bad_step == 140_770


def test_of_attempts_that_overlap_each_step_counts_once_and_from_its_owner() -> None:
    policy = accepted(SUSTAINED)
    lineage = Lineage([Attempt(1), Attempt(2, 1, 20), Attempt(3, 2, 22)])
    run = Run(policy, lineage=lineage)
    offered = [
        *losses([*healthy(20), *[50.0] * 10]),
        *losses([2.1, 1.9, *[60.0] * 10], first=21, attempt=2),
        *losses([9, 9, 9], first=23, attempt=3),
    ]
    for one in offered:
        run.append(one)
    verdict = run.judge()[0]
    assert (verdict.state, verdict.first_bad_step, verdict.attempt) == (State.FIRING, 23, 3)
    assert verdict.threshold == pytest.approx(2.4, abs=0.1)


def test_pending_while_a_baseline_fills_and_pending_never_acts() -> None:
    verdicts = judged(accepted({**SUSTAINED, "action": "Stop"}), losses([2.0] * 5 + [9e9] * 4))
    assert states(verdicts) == "P" * 9
    assert decide(verdicts, guard_mode=Mode.ENFORCE).action is None


@pytest.mark.parametrize(("asked", "action"), [("Ignore", None), ("Pause", Action.PAUSE), ("Breach", Action.ROLLBACK)])
def test_only_an_explicit_breach_leads_from_absence_to_a_rollback(asked: str, action: Action | None) -> None:
    patience = {"noDataFor": "1m"} if asked != "Ignore" else {}
    policy = accepted({"range": {"max": 5}, "onNoData": asked, **patience, "action": "Rollback"})
    verdicts = timed(policy, losses([2.0, 2.0, *[None] * 20]), seconds=10)
    assert decide(verdicts[7 - 1 : 7], guard_mode=Mode.ENFORCE).action is None
    assert decide(verdicts[-1:], guard_mode=Mode.ENFORCE).action is action


def test_an_absence_that_pauses_never_becomes_a_rollback_through_a_composite() -> None:
    paused = {"name": "no-loss", "range": {"max": 5}, "onNoData": "Pause", "noDataFor": "1m", "action": "Pause"}
    other = {"name": "norm", "metric": "grad_norm", "range": {"max": 5}}
    both = {"name": "either", "metric": None, "anyOf": ["no-loss", "norm"], "action": "Rollback"}

    def decided(policy: AcceptedPolicy) -> Action | None:
        engine = Engine([policy], attempt=1)
        verdicts: tuple[Verdict, ...] = ()
        for step in range(1, 20):
            scalars = {"loss": 2.0} if step < 3 else {"grad_norm": 1.0}
            verdicts = engine.judge(record(step, **scalars), [policy], now=10.0 * step)
        return decide(verdicts, guard_mode=Mode.ENFORCE).action

    assert decided(accepted(paused, other, both)) is Action.PAUSE
    assert decided(accepted({**paused, "onNoData": "Breach", "action": "Notify"}, other, both)) is Action.ROLLBACK


def test_absence_is_not_held_against_a_rule_that_is_not_armed() -> None:
    fields = {"onNoData": "Breach", "noDataFor": "1m", "afterSteps": 15}
    verdicts = timed(accepted({"range": {"max": 5}, **fields}), losses([2.0, *[None] * 19]), seconds=10)
    assert states(verdicts) == "P" + "N" * 14 + "F" * 5
    silent = accepted({"metric": None, "stale": {"after": "1m"}, "afterSteps": 15})
    engine = Engine([silent], attempt=1)
    engine.take(record(15), now=0.0)
    [pending] = engine.verdicts([silent], now=90.0)
    assert (pending.state, pending.reason) == (State.PENDING, Reason.NOT_YET_ARMED)
    assert "afterSteps" in explain(pending)
    engine.take(record(16), now=100.0)
    assert engine.verdicts([silent], now=190.0)[0].state is State.FIRING


def test_after_a_resume_the_clock_of_absence_starts_with_the_first_record() -> None:
    policy = accepted({"metric": None, "stale": {"after": "1m"}})
    engine = Engine([policy], attempt=2, start_step=3)
    for step in (1, 2, 3):
        engine.take(record(step), now=float(step))
    engine.take(record(4, attempt=2), now=10_000.0)
    assert engine.verdicts([policy], now=10_059.0)[0].state is State.HEALTHY
    assert engine.verdicts([policy], now=10_060.0)[0].state is State.FIRING


def test_without_a_time_nothing_is_stale_and_nothing_is_fresh() -> None:
    policy = accepted({"metric": None, "stale": {"after": "1m"}})
    engine = Engine([policy], attempt=1)
    assert engine.judge(record(1), [policy])[0].state is State.NO_DATA


def test_after_a_resume_a_divergence_keeps_its_levels_and_begins_its_row_anew() -> None:
    policy = accepted({"divergence": LEVELS, "forRecords": 3})
    run = new_run(policy)
    judged(policy, losses([*[2.0] * 20, 5.0, 5.0, 5.0]), run)
    run.rebase(2, 1, 20)
    verdicts = judged(policy, losses([5.0] * 6, first=21, attempt=2), run)
    assert states(verdicts) == "PP" + "PPFF"
    assert verdicts[-1].first_bad_step == 23


def test_an_element_is_the_same_only_while_the_shape_is() -> None:
    policy = accepted({"metric": "gamma", "reduce": {"longestStreakBelow": 1}, "range": {"max": 1}})
    shapes = [(2, 3), (3, 2), (2, 3), (2, 3)]
    records = [record(step, vectors={"gamma": Vector.pack(shape, [0.5] * 6)}) for step, shape in enumerate(shapes, 1)]
    assert [verdict.observed for verdict in judged(policy, records)] == [1, 1, 1, 2]


def test_of_equal_elements_the_first_stands_for_a_quantile() -> None:
    policy = accepted({"metric": "gamma", "reduce": {"quantile": 0.29}, "range": {"max": 0}})
    values = [float(index) for index in range(100)]
    [verdict] = judged(policy, [record(1, vectors={"gamma": Vector.pack((100,), values)})])
    assert (verdict.observed, verdict.element) == (29.0, (29,))
    [even] = judged(policy, [record(1, vectors={"gamma": Vector.pack((10, 10), [1.0] * 100)})])
    assert even.element == (0, 0)


def test_a_composite_that_wants_a_thousand_records_fires_and_stays_firing() -> None:
    high = {"name": "high", "range": {"max": 5}}
    higher = {"name": "higher", "range": {"max": 6}}
    both = {"name": "both", "metric": None, "allOf": ["high", "higher"], "forRecords": 1000}
    policy = accepted(both, high, higher)
    found = states(judged(policy, losses([9.0] * (1000 + 2 * LEAST_REACH))))
    assert found == "P" * 999 + "F" * (2 * LEAST_REACH + 1)


@given(st.lists(st.sampled_from([2.0, 2.1, 3.0, 9.0, None]), min_size=30, max_size=30), st.integers(0, 700))
@settings(deadline=None, max_examples=10)
def test_a_composites_verdict_does_not_depend_on_where_the_known_history_begins(
    pattern: list[float | None], earlier: int
) -> None:
    spiking = {"name": "spiking", "spike": {"baseline": {"records": 300, "minRecords": 10}, "sigma": 4}}
    high = {"name": "high", "range": {"max": 5}}
    policy = accepted({"name": "either", "metric": None, "anyOf": ["spiking", "high"], "forRecords": 2}, spiking, high)
    reached = retention([policy]) + earlier + 1
    curve = losses(pattern[(index * index) % 30] for index in range(reached))
    first = reached - retention([policy]) + 1
    whole, later = new_run(policy), new_run(policy, first_step=first)
    for one in curve:
        whole.append(one)
    for one in curve[first - 1 :]:
        later.append(one)
    assert [one.finding.first_bad for one in whole.judge()] == [one.finding.first_bad for one in later.judge()]
    assert [one.state for one in whole.judge()] == [one.state for one in later.judge()]


def test_every_healthy_verdict_has_a_sentence_of_its_own() -> None:
    high, norm = {"name": "high", "range": {"max": 5}}, {"name": "norm", "range": {"max": 6}}
    policy = accepted(
        {"name": "all", "metric": None, "allOf": ["high", "norm"]},
        {"name": "any", "metric": None, "anyOf": ["high", "norm"]},
        {"name": "silent", "metric": None, "stale": {"after": "5m"}},
        high,
        norm,
    )
    engine = Engine([policy], attempt=1)
    said = [explain(one) for one in engine.judge(record(1, loss=2.0), [policy], now=0.0)]
    assert said[:3] == [
        "high does not fire (all of high, norm)",
        "none fires (any of high, norm)",
        "a record came within the last 5m",
    ]


ANY_VALUE = st.floats(width=64) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 5e-324, 1.7e308])
ANY_VECTOR = st.sampled_from([(1,), (2, 3), (3, 2), (6,), (2, 2, 2)]).flatmap(
    lambda shape: st.lists(st.floats(width=32), min_size=math.prod(shape), max_size=math.prod(shape)).map(
        lambda values: Vector.pack(shape, values)
    )
)
ANY_RECORD = st.tuples(
    st.dictionaries(st.sampled_from(["loss", "gamma"]), ANY_VALUE),
    st.dictionaries(st.sampled_from(["loss", "gamma"]), ANY_VECTOR, max_size=1),
)


@given(st.lists(ANY_RECORD, max_size=25), st.integers(0, 25))
@settings(deadline=None, max_examples=100)
def test_no_records_of_any_kind_break_the_engine(
    given_records: list[tuple[dict[str, float], dict[str, Vector]]], branch: int
) -> None:
    small = {"baseline": {"records": 4, "minRecords": 2, "maxFreeze": 3}}
    rules = [
        *EVERY_DETECTOR.values(),
        {"spike": {**small, "sigma": 1000}},
        {"spike": {**small, "ratio": 1e6, "floor": 1e308}},
        {"divergence": {**LEVELS, "relative": 1000, "absolute": 1e308, "sigma": 1000}},
        {"metric": "gamma", "reduce": {"longestStreakBelow": 1}, "range": {"max": 1}},
        {"metric": "gamma", "reduce": {"quantile": 1}, "spike": {**small, "sigma": 3}},
        {"metric": "gamma", "reduce": {"mean": True}, "divergence": LEVELS, "onNoData": "Breach", "noDataFor": "3s"},
        {"metric": None, "stale": {"after": "0s"}},
    ]
    composite = {"name": "any", "metric": None, "anyOf": ["rule-0", "rule-1", "rule-9"], "forRecords": 2}
    policy = accepted(*rules, composite)
    engine = Engine([policy], attempt=2, start_step=branch)
    for step, (scalars, vectors) in enumerate(given_records, 1):
        one = record(step, attempt=1 if step <= branch else 2, vectors=vectors, **scalars)
        verdicts = engine.judge(one, [policy], now=float(step * step))
        assert len(verdicts) == len(rules) + 1
        assert all(explain(verdict) for verdict in verdicts)
        decide(verdicts, guard_mode=Mode.ENFORCE)
