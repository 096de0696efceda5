"""Lightning's `Trainer`, guarded: a callback that reports and obeys, and the run's data for `fit`."""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trimtab_trainer.errors import BadConfig
from trimtab_trainer.integrations.run import Run
from trimtab_trainer.integrations.training import Learner

ENDLESS: Final = 1 << 40
"""More batches than any run has. Without a length, Lightning reads one batch ahead; with a shorter one, an epoch would
end somewhere behind a rollback."""


@runtime_checkable
class Evaluating(Protocol):
    """What a module must offer beside `training_step`."""

    def evaluation_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of samples [batch, sequence], in evaluation mode and without a trace in the state."""
        ...


class SampleLoader:
    """Iterates the micro-batches of the run's windows; a step's first one is drawn when the step before is done.

    A micro-batch is `{"tokens": [samples, sequence], "targets": [samples, sequence]}`, int64; a target of -100 counts
    for nothing.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._batches: Iterator[dict[str, Tensor]] | None = None

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        self._batches = self._batches or self._drawn()
        return self._batches

    def _drawn(self) -> Generator[dict[str, Tensor]]:
        for batch in self._run.training.batches():
            for part in batch.micro_batches(self._run.micro_batches):
                yield {"tokens": part.tokens, "targets": part.targets}


class SessionCallback(Callback):
    """Reports every step, withholds updates that are not finite, and lets the run, not the trainer, decide its end.

    Give `loader` to `fit`. It returns when the run is finished, and raises WorldEnded where another world is to go on.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.loader = SampleLoader(run)
        self._gated = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Assemble the world around what the trainer has built; raises BadConfig."""
        if problems := [*trainer_problems(trainer, self._run), *self._problems(trainer, pl_module)]:
            raise BadConfig(problems)
        clip = trainer.gradient_clip_val

        def evaluate(tokens: Tensor, targets: Tensor) -> Tensor:
            device = pl_module.device
            with trainer.precision_plugin.forward_context():  # pyright: ignore[reportUnknownMemberType] partly untyped
                return cast("Evaluating", pl_module).evaluation_loss(tokens.to(device), targets.to(device))

        configs = trainer.lr_scheduler_configs
        self._run.begin(
            Learner(
                model=pl_module,
                optimizer=trainer.optimizers[0],
                scheduler=cast("LRScheduler", configs[0].scheduler) if configs else None,
                evaluate=evaluate,
                largest_norm=float(clip) if clip else math.inf,
            )
        )

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Note a micro-batch's part of the loss."""
        self._run.training.note(loss)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Agree with all ranks on the update, before the gradient is clipped."""
        self._run.training.measure()
        self._run.training.gate()
        self._gated = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Publish the step that ends with this micro-batch, if one does."""
        if self._gated:
            self._gated = False
            self._run.training.report()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the trainer end when the run is finished."""
        trainer.should_stop = self._run.training.finished

    def _problems(self, trainer: Trainer, module: LightningModule) -> Iterator[str]:
        if trainer.train_dataloader is not self.loader:
            yield "train_dataloaders: they are not the run's and cannot go back or skip; call fit(module, guard.loader)"
        if not isinstance(module, Evaluating):
            yield "LightningModule: it needs a method evaluation_loss(tokens, targets), by which a restore is proved"
        if not module.automatic_optimization:
            yield "automatic_optimization: False is not supported: the update must pass the gate"


def trainer_problems(trainer: Any, run: Run) -> Iterator[str]:
    """What in the `Trainer` contradicts the run, or what this integration cannot do."""
    same = (
        ("max_steps", -1, "the run decides how long it is"),
        ("max_epochs", -1, "the run decides how long it is"),
        ("accumulate_grad_batches", run.micro_batches, "it follows from gradientAccumulationSteps"),
        ("world_size", run.ranks, "it follows from numNodes and numProcPerNode"),
        ("limit_train_batches", 1.0, "every window counts"),
        ("fast_dev_run", False, "every window counts"),
    )
    for name, wanted, why in same:
        if (given := getattr(trainer, name)) != wanted:
            yield f"Trainer.{name}: {given} must be {wanted}: {why}"
    if type(trainer.strategy) not in {SingleDeviceStrategy, DDPStrategy}:
        kind = type(trainer.strategy).__name__
        yield f"Trainer.strategy: {kind} is not supported: only whole replicas can be saved and restored; use ddp"
    if trainer.scaler is not None:
        yield "Trainer.precision: 16-mixed is not supported: the scale of its loss is out of reach; use bf16-mixed"
    if str(trainer.gradient_clip_algorithm or "norm") not in {"norm", "GradClipAlgorithmType.NORM"}:
        yield "Trainer.gradient_clip_algorithm: value is not supported: only a clipped norm is reported; use norm"
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks):
        yield (
            "Trainer.callbacks: GradientAccumulationScheduler is not supported: a step's micro-batches follow from "
            "gradientAccumulationSteps; leave it out"
        )
    if len(trainer.optimizers) != 1:
        yield f"configure_optimizers: {len(trainer.optimizers)} optimizers are not supported; return one"
    yield from _schedule_problems(trainer.lr_scheduler_configs)


def _schedule_problems(configs: Sequence[Any]) -> Iterator[str]:
    if len(configs) > 1:
        yield f"configure_optimizers: {len(configs)} schedules are not supported; return one"
    for config in configs:
        if config.reduce_on_plateau or config.interval != "step" or config.frequency != 1:
            yield (
                "configure_optimizers: the schedule must step with each update, for a step's rate must follow from its "
                'number; return {"scheduler": ..., "interval": "step", "frequency": 1}'
            )
