"""What the numerics of a step cost, on the demo's model: largest logits, MuonClip, parameter checksum.

One process with one rank's share of the demo's batch, on the demo's text, without any exchange. Variants take turns
within a round and swap their order from round to round, so that whatever else the machine does hits all alike.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from trimtab_trainer.config import TrainerConfig
from trimtab_trainer.data import ByteWindows
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import self_attention
from trimtab_trainer.model.attention import AttentionResult, causal_attention
from trimtab_trainer.optim import clip_gradients, parameter_checksum
from trimtab_trainer.tensors import backpropagate

from benchmarks.demo_run import demo_config, write_corpus
from benchmarks.figures import Figure, Measurement, ratios, repeat, write

RANKS = 2
WARM_UP = 5
TRAINED_STEPS = 60
"""Steps before the logits are measured: fresh weights have logits near zero."""

NEVER, ALWAYS = 1e9, -1e9


def plain_attention(query: Tensor, key: Tensor, value: Tensor, **settings: object) -> AttentionResult:
    """Attention that reports nothing: what a trainer without QK-Clip would run."""
    del settings
    output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    none = torch.zeros(query.shape[1])
    return AttentionResult(output, none, none.bool())


class Bench:
    """The demo's model on one rank's share, trained by whichever optimizer a step is given."""

    def __init__(self, config: TrainerConfig, data: ByteWindows) -> None:
        self.trainee = Trainee(config)
        self.trainee.model.train()
        self.parameters = [parameter for _, parameter in self.trainee.named_parameters()]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._data = data
        self._window = 0

    def gradients(self, threshold: float, *, exact: bool = False) -> Tensor:
        """Forward, backward and clipping on the next window; the largest logits [layers, heads]."""
        samples = self._data.read(self._window)
        self._window += 1
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient.zero_()
        output = self.trainee.model(samples[:, :-1], samples[:, 1:], qk_threshold=threshold, exact=exact)
        backpropagate(output.loss)
        clip_gradients(gradients, self.trainee.config.gradient_clip)
        return output.attention.max_logit

    def step(self, threshold: float, *, exact: bool = False) -> None:
        """One whole step with MuonClip."""
        self.trainee.optimizer.step(self.gradients(threshold, exact=exact))


def seconds(act: Callable[[], object]) -> float:
    """Processor seconds of an act: nothing here waits, and other processes of the machine do not count."""
    begun = time.process_time()
    act()
    return time.process_time() - begun


def rounds(variants: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Time every variant once a round, in an order that turns."""
    names = list(variants)
    for name in names:
        repeat(WARM_UP, lambda act=variants[name]: void(act))
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(count):
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            taken[name].append(seconds(variants[name]))
    return taken


def void(act: Callable[[], object]) -> None:
    """Do it and forget the result."""
    act()


def max_logits(bench: Bench, count: int) -> tuple[Figure, ...]:
    """A step with the largest logits gated (closed, half open), exact, and not looked at."""
    repeat(TRAINED_STEPS, lambda: bench.step(math.inf))
    bounds = bench.gradients(NEVER).flatten()
    half = float(bounds.median())

    def off() -> None:
        self_attention.causal_attention = plain_attention
        try:
            bench.step(NEVER)
        finally:
            self_attention.causal_attention = causal_attention

    taken = rounds(
        {
            "off": off,
            "closed": lambda: bench.step(NEVER),
            "half": lambda: bench.step(half),
            "open": lambda: bench.step(ALWAYS),
            "exact": lambda: bench.step(NEVER, exact=True),
        },
        count,
    )
    return (
        Figure("step with gated max logits, no head near the threshold ÷ step without", _over(taken, "closed")),
        Figure(
            "step with gated max logits, half of the heads above the threshold ÷ step without", _over(taken, "half")
        ),
        Figure("step with gated max logits, all heads above the threshold ÷ step without", _over(taken, "open")),
        Figure("step with all max logits exact ÷ step without", _over(taken, "exact")),
        Figure("step without max logits", tuple(taken["off"]), "s"),
    )


def _over(taken: dict[str, list[float]], name: str) -> tuple[float, ...]:
    return ratios(taken[name], taken["off"])


def optimizers(muon: Bench, adam: Bench, count: int) -> tuple[Figure, ...]:
    """The optimizer's part of a step, MuonClip's and PyTorch's AdamW's, each on a model of its own."""
    settings = adam.trainee.config.optimizer
    adamw: Any = torch.optim.AdamW(adam.parameters, lr=1e-3, betas=(settings.beta1, settings.beta2))
    threshold = settings.qk_clip_threshold or math.inf
    updates: dict[str, list[float]] = {"muon": [], "adamw": []}

    def with_muon() -> None:
        logits = muon.gradients(threshold)
        updates["muon"].append(seconds(lambda: muon.trainee.optimizer.step(logits)))

    def with_adamw() -> None:
        adam.gradients(threshold)
        updates["adamw"].append(seconds(adamw.step))

    taken = rounds({"muon": with_muon, "adamw": with_adamw}, count)
    muon_updates, adamw_updates = updates["muon"][-count:], updates["adamw"][-count:]
    return (
        Figure("step with MuonClip ÷ step with AdamW", ratios(taken["muon"], taken["adamw"])),
        Figure("update by MuonClip ÷ update by AdamW", ratios(muon_updates, adamw_updates)),
        Figure("update by MuonClip ÷ its step", ratios(muon_updates, taken["muon"])),
    )


def checksums(bench: Bench, count: int) -> tuple[Figure, ...]:
    """A replica check's checksum beside a step."""
    threshold = bench.trainee.config.optimizer.qk_clip_threshold or math.inf
    taken = rounds(
        {
            "step": lambda: bench.step(threshold),
            "checksum": lambda: parameter_checksum(bench.trainee.named_parameters()),
        },
        count,
    )
    every = bench.trainee.config.replica_check_every
    part = ratios(taken["checksum"], taken["step"])
    return (
        Figure("parameter checksum ÷ step", part),
        Figure(
            f"parameter checksum every {every} steps, of all step time", tuple(100 * one / every for one in part), "%"
        ),
    )


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    count = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.bin"
        write_corpus(corpus)
        config = demo_config(corpus)
        config = replace(config, data=replace(config.data, path=str(corpus)))
        data = ByteWindows(
            corpus, sequence=config.model.sequence, global_batch=config.global_batch, rank=0, world_size=RANKS
        )
        bench = Bench(config, data)
        figures = (
            *max_logits(bench, count),
            *optimizers(bench, Bench(config, data), count),
            *checksums(bench, count),
        )
        data.close()
    parameters = sum(parameter.numel() for parameter in bench.parameters)
    write(
        "compute",
        Measurement(
            title="Numerics of a step",
            about=(
                f"The demo's model ({parameters:,} parameters) and one of its two ranks' share of the batch, in one "
                "process on one core, without any exchange; processor time. Ratios are taken within one round of steps."
            ),
            figures=figures,
        ),
    )


if __name__ == "__main__":
    main()
