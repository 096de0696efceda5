"""Each detector, value by value."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_runs import healthy
from trimtab_policies.detectors import Assessment
from trimtab_policies.detectors.range import RangeDetector
from trimtab_policies.detectors.spike import SpikeBaseline, SpikeDetector
from trimtab_policies.rules import Baseline, Range, Spike


def spike(records: int = 20, fewest: int = 10, freeze: int = 15, **settings: float) -> SpikeDetector:
    baseline = Baseline.model_validate({"records": records, "minRecords": fewest, "maxFreeze": freeze})
    return SpikeDetector(Spike.model_validate({"sigma": 4.0, **settings}).model_copy(update={"baseline": baseline}))


def baseline_of(assessment: Assessment) -> SpikeBaseline:
    assert isinstance(assessment.comparison, SpikeBaseline)
    return assessment.comparison


@pytest.mark.parametrize(("value", "breach", "threshold"), [(1, True, 2), (2, False, 5), (5, False, 5), (6, True, 5)])
def test_a_range_is_breached_only_outside_its_bounds(value: float, breach: bool, threshold: float) -> None:
    assessment = RangeDetector(Range.model_validate({"min": 2, "max": 5})).assess(value)
    assert (assessment.breach, assessment.comparison.threshold) == (breach, threshold)


@pytest.mark.parametrize("bounds", [{"min": -1e308}, {"max": 1e308}])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_breaches_every_range(bounds: dict[str, float], value: float) -> None:
    assert RangeDetector(Range.model_validate(bounds)).assess(value).breach


def test_a_baseline_that_is_still_filling_judges_nothing() -> None:
    detector = spike()
    assert all(detector.assess(value).warming_up for value in [*healthy(9), 1e6])
    assert not detector.assess(2.0).warming_up


def test_a_spike_is_above_mean_plus_sigma_std_of_the_values_before_it() -> None:
    values = healthy(20)
    mean, std = statistics.fmean(values), statistics.stdev(values)
    for value, breach in [(mean + 4 * std + 1e-9, True), (mean + 4 * std - 1e-9, False), (mean - 100 * std, False)]:
        detector = spike()
        for before in values:
            detector.assess(before)
        assessment = detector.assess(value)
        assert assessment.breach is breach
        assert assessment.comparison.threshold == pytest.approx(mean + 4 * std, rel=1e-12)
        assert baseline_of(assessment).count == 20


def test_with_a_floor_the_value_must_exceed_the_mean_by_it_too() -> None:
    detector = spike(floor=1.5)
    for value in healthy(20):
        detector.assess(value)
    assert [detector.assess(value).breach for value in (3.4, 3.6)] == [False, True]


def test_a_breaching_value_enters_no_baseline() -> None:
    detector = spike()
    for value in healthy(20):
        detector.assess(value)
    before = detector.assess(9.0).comparison
    assert [detector.assess(value).comparison == before for value in (9.0, math.nan, 2.0)] == [True] * 3


def test_a_non_finite_value_breaches_while_the_baseline_fills_and_enters_none() -> None:
    detector = spike()
    assert [detector.assess(value).breach for value in (2.0, math.nan, math.inf)] == [False, True, True]
    baseline = baseline_of(detector.assess(2.0))
    assert (baseline.center, baseline.deviation, baseline.count) == (2.0, 2e-6, 1)


def test_after_a_nan_later_spikes_are_still_seen() -> None:
    detector = spike()
    for value in [*healthy(20), math.nan, *healthy(5)]:
        detector.assess(value)
    assert detector.assess(9.0).breach


def test_a_first_spike_does_not_hide_a_second() -> None:
    detector = spike()
    for value in [*healthy(20), 50.0, 2.0]:
        detector.assess(value)
    assert detector.assess(3.0).breach


def test_after_its_longest_freeze_the_baseline_is_rebuilt_on_the_new_level() -> None:
    detector = spike(freeze=15)
    for value in healthy(20):
        detector.assess(value)
    shifted = [value + 5 for value in healthy(20)]
    assessments = [detector.assess(value) for value in shifted]
    assert [one.breach for one in assessments] == [True] * 15 + [False] * 5
    assert [one.level_shift for one in assessments].index(True) == 15
    assert baseline_of(assessments[15]).center == pytest.approx(statistics.fmean(shifted[:15]))


def test_only_breaches_in_a_row_are_taken_for_a_new_level() -> None:
    detector = spike(freeze=3)
    for value in healthy(20):
        detector.assess(value)
    assessments = [detector.assess(value) for value in (9.0, 9.0, 2.0, 9.0, 9.0)]
    assert [one.breach for one in assessments] == [True, True, False, True, True]
    assert not any(one.level_shift for one in assessments)


def test_a_level_shift_waits_for_a_finite_value() -> None:
    detector = spike(freeze=3)
    for value in [*healthy(20), 9.0, 9.0, 9.0]:
        detector.assess(value)
    assessments = [detector.assess(value) for value in (math.nan, 9.0)]
    assert [one.level_shift for one in assessments] == [False, True]


def test_a_rebuilt_baseline_with_too_few_values_fills_first() -> None:
    detector = spike(freeze=3)
    for value in healthy(20):
        detector.assess(value)
    assessments = [detector.assess(value + 5) for value in healthy(12)]
    assert [one.warming_up for one in assessments] == [False] * 3 + [True] * 7 + [False] * 2


def test_a_run_of_nan_is_never_taken_for_a_new_level() -> None:
    detector = spike(freeze=3)
    for value in healthy(20):
        detector.assess(value)
    assert all(detector.assess(math.nan).breach for _ in range(50))
    assert not detector.assess(2.0).breach


def test_a_new_attempt_ends_a_freeze_and_keeps_the_baseline() -> None:
    detector = spike(freeze=3)
    for value in [*healthy(20), 9.0, 9.0, 9.0]:
        detector.assess(value)
    detector.clear()
    assessment = detector.assess(9.0)
    assert (assessment.breach, assessment.level_shift) == (True, False)


def test_rounding_on_a_constant_metric_is_no_spike_and_a_real_step_is() -> None:
    detector = spike()
    for _ in range(20):
        detector.assess(0.1)
    assert not detector.assess(0.1 * (1 + 1e-7)).breach
    assert detector.assess(0.1001).breach


def test_any_rise_from_constant_zero_is_a_spike() -> None:
    detector = spike()
    for _ in range(20):
        detector.assess(0.0)
    assert (detector.assess(0.0).breach, detector.assess(1.0).breach) == (False, True)


def test_one_huge_value_leaves_no_trace_once_it_has_left_the_window() -> None:
    detector = spike()
    for value in [1e300, *healthy(9), *healthy(20)]:
        detector.assess(value)
    baseline = baseline_of(detector.assess(2.0))
    assert baseline.center == pytest.approx(2.0, abs=0.1)
    assert baseline.deviation < 0.2


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=40))
def test_mean_and_deviation_are_those_of_the_textbook(values: list[float]) -> None:
    detector = spike(records=40, fewest=40)
    for value in values:
        detector.assess(value)
    baseline = baseline_of(detector.assess(math.nan))
    assert baseline.center == pytest.approx(statistics.mean(values), rel=1e-12, abs=1e-30)
    floor = 1e-6 * abs(baseline.center)
    assert baseline.deviation == pytest.approx(max(statistics.stdev(values), floor), rel=1e-9, abs=1e-30)
