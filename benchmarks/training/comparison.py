"""What is run, and what is made of the curves: the best rate of each optimizer, and tokens to the same loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final

from benchmarks.training.runs import TOKENS_PER_STEP, Curve, OptimizerName, Run

SEEDS: Final = (1, 2, 3)
STEPS: Final = 300
THRESHOLD: Final = 20.0
"""Of QK-Clip: low enough that it acts in these short runs at the best rate."""
RATES: Final[Mapping[OptimizerName, tuple[float, ...]]] = {
    "MuonClip": (0.01, 0.02, 0.04, 0.08),
    "Muon": (0.01, 0.02, 0.04, 0.08),
    "AdamW": (0.001, 0.002, 0.004, 0.008),
}
GROWTH_RATE: Final = 0.05
GROWTH_STEPS: Final = 240
GROWTH_THRESHOLD: Final = 100.0
"""The usual threshold, and a rate so high that logits grow past it."""
STUDENT_95: Final = 4.303
"""Two-sided 95 % quantile of Student's t with the two degrees of freedom that three seeds leave."""


def compared_runs() -> list[Run]:
    """Every optimizer at every rate with every seed."""
    return [
        Run(optimizer=optimizer, lr=lr, seed=seed, steps=STEPS, threshold=THRESHOLD)
        for seed in SEEDS
        for optimizer, rates in RATES.items()
        for lr in rates
    ]


def growing_runs() -> list[Run]:
    """Too high a rate, with and without QK-Clip."""
    return [
        Run(optimizer=optimizer, lr=GROWTH_RATE, seed=seed, steps=GROWTH_STEPS, threshold=GROWTH_THRESHOLD)
        for seed in SEEDS
        for optimizer in ("MuonClip", "Muon")
    ]


@dataclass(frozen=True)
class Interval:
    """A ratio: the geometric mean over the seeds, and where it lies with 95 % confidence."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Best:
    """An optimizer at the rate with the lowest mean of last losses."""

    optimizer: OptimizerName
    lr: float
    curves: tuple[Curve, ...]
    """One for each seed, in the order of the seeds."""

    @property
    def loss(self) -> float:
        """The mean last loss."""
        return mean(curve.losses[-1] for curve in self.curves)

    @property
    def at_an_end(self) -> bool:
        """Whether the best rate is the lowest or highest one tried, so that a better one may lie outside."""
        return self.lr in {RATES[self.optimizer][0], RATES[self.optimizer][-1]}


def by_rate(curves: Sequence[Curve]) -> dict[tuple[OptimizerName, float], tuple[Curve, ...]]:
    """The curves of the seeds of each optimizer and rate."""
    found: dict[tuple[OptimizerName, float], list[Curve]] = {}
    for curve in sorted(curves, key=lambda one: one.run.seed):
        found.setdefault((curve.run.optimizer, curve.run.lr), []).append(curve)
    return {key: tuple(group) for key, group in found.items()}


def best_of(curves: Sequence[Curve], optimizer: OptimizerName) -> Best:
    """The rate that is best for an optimizer, by the mean over the seeds; a run that is not finite is the worst."""
    means = {
        lr: mean(_last(curve) for curve in group) for (name, lr), group in by_rate(curves).items() if name == optimizer
    }
    lr = min(means, key=means.__getitem__)
    return Best(optimizer, lr, by_rate(curves)[optimizer, lr])


def tokens_ratio(other: Best, reference: Best) -> Interval | None:
    """Tokens that `other` needs to reach the last loss of `reference`, as a share of the reference's, seed by seed.

    None where a seed never reached it.
    """
    logs: list[float] = []
    for mine, theirs in zip(other.curves, reference.curves, strict=True):
        steps = mine.steps_to(theirs.losses[-1])
        if steps is None:
            return None
        logs.append(math.log(steps / theirs.run.steps))
    margin = STUDENT_95 * stdev(logs) / math.sqrt(len(logs))
    center = mean(logs)
    return Interval(math.exp(center), math.exp(center - margin), math.exp(center + margin))


def tokens(step: float) -> float:
    """How many bytes were trained on after a step."""
    return step * TOKENS_PER_STEP


def _last(curve: Curve) -> float:
    return curve.losses[-1] if math.isfinite(curve.losses[-1]) else math.inf
