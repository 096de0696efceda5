"""What it costs to know the largest logit of every head, beside the attention it belongs to.

`python -m benchmarks.max_logits`. The yardstick is one forward and backward pass of the same attention, in the same
round. Heads differ in how large their logits are, as they do in training, and thresholds are quantiles of their maxima.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from trimtab_trainer.max_logits import Logits, measured_max_logit
from trimtab_trainer.model.attention import attention_with_log_sum_exp
from trimtab_trainer.model.visibility import CAUSAL
from trimtab_trainer.optim import LogitRecorder

from benchmarks.figures import Figure, Measurement, ratios, write

ROUNDS = 15
WARM_UP = 2
HOT_GOAL, ANY_GOAL = 0.02, 0.10
QUANTILES = (1.0, 0.99, 0.5, 0.0)
"""Of the heads' maxima: where the threshold lies."""


@dataclass(frozen=True)
class Shape:
    """Of queries, keys and values."""

    batch: int
    heads: int
    tokens: int
    dimension: int
    dtype: torch.dtype

    def __str__(self) -> str:
        """Batch x heads x tokens x dimension, and the type."""
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.batch}x{self.heads}x{self.tokens}x{self.dimension} {kind}"


SHAPES = (
    Shape(2, 8, 512, 64, torch.float32),
    Shape(2, 8, 512, 64, torch.bfloat16),
    Shape(1, 16, 2048, 64, torch.float32),
    Shape(1, 16, 2048, 64, torch.bfloat16),
)


class Bench:
    """Attention on Gaussian queries and keys whose heads have maxima from a few to some hundred."""

    def __init__(self, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(1)
        size = (shape.batch, shape.heads, shape.tokens, shape.dimension)
        query, key, value, self.upstream = (
            torch.randn(size, generator=generator).to(shape.dtype).requires_grad_(position < 3) for position in range(4)
        )
        gains = torch.linspace(math.log(0.5), math.log(40.0), shape.heads).exp()[:, None, None]
        self.query = (query.detach() * gains).to(shape.dtype).requires_grad_()
        self.key, self.value = key, value
        self.logits = Logits(self.query.detach(), key.detach(), CAUSAL, 1 / math.sqrt(shape.dimension))
        self.maxima = self.logits.maxima()
        with torch.no_grad():
            self.log_sum_exp = attention_with_log_sum_exp(self.query, key, value)[1]

    def attention(self) -> tuple[Tensor, ...]:
        """Forward and backward."""
        output, _ = attention_with_log_sum_exp(self.query, self.key, self.value)
        return torch.autograd.grad(output, (self.query, self.key, self.value), self.upstream)

    def gate(self, threshold: float) -> None:
        """What a step adds to it."""
        with torch.no_grad():
            measured_max_logit(self.logits, self.log_sum_exp, threshold, exact=False)

    def forward(self) -> Tensor:
        """The attention of a model that knows nothing of logits."""
        return F.scaled_dot_product_attention(self.query, self.key, self.value, is_causal=True)

    def recorded(self, recorder: LogitRecorder) -> None:
        """The same, and its largest logits."""
        with recorder:
            self.forward()
        recorder.take()

    def observed(self, recorder: LogitRecorder) -> None:
        """The same, with the largest logits from the whole product."""
        self.forward()
        recorder.observe(self.query, self.key, is_causal=True)
        recorder.take()

    def threshold(self, quantile: float) -> float:
        """Just above this quantile of the heads' maxima; below all of them for 0."""
        return -1e9 if quantile == 0 else float(self.maxima.quantile(quantile)) * 1.001


def seconds(act: Callable[[], object]) -> float:
    """Processor time of an act: nothing here waits."""
    begun = time.process_time()
    act()
    return time.process_time() - begun


def figures_of(shape: Shape, count: int) -> tuple[Figure, ...]:
    """The gate at every threshold and the whole product, each ÷ forward and backward pass of the same round."""
    bench = Bench(shape)
    acts: dict[str, Callable[[], object]] = {"attention": bench.attention, "exact": bench.logits.maxima}
    for quantile in QUANTILES:
        acts[str(quantile)] = partial(bench.gate, bench.threshold(quantile))
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(WARM_UP + count):
        for name, act in acts.items():
            spent = seconds(act)
            if number >= WARM_UP:
                taken[name].append(spent)
    share = {name: ratios(times, taken["attention"]) for name, times in taken.items()}
    above = tuple(
        Figure(f"{shape}: largest logits, {_where(quantile)} ÷ attention", share[str(quantile)], goal=_goal(quantile))
        for quantile in QUANTILES
    )
    return (
        *above,
        Figure(f"{shape}: every head exact ÷ attention", share["exact"]),
        Figure(f"{shape}: attention forward and backward", tuple(taken["attention"]), "s"),
    )


def figures_of_recorder(shape: Shape, count: int) -> tuple[Figure, ...]:
    """What `LogitRecorder` adds to a forward pass ÷ forward and backward pass of the same round."""
    bench = Bench(shape)
    acts: dict[str, tuple[Callable[[], None], float | None]] = {}
    for quantile in QUANTILES:
        # To find the threshold is no work of the recorder's.
        recorder = LogitRecorder(1, partial(float, bench.threshold(quantile)))
        acts[_where(quantile)] = partial(bench.recorded, recorder), _goal(quantile)
    acts["every head exact"] = partial(bench.recorded, LogitRecorder(1)), ANY_GOAL
    acts["every head exact by the whole product"] = partial(bench.observed, LogitRecorder(1)), None
    taken: dict[str, list[float]] = {name: [] for name in acts}
    attention: list[float] = []
    for number in range(WARM_UP + count):
        spent = seconds(bench.attention)
        added = {name: _added(bench.forward, act) for name, (act, _) in acts.items()}
        if number >= WARM_UP:
            attention.append(spent)
            for name, one in added.items():
                taken[name].append(one)
    return tuple(
        Figure(f"{shape}: LogitRecorder, {name} ÷ attention", ratios(taken[name], attention), goal=goal)
        for name, (_, goal) in acts.items()
    )


def _added(plain: Callable[[], object], more: Callable[[], object]) -> float:
    """Processor time that `more` takes beyond `plain`, both twice and in turn, so that a drift cancels."""
    order = (plain, more, more, plain)
    first, second, third, last = (seconds(act) for act in order)
    return (second + third - first - last) / 2


def _where(quantile: float) -> str:
    if quantile in {0.0, 1.0}:
        return "τ below all heads" if quantile == 0 else "τ above all heads"
    return f"τ above {quantile:.0%} of the heads"


def _goal(quantile: float) -> float:
    return HOT_GOAL if quantile >= 0.99 else ANY_GOAL


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds: int = parser.parse_args().rounds
    write(
        "max_logits",
        Measurement(
            title="Largest attention logits",
            about=f"The cost of knowing every head's largest logit as far as QK-Clip needs it, over {rounds} rounds in "
            "processor time, on the CPU's flash kernel; batch x heads x tokens x dimension. Heads' maxima run "
            "from a few to some hundred.",
            figures=tuple(
                figure for shape in SHAPES for of in (figures_of, figures_of_recorder) for figure in of(shape, rounds)
            ),
            notes=(
                "A healthy run has τ far above nearly all heads; a threshold below them all happens to nobody.",
                "What LogitRecorder adds to one call of attention is the difference of two forward passes.",
            ),
        ),
    )


if __name__ == "__main__":
    main()
