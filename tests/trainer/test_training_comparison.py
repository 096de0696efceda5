"""What is made of the curves of a training comparison: crossings, intervals, the best rate."""

import math

import pytest

from benchmarks.training.comparison import RATES, SEEDS, Best, best_of, tokens_ratio
from benchmarks.training.runs import Curve, OptimizerName, Run


def curve(optimizer: OptimizerName, lr: float, seed: int, losses: list[float]) -> Curve:
    run = Run(optimizer=optimizer, lr=lr, seed=seed, steps=10 * (len(losses) - 1), threshold=20.0)
    return Curve(run=run, steps=[10 * index for index in range(len(losses))], losses=losses, max_logits=[])


def test_a_loss_is_reached_between_two_looks_on_a_straight_line() -> None:
    seen = curve("Muon", 0.01, 1, [5.0, 3.0, 2.0])
    assert seen.steps_to(4.0) == pytest.approx(5.0)
    assert seen.steps_to(2.25) == pytest.approx(17.5)
    assert seen.steps_to(2.0) == pytest.approx(20.0)
    assert seen.steps_to(1.9) is None
    assert seen.steps_to(5.0) == 0.0


def test_a_loss_counts_where_it_is_reached_first() -> None:
    assert curve("Muon", 0.01, 1, [5.0, 3.0, 4.0, 1.0]).steps_to(3.0) == pytest.approx(10.0)
    assert curve("Muon", 0.01, 1, [5.0, math.nan, 1.0]).steps_to(3.0) == pytest.approx(20.0)


def test_the_ratio_is_taken_seed_by_seed_against_the_same_seeds_last_loss() -> None:
    reference = Best("AdamW", 0.001, tuple(curve("AdamW", 0.001, seed, [5.0, 4.0, 3.0]) for seed in SEEDS))
    fast = tuple(
        curve("Muon", 0.01, seed, losses) for seed, losses in zip(SEEDS, ([5, 3, 1], [5, 3, 1], [5, 4, 3]), strict=True)
    )
    interval = tokens_ratio(Best("Muon", 0.01, fast), reference)
    assert interval is not None
    assert interval.ratio == pytest.approx((0.5 * 0.5 * 1.0) ** (1 / 3))
    margin = 4.303 * math.log(2) / 3
    assert interval.low == pytest.approx(interval.ratio * math.exp(-margin), rel=1e-6)
    assert interval.high == pytest.approx(interval.ratio * math.exp(margin), rel=1e-6)


def test_no_ratio_is_made_up_for_a_loss_that_a_seed_never_reached() -> None:
    reference = Best("AdamW", 0.001, tuple(curve("AdamW", 0.001, seed, [5.0, 3.0]) for seed in SEEDS))
    slow = Best("Muon", 0.01, tuple(curve("Muon", 0.01, seed, [5.0, 3.0 + (seed == 3)]) for seed in SEEDS))
    assert tokens_ratio(slow, reference) is None


def test_the_best_rate_has_the_lowest_mean_and_diverged_runs_are_the_worst() -> None:
    low, middle, *_ = RATES["Muon"]
    curves = [curve("Muon", low, seed, [5.0, 2.0]) for seed in SEEDS]
    curves += [curve("Muon", middle, seed, [5.0, 1.0 if seed != 2 else math.nan]) for seed in SEEDS]
    best = best_of(curves, "Muon")
    assert (best.lr, best.loss, best.at_an_end) == (low, 2.0, True)
    assert [one.run.seed for one in best.curves] == list(SEEDS)
