"""A training whose loop belongs to somebody else: the four points at which that loop must pass."""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from trimtab_contract.directives import Reason

from trimtab_trainer.assembly import Foundation, assemble_around
from trimtab_trainer.batches import Batch
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import TelemetryConfig, TrainerConfig
from trimtab_trainer.data import targets_of
from trimtab_trainer.errors import BadConfig, WorldEnded
from trimtab_trainer.exact_steps import ExactSteps
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.health_metrics import HealthMetrics, Metrics
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.integrations.optimizer_state import ResumableOptimizer
from trimtab_trainer.max_logits import AttentionTelemetry, infinite_beyond_resolution
from trimtab_trainer.max_logits.telemetry import record_name
from trimtab_trainer.optim import RateOverride, count_non_finite, first_non_finite
from trimtab_trainer.process import Process
from trimtab_trainer.session import Gate, Session
from trimtab_trainer.tensors import evaluating, global_norm

logger = logging.getLogger(__name__)

Evaluation = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of `tokens` and `targets` [batch, sequence], in whatever mode the model is."""


@dataclass(frozen=True, slots=True)
class Learner:
    """What a framework has built: the bare model, and what changes it."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    evaluate: Evaluation
    largest_norm: float
    """To which the framework clips the gradient's norm; infinity where it does not."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """A step's gradient before clipping, the same on all ranks, and this rank's own loss and largest logits."""

    loss: Tensor
    attention: AttentionTelemetry
    """[layers, heads], on the CPU; empty where no attention is watched."""

    norm: float
    bad: str | None
    bad_elements: int


class Trainee:
    """What a session may ask of a model between two steps."""

    def __init__(self, learner: Learner, config: TrainerConfig) -> None:
        self._learner, self._config = learner, config

    def learning_rate(self, step: int, override: RateOverride | None) -> float:
        """The rate of a step, from 1; where it follows from results of the run, that of the step which comes next."""
        scheduler, group = self._learner.scheduler, self._learner.optimizer.param_groups[0]
        if isinstance(scheduler, LambdaLR):
            rate = scheduler.base_lrs[0] * scheduler.lr_lambdas[0](step - 1)
        else:
            rate = group["lr"]
        return float(rate) * _factor(step, override)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Every parameter once, in the model's order."""
        return list(self._learner.model.named_parameters())

    @torch.no_grad()
    def losses(self, samples: Tensor) -> Tensor:
        """For each of `samples` [batch, tokens + 1] the mean evaluation-mode loss of its micro-batch, on the CPU."""
        parts = samples.chunk(self._config.gradient_accumulation_steps)
        separator = self._config.data.masked_separator
        with evaluating(self._learner.model):
            means = [self._learner.evaluate(part[:, :-1], targets_of(part, separator)) for part in parts]
        pairs = zip(means, parts, strict=True)
        return torch.cat([mean.detach().float().cpu().expand(len(part)) for mean, part in pairs])


class Training:
    """Guards one training. A loop passes, in each step and on all ranks:

    `batches()` for its data; `note(loss)` behind each micro-batch; `measure()` when all gradients are there, before
    they are clipped; `gate()` before the update; `report()` behind the update and the step of the schedule.
    """

    def __init__(self, learner: Learner, foundation: Foundation, world: World, process: Process) -> None:
        """Assemble the world; raises BadConfig, InvalidFields, PeerLost."""
        self._muon_clip = learner.optimizer if isinstance(learner.optimizer, MuonClipOptimizer) else None
        telemetry = foundation.config.telemetry
        if self._muon_clip is None and (problems := list(_logit_problems(telemetry))):
            raise BadConfig(problems)
        self._exact_steps = ExactSteps(1 if telemetry.exact_max_logits else telemetry.every)
        self._learner, self._world = learner, world
        self._optimizer = ResumableOptimizer(learner.optimizer, learner.scheduler, learner.model)
        trainee = Trainee(learner, foundation.config)
        faults = FaultInjector(foundation.config.faults, world.rank, dict(trainee.named_parameters()))
        state = TrainingState(learner.model, self._optimizer)
        process.runtime = assemble_around(trainee, state, faults, foundation, world, process.terminating)
        self._session = Session(process.runtime)
        if self._muon_clip is not None:
            self._muon_clip.divide(world)
            if world.rank == 0:
                logger.info("parameters and their optimizers:\n%s", self._muon_clip.routing)
        self._health = HealthMetrics(telemetry.health_every, _layers(trainee.named_parameters()))
        self._batch: Batch | None = None
        self._losses: list[Tensor] = []
        self._measured: _Measured | None = None
        self._gate = Gate.UPDATE
        self._numbers: dict[str, float] = {}
        self._logits = torch.zeros(0, 0)
        self._exact = True
        self._unscaled: list[float] | None = None
        self._schedule_before: dict[str, Any] | None = None
        self.ended: WorldEnded | None = None
        """How the run was finished, once it is."""
        learner.optimizer.register_step_post_hook(self._updated)

    @property
    def step(self) -> int:
        """The step in progress, from 1."""
        assert self._batch is not None
        return self._batch.step

    @property
    def finished(self) -> bool:
        """Whether the run is over, as it was meant to be."""
        return self.ended is not None

    def batches(self) -> Iterator[Batch]:
        """The batch of each step, until the run is finished; what a run does between two steps happens in between.

        Raises:
            WorldEnded: the world ends here for another reason.
            PeerLost: another rank is gone.
        """
        try:
            for batch in self._session.batches():
                self._batch = batch
                self._losses.clear()
                if self._muon_clip is not None:
                    self._muon_clip.measure_exactly(exact=self._exact_steps.due(batch.attempt, batch.step))
                yield batch
        except WorldEnded as end:
            if end.reason is not Reason.FINISHED:
                raise
            self.ended = end

    def note(self, loss: Tensor) -> None:
        """Take a micro-batch's part in the mean loss of this rank's share."""
        self._losses.append(loss.detach())

    @torch.no_grad()
    def measure(self) -> None:
        """Look at the gradients as they are before they are clipped."""
        gradients = [(name, one.grad) for name, one in self._learner.model.named_parameters() if one.grad is not None]
        tensors = [gradient for _, gradient in gradients]
        norm = global_norm(tensors) if tensors else 0.0
        loss = torch.stack(self._losses).sum().float().cpu()
        finite = math.isfinite(norm)
        attention = self._taken_logits()
        bad = "loss" if not bool(loss.isfinite()) else None
        if bad is None and not bool(attention.max_logit.isfinite().all()):
            bad = "attention logits"
        if bad is None and not finite:
            bad = f"gradient of {first_non_finite(gradients)}"
        self._measured = _Measured(loss, attention, norm, bad, 0 if finite else count_non_finite(tensors))

    def _taken_logits(self) -> AttentionTelemetry:
        if self._muon_clip is None:
            return AttentionTelemetry(torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool))
        taken = self._muon_clip.take_logits()
        return AttentionTelemetry(infinite_beyond_resolution(taken.max_logit.float().cpu()), taken.exact.cpu())

    def gate(self) -> None:
        """Agree with all ranks on this step's update; where it must not happen, nothing is left to update from."""
        measured, batch = self._measured, self._batch
        assert measured is not None
        assert batch is not None
        attention = measured.attention
        inexact = (~attention.exact).any().float().view(1)
        own = torch.cat((measured.loss.view(1), attention.max_logit.flatten(), inexact))
        losses, logits, inexact = torch.stack(self._world.gather(own)).tensor_split([1, len(own) - 1], 1)
        # As large as can be what is not a number: a maximum may lose it.
        logits = logits.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf).amax(0)
        self._logits, self._exact = logits.view_as(attention.max_logit), not inexact.any()
        rate = self._learner.optimizer.param_groups[0]["lr"] * _factor(batch.step, batch.rate_override)
        self._numbers = {
            "loss": float(losses.mean()),
            "loss_max": float(losses.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf).max()),
            "grad_norm": measured.norm,
            "clip_ratio": _clip_ratio(measured.norm, self._learner.largest_norm),
            "lr": rate,
            "nonfinite": float((~losses.isfinite()).sum() + measured.bad_elements),
        }
        self._gate = self._session.gate(measured.bad)
        if self._gate is Gate.UPDATE:
            self._scale_rates(_factor(batch.step, batch.rate_override))
            if self._muon_clip is not None:
                self._muon_clip.agreed_logits = self._logits
        else:
            # An optimizer leaves a parameter without a gradient as it is, its decay and its moments, too.
            for parameter in self._learner.model.parameters():
                parameter.grad = None
        if self._gate is Gate.AGAIN and self._learner.scheduler is not None:
            self._schedule_before = copy.deepcopy(self._learner.scheduler.state_dict())
            self._unscaled = [group["lr"] for group in self._learner.optimizer.param_groups]

    def report(self) -> None:
        """Publish the step; one that is to be computed again leaves the schedule where it was instead."""
        if self._gate is Gate.AGAIN:
            if self._learner.scheduler is not None and self._schedule_before is not None:
                self._learner.scheduler.load_state_dict(self._schedule_before)
            self._rates_again()
            self._session.progress()
        else:
            scalars, vectors = self._of_the_update()
            figures, by_layer = self._of_the_state()
            withheld = float(self._gate is Gate.WITHHOLD)
            self._session.report({**self._numbers, "skipped_update": withheld} | scalars | figures, vectors | by_layer)
            if self._batch is not None:
                self._exact_steps.done(self._batch.step, vectors.get("qk_clip_gamma"))
        self._measured, self._schedule_before = None, None

    def _of_the_update(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """What MuonClip tells of the step: scalars, and vectors [layers, heads]."""
        update = None if self._muon_clip is None or self._gate is not Gate.UPDATE else self._muon_clip.telemetry
        scalars = {} if update is None else {"update_rms": update.update_rms}
        if not self._logits.numel():
            return scalars, {}
        vectors = {record_name(exact=self._exact): self._logits}
        if update is None:
            return scalars, vectors
        gamma = update.qk_clip_gamma
        clipped = (gamma < 1).float().mean().item()
        return scalars | {"qk_clip_share": clipped}, vectors | {"qk_clip_gamma": gamma}

    def _of_the_state(self) -> Metrics:
        """What MuonClip's weights and moments are like, every `telemetry.healthEvery` steps."""
        optimizer, batch = self._muon_clip, self._batch
        if optimizer is None or batch is None:
            return {}, {}
        update = optimizer.telemetry if self._gate is Gate.UPDATE else None
        gamma = None if update is None else update.qk_clip_gamma
        parameters = list(self._learner.model.named_parameters())
        return self._health.of_step(batch.attempt, batch.step, gamma, optimizer.muon_clip, parameters, self._world)

    def _scale_rates(self, factor: float) -> None:
        if factor != 1.0:
            self._unscaled = [group["lr"] for group in self._learner.optimizer.param_groups]
            for group in self._learner.optimizer.param_groups:
                group["lr"] *= factor

    def _rates_again(self) -> None:
        """Give back the rates that the schedule has set: some schedules compute each rate from the last one."""
        if self._unscaled is not None:
            for group, rate in zip(self._learner.optimizer.param_groups, self._unscaled, strict=True):
                group["lr"] = rate
            self._unscaled = None

    def _updated(self, *_: object) -> None:
        """The optimizer has made its step."""
        if self._gate is Gate.UPDATE:
            self._optimizer.count += 1
            self._rates_again()


def _logit_problems(telemetry: TelemetryConfig) -> Iterator[str]:
    """Settings that nothing would obey under an optimizer that looks at no logits."""
    plain = TelemetryConfig()
    for name, shown in (("every", "every"), ("exact_max_logits", "exactMaxLogits")):
        if getattr(telemetry, name) != getattr(plain, name):
            yield f"telemetry.{shown}: only MuonClip measures logits; take it out, or train with MuonClipOptimizer"


def _layers(parameters: Iterable[tuple[str, Tensor]]) -> list[list[str]]:
    """The names of each layer's parameters: layers are numbered in their names, once."""
    found: dict[str, list[str]] = {}
    for name, _ in parameters:
        parts = name.split(".")
        number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
        if number is not None:
            found.setdefault(".".join(parts[: number + 1]), []).append(name)
    return list(found.values())


def _factor(step: int, override: RateOverride | None) -> float:
    return override.scale if override is not None and step <= override.until_step else 1.0


def _clip_ratio(norm: float, largest: float) -> float:
    return largest / norm if math.isfinite(norm) and norm > largest else 1.0
