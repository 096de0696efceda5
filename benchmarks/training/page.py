"""The page about the comparison, in Markdown. Pure."""

from collections.abc import Iterator, Sequence
from statistics import mean, stdev

from benchmarks.training.comparison import (
    GROWTH_RATE,
    GROWTH_THRESHOLD,
    RATES,
    SEEDS,
    STEPS,
    THRESHOLD,
    Best,
    Interval,
    by_rate,
    tokens,
    tokens_ratio,
)
from benchmarks.training.runs import ADAMW_LR, HELD_OUT, MODEL, WARM_UP, WINDOWS, Curve


def page(compared: Sequence[Curve], growing: Sequence[Curve], bests: Sequence[Best]) -> str:
    """The whole page."""
    return (
        "\n".join((*_introduction(), *_rates(compared, bests), *_tokens(bests), *_logits(growing), *_limits())) + "\n"
    )


def _introduction() -> Iterator[str]:
    runs = len(SEEDS) * sum(len(rates) for rates in RATES.values())
    yield "# MuonClip, Muon and AdamW on real text"
    yield ""
    yield "Written by `python -m benchmarks.training`, which trains everything again in less than an hour on two cores."
    yield ""
    yield (
        f"The demo's model (byte-level decoder, width {MODEL.width}, {MODEL.layers} layers, {MODEL.heads} heads) on "
        f"the demo's text: {STEPS} steps of {WINDOWS} windows of {MODEL.sequence} bytes, {WARM_UP} steps of warm-up, "
        "half a cosine down to a tenth, gradients scaled to a norm of 1, decay 0.1. Three seeds, each with the same "
        f"initial weights and the same batches for all optimizers: {runs} runs in all. The loss is that of "
        f"{HELD_OUT} windows that nobody trains on. Muon updates the matrices, AdamW at {ADAMW_LR:g} the embedding "
        f"and the norms. The threshold of QK-Clip is {THRESHOLD:g}, low enough to act in runs as short as these."
    )
    yield ""


def _rates(compared: Sequence[Curve], bests: Sequence[Best]) -> Iterator[str]:
    yield "## Learning rates"
    yield ""
    yield "![Last loss over the learning rate](images/training-rates.svg)"
    yield ""
    yield "| optimizer | rate | last loss, mean of the seeds | standard deviation | largest logit |"
    yield "|---|---|---|---|---|"
    chosen = {(best.optimizer, best.lr) for best in bests}
    for (optimizer, lr), group in sorted(by_rate(compared).items()):
        losses = [curve.losses[-1] for curve in group]
        mark = "**" if (optimizer, lr) in chosen else ""
        largest = max(max(curve.max_logits) for curve in group)
        yield f"| {optimizer} | {mark}{lr:g}{mark} | {mean(losses):.4f} | {stdev(losses):.4f} | {largest:.1f} |"
    yield ""
    ends = [f"{best.optimizer} at {best.lr:g}" for best in bests if best.at_an_end]
    if ends:
        yield f"The best rate lies at an end of what was tried, and a better one may lie outside: {', '.join(ends)}."
        yield ""


def _tokens(bests: Sequence[Best]) -> Iterator[str]:
    yield "## Tokens to the same loss"
    yield ""
    yield "![Loss over the tokens](images/training-losses.svg)"
    yield ""
    reference = next(best for best in bests if best.optimizer == "AdamW")
    muon = next(best for best in bests if best.optimizer == "Muon")
    yield (
        f"AdamW at its best rate ends at {reference.loss:.4f} after {tokens(STEPS):,.0f} bytes. Others reach the loss "
        "it ends with, seed by seed, after this share of its tokens (geometric mean, 95 % interval by Student's t):"
    )
    yield ""
    yield "| | tokens ÷ those of the reference |"
    yield "|---|---|"
    for best in bests:
        if best is not reference:
            yield f"| {best.optimizer} to AdamW's last loss | {_interval(tokens_ratio(best, reference))} |"
    clipped = next(best for best in bests if best.optimizer == "MuonClip")
    yield f"| MuonClip to Muon's last loss | {_interval(tokens_ratio(clipped, muon))} |"
    yield ""


def _interval(interval: Interval | None) -> str:
    return "not reached with every seed" if interval is None else str(interval)


def _logits(growing: Sequence[Curve]) -> Iterator[str]:
    yield "## Logits that grow"
    yield ""
    yield "![Largest logit of each step](images/training-logits.svg)"
    yield ""
    yield (
        f"At a rate of {GROWTH_RATE:g}, too high, and the usual threshold of {GROWTH_THRESHOLD:g}. QK-Clip scales "
        "after the step in which a logit was seen above the threshold, so that a step may overshoot it."
    )
    yield ""
    yield "| optimizer | seed | first step above the threshold | largest logit | last step's | last loss |"
    yield "|---|---|---|---|---|---|"
    for curve in sorted(growing, key=lambda one: (one.run.optimizer, one.run.seed)):
        above = [step for step, value in enumerate(curve.max_logits, start=1) if value > GROWTH_THRESHOLD]
        first = str(above[0]) if above else "never"
        logits = f"{max(curve.max_logits):.0f} | {curve.max_logits[-1]:.0f}"
        yield f"| {curve.run.optimizer} | {curve.run.seed} | {first} | {logits} | {curve.losses[-1]:.3f} |"
    yield ""


def _limits() -> Iterator[str]:
    yield "## What this does not show"
    yield ""
    yield "* Less than a million parameters and bytes, on one kind of text; ratios change with size."
    yield (
        "* The rate falls to a tenth at the end, so that AdamW's last loss is its best moment; at an earlier loss the "
        "ratio would be another."
    )
    yield (
        "* The best of four rates was chosen by the very losses that are compared. An update of Muon takes longer than "
        "one of AdamW, which tokens do not show."
    )
    yield "* Three seeds make wide intervals, and say nothing of other data or other models."
