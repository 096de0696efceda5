"""A log judged: events, incidents, counts, silence, spikes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, accepted, healthy, losses, new_run
from trimtab_policies.backtest import Backtest, LogReport, judge_log
from trimtab_policies.backtest.curves import MOST_BUCKETS
from trimtab_policies.backtest.events import MOST_EVENTS, Ending
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import State

ROLLBACK = {"name": "sustained", "spike": SPIKE, "forRecords": 3, "action": "Rollback"}
RECORD = {"name": "lone", "spike": SPIKE, "action": "Record"}
NOT_FINITE = {"name": "not-finite", "nonFinite": {}, "action": "Rollback"}


def points(values: Iterable[float | None], *, first: int = 1, every: int = 1) -> list[LogPoint]:
    return [
        LogPoint(step=first + index * every, scalars={} if value is None else {"loss": value}, line=index + 1)
        for index, value in enumerate(values)
    ]


def timed(seconds: Sequence[float], **scalars: float) -> list[LogPoint]:
    return [
        LogPoint(step=index + 1, scalars=scalars or {"loss": 2.0}, time=1e9 + moment, line=index + 1)
        for index, moment in enumerate(seconds)
    ]


def report(values: Iterable[float | None], *rules: dict[str, Any], **more: Any) -> LogReport:
    return judge_log([accepted(*rules)], points(values, **more))


def test_a_lone_spike_is_one_event_that_recovered_and_no_incident() -> None:
    found = report([*healthy(60), 9.0, *healthy(20)], ROLLBACK, RECORD)
    (event,) = found.events
    assert (event.rule, event.step, event.records, event.ending, event.ended_step) == (
        "lone",
        61,
        1,
        Ending.RECOVERED,
        62,
    )
    assert found.counts.record == 1
    assert not found.incidents


def test_a_sustained_spike_is_one_incident_with_its_target_and_what_came_after() -> None:
    found = report([*healthy(300), *[9.0] * 5, *healthy(20)], ROLLBACK, RECORD)
    (incident,) = found.incidents
    assert (incident.rule, incident.step, incident.first_bad_step) == ("sustained", 303, 301)
    assert incident.restore_at_most == 201
    assert (incident.ending, incident.ended_step, incident.records_after) == (Ending.RECOVERED, 306, 22)
    assert "3 records in a row since step 301" in incident.sentence
    assert (found.counts.rollback, found.counts.record) == (1, 1)
    assert (found.counts.alarms, found.alarms_per_10000_records) == (1, 10_000 / 325)


def test_two_rules_that_ask_for_a_rollback_at_once_are_one_incident() -> None:
    second = {**ROLLBACK, "name": "second", "forRecords": 4}
    found = report([*healthy(60), *[9.0] * 6, *healthy(20)], ROLLBACK, second)
    assert len(found.events) == 2
    assert found.counts.rollback == 1


def test_an_incident_that_grows_worse_counts_as_the_worse_one() -> None:
    stop = {**ROLLBACK, "name": "stop", "forRecords": 5, "action": "Stop"}
    found = report([*healthy(60), *[9.0] * 8, *healthy(20)], ROLLBACK, stop)
    (incident,) = found.incidents
    assert (incident.action, incident.restore_at_most) == (Action.STOP, None)
    assert (found.counts.stop, found.counts.rollback) == (1, 0)


def test_a_shift_of_level_ends_an_event_as_such() -> None:
    found = report([*healthy(60), *[3.0 + 0.01 * (index % 3) for index in range(60)]], ROLLBACK)
    (event,) = found.events
    assert event.ending is Ending.LEVEL_SHIFT
    assert found.incidents[0].ending is Ending.LEVEL_SHIFT


def test_nan_in_the_loss_fires_at_once_and_lasts_to_the_end() -> None:
    found = report([*healthy(10), *[math.nan] * 40], NOT_FINITE)
    (incident,) = found.incidents
    assert (incident.step, incident.ending, incident.records_after) == (11, Ending.END_OF_LOG, 39)
    assert found.spikes[0].non_finite == 40


def test_records_without_the_metric_neither_end_nor_lengthen_an_event() -> None:
    found = report([*healthy(60), 9.0, 9.0, 9.0, None, None, 9.0, *healthy(5)], ROLLBACK)
    (event,) = found.events
    assert (event.records, event.last_step, event.ended_step) == (2, 66, 67)


def test_a_rule_whose_metric_never_came_is_blind_and_its_nearest_name_is_told() -> None:
    found = judge_log(
        [accepted({"metric": "grad_norm", "range": {"max": 1}}, RECORD)],
        [LogPoint(step=step, scalars={"loss": 1.0, "gradnorm": 9.0}, line=step) for step in range(1, 5)],
    )
    blind, seeing = found.rules
    assert (blind.is_blind, blind.nearest, blind.states[State.NO_DATA]) == (True, "gradnorm", 4)
    assert not seeing.is_blind
    assert not found.is_blind


def test_a_log_in_which_no_rule_finds_its_metric_says_nothing() -> None:
    assert report(healthy(5), {"metric": "nonfinite", "range": {"max": 0}}).is_blind


def test_a_policy_that_observes_is_judged_as_if_it_might_act_and_named() -> None:
    policy = accepted(NOT_FINITE, mode="Observe", name="watcher")
    found = judge_log([policy], points([2.0, math.nan]))
    assert found.counts.rollback == 1
    assert found.observing == ("watcher",)


def test_the_strongest_action_of_several_policies_makes_the_incident() -> None:
    mild = accepted({"name": "mild", "nonFinite": {}, "action": "Pause"}, name="mild")
    strong = accepted({"name": "strong", "nonFinite": {}, "action": "Rollback"}, name="strong")
    found = judge_log([mild, strong], points([2.0, math.nan, 2.0]))
    (incident,) = found.incidents
    assert (incident.policy, incident.action) == ("strong", Action.ROLLBACK)
    assert len(found.events) == 2


def test_for_records_counts_records_on_a_log_of_every_fifth_step() -> None:
    found = report([*healthy(60), 9.0, 9.0, 9.0, *healthy(5)], ROLLBACK, first=5, every=5)
    assert found.incidents[0].step == 5 * 63
    assert found.steps == 5 * 67 + 1


def test_a_streak_does_not_survive_going_back_but_the_baseline_does() -> None:
    log = [*points([*healthy(60), 9.0, 9.0]), *points([9.0, 9.0, *healthy(3), 9.0, 9.0, 9.0], first=60)]
    found = judge_log([accepted(ROLLBACK)], log)
    assert [event.step for event in found.events] == [67]
    assert (found.runs, found.attempts) == (1, 2)


def test_an_event_that_the_log_went_back_from_ends_there() -> None:
    log = [*points([*healthy(60), *[math.nan] * 3]), *points(healthy(10), first=56)]
    found = judge_log([accepted(NOT_FINITE)], log)
    assert found.events[0].ending is Ending.RESUMED
    assert found.incidents[0].records_after == 2 + 10


def test_a_new_run_fills_its_baseline_anew() -> None:
    log = [*points(healthy(60)), *points([20.0 - 0.1 * index for index in range(60)])]
    found = judge_log([accepted(ROLLBACK, RECORD)], log)
    assert not found.events
    assert found.runs == 2


def test_a_gap_breaks_a_row_of_breaches_but_not_the_baseline() -> None:
    log = [*points([*healthy(60), 9.0, 9.0]), *points([9.0, 9.0, *healthy(5)], first=200)]
    found = judge_log([accepted(ROLLBACK, RECORD)], log)
    assert not found.incidents
    assert found.gaps == 1
    assert [event.records for event in found.events] == [4]


def test_a_silence_is_seen_when_the_next_record_comes_and_ends_with_it() -> None:
    stale = {"name": "silent", "metric": None, "stale": {"after": "5m"}, "action": "Notify"}
    found = judge_log([accepted(stale)], timed([0, 60, 120, 1000, 1060]))
    (event,) = found.events
    assert (event.step, event.ended_step, event.ending) == (3, 4, Ending.RECOVERED)
    assert "no record for 880 s" in event.sentence
    assert found.timed


def test_a_log_without_times_says_nothing_about_silence() -> None:
    found = report(healthy(5), {"name": "silent", "metric": None, "stale": {"after": "5m"}, "action": "Notify"})
    assert not found.timed
    assert found.rules[0].is_blind


def test_a_metric_that_vanishes_leads_to_the_action_only_where_absence_was_made_a_breach() -> None:
    watched = {"metric": "grad_norm", "range": {"max": 9}, "noDataFor": "2m", "action": "Rollback"}
    log = [*timed([0, 30], loss=2.0, grad_norm=1.0), *timed([0] * 2 + [60, 90, 120, 150, 180, 210], loss=2.0)[2:]]
    breach = judge_log([accepted({**watched, "onNoData": "Breach"})], log)
    assert breach.incidents[0].action is Action.ROLLBACK
    assert judge_log([accepted({**watched, "onNoData": "Pause"})], log).incidents[0].action is Action.PAUSE
    ignoring = {name: value for name, value in watched.items() if name != "noDataFor"}
    assert not judge_log([accepted(ignoring)], log).events


def test_many_events_are_counted_but_not_all_kept() -> None:
    values = [value for _ in range(MOST_EVENTS + 50) for value in (1.0, math.nan)]
    found = report(values, NOT_FINITE)
    assert found.counts.rollback == MOST_EVENTS + 50
    assert (len(found.events), len(found.incidents)) == (MOST_EVENTS, MOST_EVENTS)
    assert found.events_left_out == 100


def test_spikes_are_counted_by_height_with_their_recovery() -> None:
    found = report([*healthy(100), 4.0, *healthy(50), 3.0, 3.5, 3.0, *healthy(50)], ROLLBACK)
    (loss,) = found.spikes
    assert (loss.spikes, loss.most_records_to_recover, loss.median_records_to_recover) == (2, 3, 1)
    assert loss.at_sigma[4] == 2
    assert loss.at_sigma[50] == 0
    assert [one.step for one in loss.highest] == [101, 152]
    assert loss.highest[0].height == pytest.approx((4.0 - 2.0) / 0.103, rel=0.1)


def test_a_curve_of_a_long_log_is_short_and_keeps_its_highest_value() -> None:
    backtest = Backtest([accepted(RECORD)], curves=True)
    values = healthy(10 * MOST_BUCKETS)
    values[7_777] = 55.0
    for point in points(values):
        backtest.take(point)
    (curve,) = backtest.report().curves
    assert MOST_BUCKETS / 2 <= len(curve.buckets) <= MOST_BUCKETS
    highest = max(curve.buckets, key=lambda bucket: bucket.high or 0)
    assert highest.high == 55.0
    assert highest.position <= 7_778 < highest.position + curve.width
    assert all(bucket.low is not None and bucket.low < 2 for bucket in curve.buckets)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.floats(0, 10), st.sampled_from([math.nan, math.inf, 1e300, 2.0])),
        min_size=1,
        max_size=120,
    )
)
def test_a_log_of_every_step_is_judged_as_the_operator_judges_its_records(values: list[float | None]) -> None:
    policy = accepted(ROLLBACK, RECORD, NOT_FINITE)
    backtest, run = Backtest([policy]), new_run(policy)
    for point, record in zip(points(values), losses(values), strict=True):
        judged = backtest.take(point)
        run.append(record)
        assert judged is not None
        assert [(one.state, one.reason, one.streak, one.first_bad_step) for one in judged.verdicts] == [
            (one.state, one.reason, one.streak, one.first_bad_step) for one in run.judge()
        ]


steps = st.integers(0, 60)
scalars = st.dictionaries(st.sampled_from(["loss", "grad_norm"]), st.floats(allow_nan=True), max_size=2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(LogPoint, step=steps, scalars=scalars, time=st.none() | st.floats(0, 2e9), line=steps)))
def test_every_point_of_any_log_is_judged_or_counted_as_left_out(log: list[LogPoint]) -> None:
    stale = {"name": "silent", "metric": None, "stale": {"after": "5m"}, "action": "Notify"}
    found = judge_log([accepted(ROLLBACK, RECORD, NOT_FINITE, stale)], log)
    assert found.records + sum(found.left_out.values()) == len(log)
    assert sum(found.rules[0].states.values()) == found.records
