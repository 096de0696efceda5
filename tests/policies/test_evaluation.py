"""One rule and the surviving history give a verdict: state, numbers, first bad step, flagged windows, plain words."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, accepted, healthy, judged, losses, new_run, record, states
from trimtab_policies.explanation import explain
from trimtab_policies.reach import LEAST_REACH, reach, retention
from trimtab_policies.verdicts import Reason, State

SUSTAINED = {"spike": SPIKE, "forRecords": 3}


def test_a_healthy_curve_warms_up_and_stays_healthy() -> None:
    verdicts = judged(accepted(SUSTAINED), losses(healthy(30)))
    assert states(verdicts) == "P" * 10 + "H" * 20
    assert (verdicts[3].reason, explain(verdicts[3])) == (
        Reason.WARMING_UP,
        "loss 1.95; the baseline has 3 of at least 10 records",
    )
    assert verdicts[-1].reason is Reason.WITHIN_LIMITS


def test_a_lone_spike_is_pending_and_three_in_a_row_fire() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*healthy(20), 9, 2, 9, 9, 9, 9, 2]))
    assert states(verdicts)[20:] == "PHPPFFH"


def test_a_firing_verdict_carries_the_numbers_a_person_needs() -> None:
    verdict = judged(accepted(SUSTAINED), losses([*healthy(20), 8, 8.5, 9.31]))[-1]
    assert (verdict.state, verdict.reason, verdict.observed) == (State.FIRING, Reason.SPIKE, 9.31)
    assert (verdict.attempt, verdict.step, verdict.first_bad_step, verdict.streak) == (1, 23, 21, 3)
    assert verdict.flagged_windows == (20, 22)
    assert verdict.comparison is not None
    assert verdict.threshold == pytest.approx(2.407, abs=1e-3)
    assert explain(verdict) == (
        "loss 9.31 > 2.407 (mean 2 + 4 std 0.102 over 20 records), 3 records in a row since step 21"
    )


def test_flagged_windows_are_those_of_the_records_not_their_steps() -> None:
    records = losses([*healthy(20), 9, 9, 9])
    skipping = [*records[:20], *(msgspec.structs.replace(one, window=one.window + 100) for one in records[20:])]
    assert judged(accepted(SUSTAINED), skipping)[-1].flagged_windows == (120, 122)


def test_later_records_of_the_same_breach_keep_the_first_bad_step() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*healthy(20), 9, 9, 9, 9, 9]))
    assert [verdict.first_bad_step for verdict in verdicts[22:]] == [21, 21, 21]
    assert verdicts[-1].flagged_windows == (20, 24)


def test_a_range_fires_and_says_so() -> None:
    verdict = judged(accepted({"metric": "replica_mismatch", "range": {"max": 0}}), [record(1, replica_mismatch=1)])[0]
    assert (verdict.state, verdict.reason, verdict.threshold) == (State.FIRING, Reason.OUT_OF_RANGE, 0)
    assert explain(verdict) == "replica_mismatch 1 > 0, 1 record since step 1"


@pytest.mark.parametrize("detector", [{"spike": SPIKE}, {"range": {"max": 1e300}}, {"range": {"min": -1e300}}])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_fires_for_every_detector_even_on_the_first_record(
    detector: dict[str, object], value: float
) -> None:
    [verdict] = judged(accepted(detector), losses([value]))
    assert (verdict.state, verdict.reason) == (State.FIRING, Reason.NON_FINITE)
    assert explain(verdict) == f"loss {value} is not finite, 1 record since step 1"


def test_an_absent_metric_is_no_data_and_never_healthy() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*healthy(20), None]))
    assert (verdicts[-1].state, verdicts[-1].reason) == (State.NO_DATA, Reason.METRIC_ABSENT)
    assert (verdicts[-1].first_bad_step, verdicts[-1].observed) == (None, None)


def test_streaks_count_observations_of_the_metric_and_not_steps() -> None:
    sparse = [record(step, **({"replica_mismatch": 1.0} if step % 50 == 0 else {})) for step in range(1, 151)]
    verdicts = judged(accepted({"metric": "replica_mismatch", "range": {"max": 0}, "forRecords": 3}), sparse)
    assert [verdict.step for verdict in verdicts if verdict.state is State.FIRING] == [150]
    assert verdicts[-1].first_bad_step == 50


def test_a_withheld_step_counts_like_any_other() -> None:
    records = [*losses(healthy(20)), *(record(step, loss=math.nan, skipped_update=1) for step in (21, 22, 23))]
    assert states(judged(accepted(SUSTAINED), records))[20:] == "PPF"


def test_before_after_steps_nothing_fires_and_no_streak_begins() -> None:
    verdicts = judged(accepted({**SUSTAINED, "afterSteps": 22}), losses([*healthy(20), 9, math.nan, 9, 9, 9]))
    assert states(verdicts)[20:] == "PPPPF"
    assert (verdicts[21].reason, verdicts[21].first_bad_step) == (Reason.NOT_YET_ARMED, None)
    assert verdicts[-1].first_bad_step == 23


def test_after_steps_counts_from_step_0_of_the_run_also_when_it_resumed_later() -> None:
    policy = accepted({"range": {"max": 5}, "afterSteps": 200})
    run = new_run(policy, start_step=140_749)
    assert states(judged(policy, losses([9], first=140_750), run)) == "F"


def test_after_a_resume_streaks_begin_anew_and_the_baseline_is_armed_at_once() -> None:
    policy = accepted(SUSTAINED)
    run = new_run(policy)
    judged(policy, losses([*healthy(20), 9, 9]), run)
    run.rebase(2, 1, 22)
    verdicts = judged(policy, losses([9, 9, 9], first=23, attempt=2), run)
    assert states(verdicts) == "PPF"
    assert (verdicts[-1].first_bad_step, verdicts[-1].attempt) == (23, 2)


def test_a_freeze_does_not_go_on_from_one_attempt_into_the_next() -> None:
    policy = accepted(SUSTAINED)
    run = new_run(policy)
    judged(policy, losses([*healthy(20), *[9.0] * 14]), run)
    run.rebase(2, 1, 34)
    verdicts = judged(policy, losses([9.0] * 16, first=35, attempt=2), run)
    assert states(verdicts) == "PP" + "F" * 13 + "H"


def test_what_a_rollback_undid_enters_no_baseline() -> None:
    policy = accepted(SUSTAINED)
    run = new_run(policy)
    judged(policy, losses([*healthy(20), *[50.0] * 30]), run)
    run.rebase(2, 1, 20)
    verdict = judged(policy, losses([2.0], first=21, attempt=2), run)[-1]
    assert verdict.comparison is not None
    assert verdict.threshold == pytest.approx(2.4, abs=0.1)


def test_grace_steps_hold_the_rule_back_after_each_resume_only() -> None:
    policy = accepted({"range": {"max": 5}, "graceSteps": 2})
    run = new_run(policy)
    assert states(judged(policy, losses([9, 9, 9]), run)) == "PPF"
    run.rebase(2, 1, 3)
    verdicts = judged(policy, losses([9, 9, 9], first=4, attempt=2), run)
    assert states(verdicts) == "PPF"
    assert (verdicts[0].reason, verdicts[-1].first_bad_step) == (Reason.IN_GRACE, 6)


def test_a_freeze_that_outlasts_its_limit_closes_as_a_level_shift() -> None:
    verdicts = judged(accepted(SUSTAINED), losses([*healthy(20), *(value + 3 for value in healthy(20))]))
    assert states(verdicts)[20:] == "PP" + "F" * 13 + "H" * 5
    assert [verdict.reason for verdict in verdicts[35:37]] == [Reason.LEVEL_SHIFT, Reason.WITHIN_LIMITS]
    assert verdicts[35].first_bad_step is None
    assert "rebuilt on the new level" in explain(verdicts[35])


def test_a_second_shift_is_a_new_event_with_its_own_first_step() -> None:
    curve = [*healthy(20), *(value + 3 for value in healthy(15)), *(value + 9 for value in healthy(4))]
    verdicts = judged(accepted(SUSTAINED), losses(curve))
    assert states(verdicts)[35:] == "PPFF"
    assert verdicts[-1].first_bad_step == 36


def test_a_rule_that_needs_as_many_records_as_the_longest_freeze_still_fires() -> None:
    verdicts = judged(accepted({"spike": SPIKE, "forRecords": 15}), losses([*healthy(20), *[9.0] * 15]))
    assert states(verdicts)[33:] == "PF"


def test_an_endless_breach_is_reported_again_once_per_reach_and_not_at_every_record() -> None:
    policy = accepted({"range": {"max": 5}})
    verdicts = judged(policy, losses([9.0] * (6 * LEAST_REACH)))
    assert all(verdict.state is State.FIRING for verdict in verdicts)
    assert sorted({verdict.first_bad_step for verdict in verdicts}) == [1 + LEAST_REACH * block for block in range(5)]


def test_the_reach_covers_two_baselines_a_freeze_and_the_streak() -> None:
    baseline = {"records": 1000, "minRecords": 50, "maxFreeze": 300}
    [rule] = accepted({"spike": {"sigma": 4, "baseline": baseline}, "forRecords": 3}).spec.rules
    assert reach(rule) == 2303
    assert retention([accepted(SUSTAINED), accepted({"spike": {"sigma": 4, "baseline": baseline}})]) == 2 * 2301
    assert retention([]) == 2 * LEAST_REACH


NOISE = st.sampled_from([2.0, 1.9, 2.1, 2.05, 1.85, 2.3, 2.6, 3.0, 9.0, math.nan, None])


@given(st.lists(NOISE, min_size=30, max_size=30), st.integers(0, 1200), st.integers(1100, 3000))
@settings(deadline=None, max_examples=30)
def test_a_verdict_does_not_depend_on_where_the_known_history_begins(
    pattern: list[float | None], earlier: int, reached: int
) -> None:
    policy = accepted(SUSTAINED, {"range": {"max": 5}})
    curve = losses(pattern[(index * index) % 30] for index in range(reached))
    first = max(1, reached - retention([policy]) - earlier + 1)
    whole, later = new_run(policy), new_run(policy, first_step=first)
    for one in curve:
        whole.append(one)
    for one in curve[first - 1 :]:
        later.append(one)
    assert [(one.finding, explain(one)) for one in whole.judge()] == [
        (one.finding, explain(one)) for one in later.judge()
    ]


def test_rules_are_judged_in_the_order_of_policies_and_rules() -> None:
    first, second = accepted({"range": {"max": 5}}, {"range": {"max": 6}}), accepted(SUSTAINED, name="other")
    run = new_run(first, second)
    run.append(record(1, loss=2.0))
    verdicts = run.judge()
    assert [(one.policy.name, one.rule.name) for one in verdicts] == [
        ("guard", "rule-0"),
        ("guard", "rule-1"),
        ("other", "rule-0"),
    ]
