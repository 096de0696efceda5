"""`divergence`: a climb or a level shift is seen early, and nothing else is taken for one."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from judged_runs import accepted, judged, losses, new_run
from trimtab_policies.detectors.divergence import FEWEST_DISTANCES, DivergenceDetector
from trimtab_policies.explanation import explain
from trimtab_policies.reach import reach
from trimtab_policies.rules import NOISE_RECORDS, Divergence
from trimtab_policies.verdicts import Reason, State

MARGINS: dict[str, Any] = {"relative": 0.2, "absolute": 0.2}


def breaches(values: Sequence[float], **settings: Any) -> list[int]:
    """The indices at which the recent level is too high."""
    detector = DivergenceDetector(Divergence.model_validate(MARGINS | settings))
    return [index for index, value in enumerate(values) if detector.assess(value).breach]


def noisy(count: int, level: float, deviation: float, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [level + noise.gauss(0, deviation) for _ in range(count)]


def test_a_level_shift_is_seen_once_most_of_the_recent_records_have_it() -> None:
    assert breaches([2.0] * 50 + [3.0] * 10)[0] == 52


def test_a_slow_climb_is_seen_within_five_records_of_crossing_the_margin() -> None:
    climb = [2.0] * 50 + [2.0 + 0.01 * step for step in range(1, 100)]
    crossing = next(index for index, value in enumerate(climb) if value > 2.4)
    assert crossing <= breaches(climb)[0] <= crossing + 4


def test_a_lone_spike_moves_no_level_however_high() -> None:
    assert breaches([2.0] * 50 + [1e300, 1e300] + [2.0] * 50) == []


def test_a_falling_loss_never_diverges_however_steep() -> None:
    assert breaches([10 * math.exp(-step / 20) + 2 for step in range(300)]) == []


def test_a_start_that_rises_before_a_level_has_settled_is_not_judged() -> None:
    assert breaches([12.0, 12.1, 44.0, 48.0, 47.0, 40.0, 30.0, 20.0, 15.0, 12.0, 11.0, 10.5]) == []


@pytest.mark.parametrize(
    ("level", "rise"),
    [pytest.param(0.001, 0.15, id="a floor near zero"), pytest.param(5.0, 0.9, id="a high level")],
)
def test_a_rise_must_pass_the_relative_and_the_absolute_margin(level: float, rise: float) -> None:
    assert breaches([level] * 50 + [level + rise] * 50) == []


def test_a_negative_level_is_judged_by_its_size() -> None:
    assert breaches([-2.0] * 50 + [-1.7] * 20) == []
    assert breaches([-2.0] * 50 + [-1.5] * 20)[0] == 52


def test_the_lowest_levels_of_a_noisy_metric_are_no_measure_unless_the_noise_is_counted() -> None:
    values = noisy(3000, 1.2, 0.36)
    assert breaches(values)
    assert breaches(values, sigma=6) == []


def test_a_shift_out_of_the_noise_is_seen_in_a_noisy_metric_too() -> None:
    found = breaches([*noisy(500, 1.2, 0.12), *noisy(20, 3.0, 0.12)], sigma=6)
    assert found
    assert found[0] <= 504


def test_a_trend_is_no_noise() -> None:
    fall = [40.0 - step for step in range(30)]
    assert breaches([*fall, *(10.0 + 0.5 * step for step in range(20))], sigma=6)


def test_noise_that_comes_with_the_rise_hides_nothing_and_lowers_no_level() -> None:
    shifted = [2.0] * 50 + noisy(200, 6.0, 1.0)
    assert breaches(shifted, sigma=6) == list(range(52, 250))


def test_a_metric_that_grows_noisy_before_it_rises_is_judged_by_the_noise_of_its_best_level() -> None:
    calm, noisier = noisy(300, 2.0, 0.02), noisy(200, 2.3, 0.4)
    assert breaches([*calm, *noisier, *noisy(20, 4.0, 0.4)], sigma=6)[0] < 505


def test_a_level_older_than_the_lookback_is_forgotten() -> None:
    slow = [2.0 + 0.001 * step for step in range(1000)]
    assert breaches(slow)
    assert breaches(slow, lookbackRecords=200) == []


def test_a_level_that_stays_is_taken_for_normal_after_the_longest_freeze() -> None:
    policy = accepted({"divergence": MARGINS | {"maxFreeze": 30}})
    verdicts = judged(policy, losses([2.0] * 50 + [3.0] * 60))
    firing = [index for index, verdict in enumerate(verdicts) if verdict.state is State.FIRING]
    assert firing == list(range(52, 82))
    assert verdicts[82].reason is Reason.LEVEL_SHIFT
    assert all(verdict.state is State.HEALTHY for verdict in verdicts[83:])


def test_a_non_finite_value_breaches_and_enters_no_level() -> None:
    values = [2.0] * 30 + [math.nan, math.inf, -math.inf] + [2.0] * 30
    assert breaches(values, sigma=6) == [30, 31, 32]


def test_a_new_attempt_is_judged_by_the_best_level_of_the_surviving_history_at_once() -> None:
    run = new_run(policy := accepted({"divergence": MARGINS}))
    judged(policy, losses([2.0] * 50), run)
    run.rebase(2, 1, 50)
    verdicts = judged(policy, losses([3.0] * 6, first=51, attempt=2), run)
    assert [verdict.state for verdict in verdicts] == [State.PENDING] * 4 + [State.FIRING] * 2


def test_until_the_noise_is_known_nothing_is_compared() -> None:
    policy = accepted({"divergence": MARGINS | {"sigma": 6}})
    verdicts = judged(policy, losses([2.0] * 15 + [9.0] * 15))
    assert {verdict.state for verdict in verdicts[: FEWEST_DISTANCES + 2]} == {State.PENDING}
    assert "the noise is not known yet" in explain(verdicts[15])
    assert verdicts[-1].state is State.FIRING


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([2.0] * 50, 3.0, "the median of the last 5 records, 3, against the best settled level 2 + 20 %"),
        ([0.5] * 50, 1.0, "the best settled level 0.5 + 0.2"),
        ([1.0, 1.2] * 25, 4.0, "times the noise"),
    ],
)
def test_the_explanation_names_both_levels_and_the_margin_that_decided(
    before: list[float], after: float, words: str
) -> None:
    policy = accepted({"divergence": MARGINS | {"sigma": 6}})
    assert words in explain(judged(policy, losses([*before, *[after] * 5]))[-1])


def test_the_default_look_back_fits_into_what_a_job_keeps() -> None:
    plain, counting = (accepted({"divergence": MARGINS | more}).spec.rules[0] for more in ({}, {"sigma": 6}))
    assert reach(counting) == reach(plain) + NOISE_RECORDS
    assert reach(counting) <= 2000


def correlated(count: int, level: float, share: float, lasting: float, seed: int) -> list[float]:
    """A level with noise of `share` of it, of which so much lasts from record to record."""
    noise, deviation, values = random.Random(seed), 0.0, list[float]()
    for _ in range(count):
        deviation = lasting * deviation + noise.gauss(0, share * math.sqrt(1 - lasting**2))
        values.append(level * (1 + deviation))
    return values


@pytest.mark.parametrize(
    ("settings", "lasting", "seed"),
    [
        ({"settleRecords": 5, "sigma": 10}, 0.9, 1),
        ({"records": 20, "settleRecords": 40, "sigma": 4}, 0.9, 1),
        ({"settleRecords": 5, "sigma": 10}, 0.95, 5),
        ({"settleRecords": 5, "sigma": 10}, 0.95, 7),
    ],
)
def test_noise_that_lasts_from_record_to_record_is_no_divergence(
    settings: dict[str, Any], lasting: float, seed: int
) -> None:
    calm = correlated(3_000, 2.0, 0.05, lasting, seed)
    assert breaches(calm, **settings) == []
    assert breaches([*calm, *(2.5 * value for value in calm[:100])], **settings)


def test_the_fall_of_a_young_loss_is_no_noise() -> None:
    falling = [2.0 + 8.0 * math.exp(-index / 150) for index in range(600)]
    assert breaches([*falling, *[1.25 * falling[-1]] * 20], settleRecords=5, sigma=10) == list(range(602, 620))
    assert breaches([*falling[:150], *[1.25 * falling[150]] * 20], settleRecords=5, sigma=10)
