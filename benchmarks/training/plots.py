"""The pictures of the comparison, as SVG files that are the same bytes for the same curves."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any, Final, cast

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.training.comparison import RATES, Best, by_rate, tokens
from benchmarks.training.runs import Curve, OptimizerName

COLOURS: Final[dict[OptimizerName, str]] = {"MuonClip": "#0072b2", "Muon": "#e69f00", "AdamW": "#666666"}
"""Told apart without colour vision too (Okabe and Ito)."""


def draw_losses(target: Path, bests: Sequence[Best]) -> None:
    """The loss over the tokens, each optimizer at its best rate: a line for each seed."""
    with _picture(target) as axes:
        for best in bests:
            for index, curve in enumerate(best.curves):
                label = f"{best.optimizer}, rate {best.lr:g}" if index == 0 else None
                line = [tokens(step) / 1e3 for step in curve.steps]
                axes.plot(line, curve.losses, color=COLOURS[best.optimizer], linewidth=1, label=label)
        axes.set_xlabel("thousand bytes trained on")
        axes.set_ylabel("loss on held-out text, nats per byte")
        axes.set_ylim(top=3.0)


def draw_rates(target: Path, curves: Sequence[Curve]) -> None:
    """The last loss over the learning rate: a dot for each seed, a line through the means."""
    groups = by_rate(curves)
    with _picture(target) as axes:
        for optimizer, rates in RATES.items():
            found = [[curve.losses[-1] for curve in groups[optimizer, lr]] for lr in rates]
            axes.plot(rates, [mean(one) for one in found], color=COLOURS[optimizer], linewidth=1, label=optimizer)
            for lr, losses in zip(rates, found, strict=True):
                axes.plot([lr] * len(losses), losses, ".", color=COLOURS[optimizer], markersize=4)
        axes.set_xscale("log")
        axes.set_xlabel("peak learning rate")
        axes.set_ylabel("last loss on held-out text, nats per byte")


def draw_logits(target: Path, curves: Sequence[Curve], threshold: float) -> None:
    """The largest logit of each step at too high a rate, on a logarithmic scale."""
    with _picture(target) as axes:
        for curve in curves:
            label = curve.run.optimizer if curve.run.seed == curves[0].run.seed else None
            steps = range(1, len(curve.max_logits) + 1)
            axes.plot(steps, curve.max_logits, color=COLOURS[curve.run.optimizer], linewidth=1, label=label)
        axes.axhline(threshold, color="black", linewidth=0.8, linestyle="--", label=f"threshold {threshold:g}")
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.1)
        axes.set_xlabel("step")
        axes.set_ylabel("largest attention logit")


@contextmanager
def _picture(target: Path) -> Generator[Any]:
    """Axes to draw on; without time stamps and random names in the file."""
    look = {"svg.hashsalt": "trimtab", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    library, pyplot = cast("Any", mpl), cast("Any", plt)  # whose own types are partly unknown
    with library.rc_context(look):
        figure = pyplot.figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        yield axes
        axes.grid(visible=True, linewidth=0.3)
        axes.legend(frameon=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata={"Date": None})
        pyplot.close(figure)
