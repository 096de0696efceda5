"""One small training run: the demo's model on the demo's text, in one process, and the curve it leaves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec
import torch
from torch import Tensor
from trimtab_trainer.model import Transformer, TransformerConfig
from trimtab_trainer.optim import MuonClip, MuonClipConfig, ParameterGroup, Schedule, clip_gradients

OptimizerName = Literal["MuonClip", "Muon", "AdamW"]

MODEL: Final = TransformerConfig(width=128, layers=4, heads=4, sequence=128)
WINDOWS: Final = 16
"""In a batch, of 128 bytes each."""
TOKENS_PER_STEP: Final = WINDOWS * MODEL.sequence
WARM_UP: Final = 20
HELD_OUT: Final = 64
"""Windows at the end of the corpus, whose windows are shuffled, that no run trains on."""
LOOK_EVERY: Final = 10
LARGEST_NORM: Final = 1.0
"""To which the gradient of a whole step is scaled down."""
ADAMW_LR: Final = 0.005
"""Of what Muon does not update: embedding and norms."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained. Equal seeds have equal initial weights and the same batches in the same order."""

    optimizer: OptimizerName
    lr: float
    seed: int
    steps: int
    threshold: float

    @property
    def name(self) -> str:
        """A file's name."""
        return f"{self.optimizer}-{self.lr:g}-seed{self.seed}-{self.steps}-tau{self.threshold:g}"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen: the loss on the held-out windows after some steps, and the largest logit of every step."""

    run: Run
    steps: list[int]
    losses: list[float]
    max_logits: list[float]
    """Exact, of all heads and layers, from the forward pass of each step."""

    def steps_to(self, loss: float) -> float | None:
        """How many steps it took to reach a loss, between two looks on a straight line; None where it never did."""
        before_step, before = 0, math.inf
        for step, value in zip(self.steps, self.losses, strict=True):
            if value <= loss:
                share = (before - loss) / (before - value) if math.isfinite(before) else 1.0
                return before_step + share * (step - before_step)
            before_step, before = step, value
        return None


@dataclass(frozen=True)
class Corpus:
    """Windows of bytes [windows, sequence] with the byte that follows each."""

    training: Tensor
    held_out: Tensor


@cache
def corpus(path: Path) -> Corpus:
    """The demo's file, whose windows are shuffled, cut once more with a byte of overlap for the last target."""
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    length = MODEL.sequence
    count = (len(data) - 1) // length
    windows = data[: count * length + 1].unfold(0, length + 1, length)
    return Corpus(windows[:-HELD_OUT], windows[-HELD_OUT:])


def train(run: Run, path: Path) -> Curve:
    """Train on one thread; the same curve on every machine with the same arithmetic."""
    torch.set_num_threads(1)
    data = corpus(path)
    model = Transformer(MODEL, seed=run.seed)
    optimizer = MuonClip(model.named_parameters(), model.attention_heads(), _settings(run))
    schedule = Schedule(warmup_steps=WARM_UP, total_steps=run.steps)
    steps, losses, logits = [0], [_held_out_loss(model, data.held_out)], list[float]()
    for step, batch in enumerate(_batches(data.training, run), start=1):
        optimizer.set_lr(schedule.factor(step))
        output = model(batch[:, :-1], batch[:, 1:], exact=True)
        optimizer.zero_grad()
        output.loss.backward()
        clip_gradients([each.grad for each in model.parameters() if each.grad is not None], LARGEST_NORM)
        optimizer.step(output.attention.max_logit)
        logits.append(float(output.attention.max_logit.max()))
        if step % LOOK_EVERY == 0 or step == run.steps:
            steps.append(step)
            losses.append(_held_out_loss(model, data.held_out))
    return Curve(run=run, steps=steps, losses=losses, max_logits=logits)


def _settings(run: Run) -> MuonClipConfig:
    if run.optimizer == "AdamW":
        everything = (ParameterGroup(pattern="*", optimizer="adamw"),)
        return MuonClipConfig(adamw_lr=run.lr, groups=everything, qk_clip_mode="disabled")
    mode = "clip" if run.optimizer == "MuonClip" else "disabled"
    return MuonClipConfig(muon_lr=run.lr, adamw_lr=ADAMW_LR, qk_clip_mode=mode, qk_clip_threshold=run.threshold)


def _batches(windows: Tensor, run: Run) -> Iterator[Tensor]:
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(run.seed))
    for step in range(run.steps):
        yield windows[order[step * WINDOWS : (step + 1) * WINDOWS]].long()


@torch.no_grad()
def _held_out_loss(model: Transformer, windows: Tensor) -> float:
    model.eval()
    parts = (windows[start : start + WINDOWS].long() for start in range(0, len(windows), WINDOWS))
    shares = [model(part[:, :-1], part[:, 1:]).loss for part in parts]
    model.train()
    return float(torch.stack(shares).mean())
