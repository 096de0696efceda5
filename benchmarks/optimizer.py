"""What an update costs beside `torch.optim.Muon`: 50 million parameters in 84 matrices.

`python -m benchmarks.optimizer`. All take the same gradients, coefficients, type of products (bfloat16) and scale, turn
by turn within a round. The matrices are those of 12 layers of width 512: query, key, value, output, and a gated MLP.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from trimtab_trainer.head_parameters import AttentionHeads, HeadParameter, LogitPart
from trimtab_trainer.optim import MuonClip, MuonClipConfig
from trimtab_trainer.optim.health import optimizer_health
from trimtab_trainer.optim.qk_clip import qk_clip

from benchmarks.compute import rounds
from benchmarks.figures import Figure, Measurement, ratios, write

LAYERS, WIDTH, HIDDEN, HEADS = 12, 512, 2048, 8
SHAPES = {
    **dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH)),
    **dict.fromkeys(("gate", "up"), (HIDDEN, WIDTH)),
    "down": (WIDTH, HIDDEN),
}
ROUNDS = 15
SAME_GOAL, GRAM_GOAL, CLIP_GOAL = 0.9, 0.8, 0.5
THRESHOLD = 100.0
HOT_HEADS = 2
SETTINGS = MuonClipConfig(newton_schulz_dtype="bfloat16", muon_lr=1e-3, qk_clip_threshold=THRESHOLD)


@dataclass(frozen=True)
class Matrices:
    """Parameters of one optimizer; the gradients are the same tensors for all."""

    parameters: dict[str, Tensor]

    @classmethod
    def with_gradients(cls, gradients: dict[str, Tensor]) -> "Matrices":
        """Weights near zero, a copy of their own for each optimizer."""
        parameters = {name: torch.zeros_like(gradient).requires_grad_() for name, gradient in gradients.items()}
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        return cls(parameters)

    def attention(self) -> list[AttentionHeads]:
        """What makes the logits of each layer."""
        parts = (LogitPart.QUERY, LogitPart.KEY)
        return [
            AttentionHeads(
                "multiHead",
                HEADS,
                tuple(HeadParameter(part, self.parameters[f"layers.{layer}.{part}"], part, HEADS) for part in parts),
            )
            for layer in range(LAYERS)
        ]

    def muon_clip(self, *, gram: bool) -> MuonClip:
        """An optimizer of these parameters."""
        config = MuonClipConfig(
            newton_schulz_dtype="bfloat16", muon_lr=SETTINGS.muon_lr, qk_clip_threshold=THRESHOLD, gram=gram
        )
        return MuonClip(self.parameters.items(), self.attention(), config)

    def pytorch(self) -> Any:
        """PyTorch's Muon with the same settings."""
        return torch.optim.Muon(
            list(self.parameters.values()),
            lr=SETTINGS.muon_lr,
            weight_decay=SETTINGS.decay,
            momentum=SETTINGS.momentum,
            nesterov=SETTINGS.nesterov,
            adjust_lr_fn="match_rms_adamw",
        )


def logits(hot: int) -> Tensor:
    """Largest logits [layers, heads] of which `hot` lie above the threshold."""
    values = torch.full((LAYERS * HEADS,), THRESHOLD / 2)
    values[torch.arange(hot) * (LAYERS * HEADS // max(hot, 1))] = THRESHOLD * 1.01
    return values.view(LAYERS, HEADS)


def random_gradients() -> dict[str, Tensor]:
    """A gradient for every matrix."""
    generator = torch.Generator().manual_seed(1)
    return {
        f"layers.{layer}.{name}": torch.randn(shape, generator=generator)
        for layer in range(LAYERS)
        for name, shape in SHAPES.items()
    }


def updates(count: int) -> tuple[Figure, ...]:
    """Whole updates, and the parts of one that are MuonClip's own."""
    gradients = random_gradients()
    pytorch = Matrices.with_gradients(gradients).pytorch()
    matrices = Matrices.with_gradients(gradients)
    plain = matrices.muon_clip(gram=False)
    gram = Matrices.with_gradients(gradients).muon_clip(gram=True)
    cold, attention, thresholds = logits(0), matrices.attention(), (THRESHOLD,) * LAYERS
    taken = rounds(
        {
            "pytorch": pytorch.step,
            "plain": partial(plain.step, cold),
            "gram": partial(gram.step, cold),
            "no head": partial(qk_clip, attention, cold, thresholds),
            "some heads": partial(qk_clip, attention, logits(HOT_HEADS), thresholds),
            "all heads": partial(qk_clip, attention, logits(LAYERS * HEADS), thresholds),
            "health": partial(optimizer_health, plain),
        },
        count,
    )
    share = {name: tuple(100 * one for one in ratios(taken[name], taken["plain"])) for name in taken}
    return (
        Figure("update by MuonClip ÷ by torch.optim.Muon", ratios(taken["plain"], taken["pytorch"]), goal=SAME_GOAL),
        Figure("the same in the Gram form", ratios(taken["gram"], taken["pytorch"]), goal=GRAM_GOAL),
        Figure("QK-Clip with no head above the threshold, of an update", share["no head"], "%", goal=CLIP_GOAL),
        Figure(f"QK-Clip with {HOT_HEADS} heads above it, of an update", share["some heads"], "%", goal=CLIP_GOAL),
        Figure("QK-Clip with all heads above it, of an update", share["all heads"], "%"),
        Figure(
            "a look at norms, spectral norms and what is not finite, ÷ an update",
            ratios(taken["health"], taken["plain"]),
        ),
        Figure("update by MuonClip", tuple(taken["plain"]), "s"),
        Figure("update by torch.optim.Muon", tuple(taken["pytorch"]), "s"),
    )


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    count = parser.parse_args().rounds
    torch.set_num_threads(1)
    elements = LAYERS * sum(rows * columns for rows, columns in SHAPES.values())
    write(
        "optimizer",
        Measurement(
            title="The optimizer",
            about=(
                f"Updates of {elements:,} parameters in {LAYERS * len(SHAPES)} matrices ({LAYERS} layers of width "
                f"{WIDTH}, MLP {HIDDEN}), in one process on one core; processor time. Quintic coefficients and "
                "products in bfloat16 for all; ratios are taken within one round."
            ),
            figures=updates(count),
            notes=(
                "Without QK-Clip's threshold reached nothing but the largest logits is looked at.",
                "An update is the optimizer's part of a step alone; of the whole step QK-Clip is less still.",
            ),
        ),
    )


if __name__ == "__main__":
    main()
