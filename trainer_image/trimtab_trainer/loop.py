"""The reference training loop: read it top to bottom.

`session` is its only door to the outside. It hands out batches, says whether an update may happen, takes the numbers
of every step, and between two batches does whatever the operator asked: hold, restore, skip, stop. A loop of your own
needs the same four lines: iterate `session.batches()`, ask `session.gate(...)`, update, `session.report(...)`.
"""

from functools import partial

import torch
from torch import Tensor

from trimtab_trainer.accumulation import MicroBatches, accumulate
from trimtab_trainer.batches import Batch
from trimtab_trainer.collectives import World, exchanging
from trimtab_trainer.config import TrainerConfig
from trimtab_trainer.data.packing import documents_of, targets_of
from trimtab_trainer.devices import CPU
from trimtab_trainer.exact_steps import ExactSteps
from trimtab_trainer.expert_metrics import expert_metrics
from trimtab_trainer.health_metrics import HealthMetrics
from trimtab_trainer.memory import for_training, saying_what_to_lower
from trimtab_trainer.mixed_precision import LossScaler, computing_in
from trimtab_trainer.model import ModelOutput, Transformer
from trimtab_trainer.optim import (
    GradientClip,
    GradientClipping,
    MuonClip,
    RateOverride,
    ShardedMuonClip,
    StepTelemetry,
    first_non_finite,
)
from trimtab_trainer.reduction import GradientBuckets, Reduced, ShardedGradients
from trimtab_trainer.session import Gate, Session
from trimtab_trainer.sharding import shard
from trimtab_trainer.tensors import evaluating


class Trainee:
    """Model, optimizer and loss scaler: what a checkpoint holds, and what a probe may look at."""

    def __init__(self, config: TrainerConfig, device: torch.device = CPU) -> None:
        self.config = config
        self.device = device
        self.rates = config.rates
        # Initial weights are drawn on the CPU, so they are the same on any device. What is sharded stays there for
        # as long: no device need have room for all of it, and for the moments.
        model = Transformer(config.model, seed=config.seed)
        self.model = model if config.parallelism == "sharded" else model.to(device)
        self.optimizer: MuonClip | ShardedMuonClip = MuonClip(
            self.model.named_parameters(), self.model.attention_heads(), config.optimizer
        )
        self.scaler = LossScaler(config.precision, config.loss_scale)
        self.exact_steps = ExactSteps(1 if config.telemetry.exact_max_logits else config.telemetry.every)
        self.health = HealthMetrics(config.telemetry.health_every, self.model.layer_parameters())

    def join(self, world: World) -> None:
        """Share the optimizer's work, and the state as the settings say; every rank calls it, before the first step."""
        if self.config.parallelism == "sharded":
            self.shard(world)
        elif isinstance(self.optimizer, MuonClip):
            self.optimizer.divide(world)

    def shard(self, world: World) -> None:
        """Keep a part of the state on each rank from now on; every rank calls it, before the first step."""
        # It holds the whole parameters, each of which is to be given back as soon as it is sharded.
        del self.optimizer
        shard(self.model, self.model.blocks, world.size, self.device)
        self.optimizer = ShardedMuonClip(
            self.model.named_parameters(), self.model.attention_heads(), self.config.optimizer, world
        )

    def gradients(self, world: World) -> GradientBuckets | ShardedGradients:
        """Where the gradients of all ranks come together."""
        parameters = self.named_parameters()
        if self.config.parallelism == "sharded":
            return ShardedGradients(parameters, world)
        return GradientBuckets(parameters, world, self.config.bucket_mebibytes << 20)

    def learning_rate(self, step: int, override: RateOverride | None) -> float:
        """Muon's learning rate at a step, from 1."""
        return self.config.optimizer.muon_lr * self.rates.factor(step, override)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Every parameter once, in the model's order."""
        return list(self.model.named_parameters())

    @torch.no_grad()
    def losses(self, samples: Tensor) -> Tensor:
        """The evaluation-mode loss of each of `samples` [batch, tokens + 1]; leaves no trace in the state."""
        with evaluating(self.model):
            # In micro-batches, too: what fits into memory while training must fit here.
            parts = samples.chunk(self.config.gradient_accumulation_steps)
            return torch.cat([self._losses(part) for part in parts])

    @torch.no_grad()
    def training_loss(self, batch: Batch, dropout: float) -> Tensor:
        """The loss of a share as a training step with so much dropout computes it, bit for bit; leaves no trace."""
        with evaluating(self.model, training=True):
            parts = batch.micro_batches(self.config.gradient_accumulation_steps)
            losses = [self.forward(part, dropout=dropout).loss for part in parts]
        return torch.stack([loss for loss in losses if loss is not None]).mean()

    def forward(self, batch: Batch, *, exact: bool = False, dropout: float | None = None) -> ModelOutput:
        """One forward pass; the largest attention logits come with it, when `exact` those of all heads.

        `dropout` takes the place of the configuration's.
        """
        config, batch = self.config, batch.to(self.device)
        with computing_in(config.precision, self.device.type):
            return self.model(
                batch.tokens,
                batch.targets,
                qk_threshold=self.optimizer.lowest_threshold,
                exact=exact,
                sample_ids=batch.sample_ids,
                masked=config.data.masked_separator is not None,
                documents=batch.documents,
                dropout=dropout,
            )

    def _losses(self, samples: Tensor) -> Tensor:
        data, samples = self.config.data, samples.to(self.device)
        with computing_in(self.config.precision, self.device.type):
            output = self.model(
                samples[:, :-1],
                targets_of(samples, data.masked_separator),
                reduction="none",
                masked=data.masked_separator is not None,
                documents=documents_of(samples, data.attention_separator),
            )
        assert output.loss is not None
        return output.loss


def train(session: Session, trainee: Trainee, world: World) -> None:
    """Train until the session ends the world, which it does by raising WorldEnded; raises OutOfMemory with advice."""
    with saying_what_to_lower(for_training(trainee.config, world.size)):
        _train(session, trainee, world)


def _train(session: Session, trainee: Trainee, world: World) -> None:
    config, model, optimizer, scaler = trainee.config, trainee.model, trainee.optimizer, trainee.scaler
    gradients, parameters = trainee.gradients(world), trainee.named_parameters()
    clipping = GradientClipping([name for name, _ in parameters], config.optimizer.groups, config.gradient_clip)
    model.train()

    def compute(batch: Batch) -> tuple[MicroBatches, Reduced, GradientClip]:
        gradients.zero()
        forward = partial(trainee.forward, exact=trainee.exact_steps.due(batch.attempt, batch.step))
        with exchanging():
            computed = accumulate(batch, config.gradient_accumulation_steps, forward, scale=scaler.scale)
        reduced = gradients.reduce(computed)
        tensors = [gradient for _, gradient in gradients.named()]
        scaler.unscale(tensors)
        return computed, reduced, clipping.clip(tensors, gradients.norms)

    for batch in session.batches():
        optimizer.set_lr(trainee.rates.factor(batch.step, batch.rate_override))
        scaler.begin()
        computed, reduced, clip = compute(batch)
        # While losses and logits are finite, a gradient that is not may be the scale's doing; every rank sees the same.
        while not clip.finite and not reduced.nonfinite and scaler.back_off():
            session.progress()
            computed, reduced, clip = compute(batch)

        # Every rank learns here, before anything changes, whether this update may happen at all.
        gate = session.gate(first_bad(computed, clip, gradients.named()), computed.loss)
        if gate is not Gate.AGAIN:
            update = optimizer.step(reduced.max_logits) if gate is Gate.UPDATE else None
            routed, loads = expert_metrics(computed.experts, world)
            gamma = None if update is None else update.qk_clip_gamma
            looked, seen = trainee.health.of_step(batch.attempt, batch.step, gamma, optimizer, parameters, world)
            bad_elements = 0 if clip.finite else gradients.nonfinite()
            numbers = scalars(reduced, clip, bad_elements, optimizer.lr, update) | scaler.scalars() | routed | looked
            session.report(numbers, vectors(reduced, clip, update) | loads | seen)
            trainee.exact_steps.done(batch.step, gamma)
        scaler.settle(updated=gate is Gate.UPDATE)


def first_bad(computed: MicroBatches, clip: GradientClip, gradients: list[tuple[str, Tensor]]) -> str | None:
    """Name the first tensor, in the order of computation, that is not finite; None lets the update pass.

    Losses and logits are this rank's own. The gradient is the reduced one: a flipped bit in a key weight leaves the
    loss finite and shows only there. Where parameters are sharded, it may show on another rank.
    """
    bad = computed.first_bad()
    if bad is None and not clip.finite and (name := first_non_finite(gradients)) is not None:
        return f"gradient of {name}"
    return bad


def scalars(
    reduced: Reduced,
    clip: GradientClip,
    bad_elements: int,
    lr: float,
    update: StepTelemetry | None,
) -> dict[str, float]:
    """The scalars of the metric record that the loop knows; `update` is None for a withheld step."""
    known = {
        "loss": reduced.loss,
        "loss_max": reduced.loss_max,
        "grad_norm": clip.norm,
        "clip_ratio": clip.ratio,
        "lr": lr,
        "nonfinite": float(reduced.nonfinite + bad_elements),
        "nonfinite_gradients": float(bad_elements),
        "skipped_update": float(update is None),
    }
    if update is None:
        return known
    clipped = (update.qk_clip_gamma < 1).float().mean() if update.qk_clip_gamma.numel() else torch.zeros(())
    return {**known, "update_rms": update.update_rms, "qk_clip_share": clipped.item()}


def vectors(reduced: Reduced, clip: GradientClip, update: StepTelemetry | None) -> dict[str, Tensor]:
    """The vectors of the metric record: [layers, heads], and [groups] of those whose gradient is clipped by itself.

    A logit of which only a bound is known says so.
    """
    known = {"qk_max_logit" if reduced.exact else "qk_max_logit_bound": reduced.max_logits}
    if clip.groups:
        known["group_grad_norm"] = torch.tensor([group.norm for group in clip.groups])
        known["group_clip_ratio"] = torch.tensor([group.ratio for group in clip.groups])
    return known | ({} if update is None else {"qk_clip_gamma": update.qk_clip_gamma})
