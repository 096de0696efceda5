"""What MuonClip costs on an accelerator: its update beside `torch.optim.Muon`, its largest logits beside a step.

`python -m benchmarks.accelerator [--device cuda]`. Without such a device it says so, and measures nothing. The matrices
are those of `benchmarks.optimizer`; the step is forward and backward pass of the reference model in bfloat16.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from trimtab_trainer.model import Transformer, TransformerConfig, self_attention
from trimtab_trainer.model.attention import causal_attention
from trimtab_trainer.processors import processor

from benchmarks.compute import NEVER, plain_attention
from benchmarks.figures import Figure, Measurement, ratios, write
from benchmarks.optimizer import Matrices, logits, random_gradients

ROUNDS, WARM_UP = 20, 5
OPTIMIZER_GOAL, TELEMETRY_GOAL = 0.4, 1.0
MODEL = TransformerConfig(width=1024, layers=8, heads=16, sequence=1024)
BATCH = 8
QUANTILE = 0.99
"""Of the heads' maxima: where a healthy run's threshold lies at least."""


def seconds(act: Callable[[], object], device: torch.device) -> float:
    """Time on the clock until the device has done all of it."""
    _settle(device)
    begun = time.perf_counter()
    act()
    _settle(device)
    return time.perf_counter() - begun


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rounds(variants: Mapping[str, Callable[[], object]], count: int, device: torch.device) -> dict[str, list[float]]:
    """Time every variant once a round, in an order that turns."""
    names, taken = list(variants), {name: list[float]() for name in variants}
    for act in list(variants.values()) * WARM_UP:
        act()
    for number in range(count):
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            taken[name].append(seconds(variants[name], device))
    return taken


def updates(count: int, device: torch.device) -> tuple[Figure, ...]:
    """Whole updates of the same matrices."""
    gradients = {name: gradient.to(device) for name, gradient in random_gradients().items()}
    cold = logits(0).to(device)
    pytorch = Matrices.with_gradients(gradients).pytorch()
    plain, gram = (Matrices.with_gradients(gradients).muon_clip(gram=gram) for gram in (False, True))
    acts = {"pytorch": pytorch.step, "plain": partial(plain.step, cold), "gram": partial(gram.step, cold)}
    taken = rounds(acts, count, device)
    return (
        Figure("update by MuonClip ÷ by torch.optim.Muon", ratios(taken["plain"], taken["pytorch"])),
        Figure("the same in the Gram form", ratios(taken["gram"], taken["pytorch"]), goal=OPTIMIZER_GOAL),
        Figure("update by torch.optim.Muon", tuple(taken["pytorch"]), "s"),
    )


class Step:
    """Forward and backward pass of the reference model on one batch."""

    def __init__(self, device: torch.device, config: TransformerConfig, batch: int) -> None:
        self.model, self._device = Transformer(config).to(device), device
        samples = torch.randint(0, config.vocab_size, (batch, config.sequence + 1), device=device)
        self._tokens, self._targets = samples[:, :-1], samples[:, 1:]

    def __call__(self, threshold: float = NEVER, *, exact: bool = False) -> Tensor:
        """The largest logits [layers, heads]; gradients are made and forgotten."""
        with torch.autocast(self._device.type, torch.bfloat16):
            output = self.model(self._tokens, self._targets, qk_threshold=threshold, exact=exact)
        output.loss.backward()
        self.model.zero_grad(set_to_none=False)
        return output.attention.max_logit.detach()

    def unwatched(self) -> None:
        """The same by attention that reports nothing."""
        self_attention.causal_attention = plain_attention
        try:
            self()
        finally:
            self_attention.causal_attention = causal_attention


def telemetry(count: int, device: torch.device, config: TransformerConfig, batch: int) -> tuple[Figure, ...]:
    """What a step takes longer for knowing the largest logits."""
    step = Step(device, config, batch)
    threshold = float(step(exact=True).float().quantile(QUANTILE))
    acts = {"off": step.unwatched, "closed": step, "near": partial(step, threshold), "exact": partial(step, exact=True)}
    taken = rounds(acts, count, device)
    more = {name: tuple(100 * (one - 1) for one in ratios(taken[name], taken["off"])) for name in acts}
    return (
        Figure("largest logits, τ above all heads, of a step", more["closed"], "%", goal=TELEMETRY_GOAL),
        Figure(f"largest logits, τ above {QUANTILE:.0%} of the heads", more["near"], "%", goal=TELEMETRY_GOAL),
        Figure("largest logits, every head exact", more["exact"], "%"),
        Figure("forward and backward pass without them", tuple(taken["off"]), "s"),
    )


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    device, count = torch.device(arguments.device), int(arguments.rounds)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("accelerator: PyTorch sees no CUDA device here, so nothing was measured")
        return
    write(
        "accelerator",
        Measurement(
            title="On an accelerator",
            about=(
                f"{processor(device)}. Time on the clock until the device is done. Matrices and settings of the "
                f"updates are those above; the step is that of {MODEL.layers} layers of width {MODEL.width} on {BATCH} "
                f"samples of {MODEL.sequence} tokens, in bfloat16."
            ),
            figures=(*updates(count, device), *telemetry(count, device, MODEL, BATCH)),
        ),
    )


if __name__ == "__main__":
    main()
