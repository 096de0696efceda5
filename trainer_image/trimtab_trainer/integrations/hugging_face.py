"""Hugging Face's `Trainer`, guarded: a trainer that reads the run's data, and a callback that reports and obeys."""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trimtab_trainer.errors import BadConfig
from trimtab_trainer.integrations.run import Run
from trimtab_trainer.integrations.training import Evaluation, Learner
from trimtab_trainer.tensors import IGNORED_TARGET


class SampleLoader:
    """Iterates the micro-batches of the run's windows; a step's first one is drawn when the step before is done.

    It has no length, so that the trainer goes on over it as long as the run does: a rollback makes a run longer.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._batches: Iterator[dict[str, Tensor]] | None = None
        self.state: TrainerState | None = None
        """Of the trainer, whose count of steps follows the run's."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        self._batches = self._batches or self._drawn()
        return self._batches

    def _drawn(self) -> Generator[dict[str, Tensor]]:
        for batch in self._run.training.batches():
            if self.state is not None:
                self.state.global_step = batch.step - 1
            for part in batch.micro_batches(self._run.micro_batches):
                yield causal_inputs(part.tokens, part.targets)


class SessionCallback(TrainerCallback):
    """Reports every step, withholds updates that are not finite, and lets the run, not the trainer, decide its end."""

    def __init__(self, run: Run, loader: SampleLoader, evaluate: Evaluation) -> None:
        self._run, self._loader, self._evaluate = run, loader, evaluate

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Assemble the world around what the trainer has built; raises BadConfig."""
        if problems := [*argument_problems(args, self._run), *_part_problems(parts, state, self._loader, self._run)]:
            raise BadConfig(problems)
        self._loader.state = state
        self._run.begin(
            Learner(
                model=parts["model"],
                optimizer=_bare(parts["optimizer"]),
                scheduler=parts["lr_scheduler"],
                evaluate=self._evaluate,
                largest_norm=args.max_grad_norm or math.inf,
            )
        )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Agree with all ranks on the update."""
        self._run.training.gate()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Publish the step. The last one is the run's last only when its records were judged."""
        self._run.training.report()
        control.should_training_stop = False

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Let the trainer end when the run is finished."""
        control.should_training_stop = self._run.training.finished


class GuardedTrainer(Trainer):
    """A `Trainer` over the data of a run. It takes what `Trainer` takes, by keyword, but for the training data.

    `train()` returns when the run is finished, and raises WorldEnded where another world is to go on.
    """

    def __init__(self, run: Run, *, callbacks: Sequence[TrainerCallback] = (), **options: Any) -> None:
        if options.get("train_dataset") is not None:
            raise BadConfig(("train_dataset: the run's data are those of trainer.config.data; leave it out",))
        self._run = run
        self._loader = SampleLoader(run)
        guard = SessionCallback(run, self._loader, self.evaluation_loss)
        super().__init__(callbacks=[*callbacks, guard], **options)  # pyright: ignore[reportUnknownMemberType] partly untyped

    @property
    def bare_model(self) -> nn.Module:
        """The model without what keeps replicas equal."""
        return cast("nn.Module", self.model)  # pyright: ignore[reportUnknownMemberType] partly untyped

    def get_train_dataloader(self) -> Any:
        """The run's data, which no sampler of accelerate's may divide or read ahead."""
        return self._loader

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor | Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """As the trainer's, noting the loss, and the gradients once all are there."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._run.training.note(loss)
        if self.accelerator.sync_gradients:  # pyright: ignore[reportUnknownMemberType] partly untyped
            self._run.training.measure()
        return loss

    def evaluation_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some samples on the bare model."""
        inputs = self._prepare_inputs(causal_inputs(tokens, targets))
        with self.compute_loss_context_manager():
            loss = self.compute_loss(self.bare_model, inputs)
        assert isinstance(loss, Tensor)
        return loss


def causal_inputs(tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What models for causal language modelling take, [batch, sequence + 1]: they shift the labels themselves."""
    last = targets[:, -1:].clamp(min=0)
    ignored = torch.full_like(last, IGNORED_TARGET)
    return {"input_ids": torch.cat((tokens, last), 1), "labels": torch.cat((ignored, targets), 1)}


def argument_problems(args: Any, run: Run) -> Iterator[str]:
    """What in `TrainingArguments` contradicts the run, or what this integration cannot do."""
    same = (
        ("max_steps", run.steps, "steps"),
        ("seed", run.seed, "seed"),
        ("gradient_accumulation_steps", run.micro_batches, "gradientAccumulationSteps"),
        ("per_device_train_batch_size", run.micro_batch, "globalBatch"),
        ("world_size", run.ranks, "numNodes and numProcPerNode"),
    )
    for name, wanted, field in same:
        if (given := getattr(args, name)) != wanted:
            yield f"TrainingArguments.{name}: {given} must be {wanted}, which follows from {field}"
    refused = (
        ("deepspeed", args.deepspeed, "its optimizer and state are out of reach"),
        ("fsdp", args.fsdp, "only whole replicas can be saved and restored"),
        ("fp16", args.fp16, "the scale of its loss is out of reach; use bf16"),
        ("auto_find_batch_size", args.auto_find_batch_size, "a step's samples are the run's"),
        ("load_best_model_at_end", args.load_best_model_at_end, "the run's last state is its result"),
        ("dispatch_batches", args.accelerator_config.dispatch_batches, "each rank reads its own share of a window"),
        ("split_batches", args.accelerator_config.split_batches, "each rank reads its own share of a window"),
    )
    for name, given, why in refused:
        if given:
            yield f"TrainingArguments.{name}: {given} is not supported: {why}"


def _part_problems(parts: dict[str, Any], state: TrainerState, loader: SampleLoader, run: Run) -> Iterator[str]:
    if parts["train_dataloader"] is not loader:
        yield "Trainer: its data loader is not the run's, and can neither go back nor skip; use GuardedTrainer"
    if state.global_step:
        yield "resume_from_checkpoint: the run resumes from its own checkpoints; leave it out"
    scheduler, config = parts["lr_scheduler"], getattr(parts["model"], "config", None)
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        yield f"lr_scheduler: {type(scheduler).__name__} is not supported: a step's rate must follow from its number"
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions <= run.sequence:
        yield f"model.config.max_position_embeddings: {positions} must be at least {run.sequence + 1}, a whole sample"
    vocabulary = getattr(config, "vocab_size", None)
    if isinstance(vocabulary, int) and vocabulary < run.vocabulary:
        yield f"model.config.vocab_size: {vocabulary} must be at least {run.vocabulary}, which is model.vocabSize"


def _bare(optimizer: Any) -> Optimizer:
    """The optimizer itself, without what accelerate has put around it."""
    return getattr(optimizer, "optimizer", optimizer)
