"""What a loop brings: the model between its steps."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor

from trimtab_trainer.batches import Batch
from trimtab_trainer.optim import RateOverride


class Trainee(Protocol):
    """What a loop brings: something whose parameters can be compared and whose losses can be measured."""

    def learning_rate(self, step: int, override: RateOverride | None) -> float:
        """The learning rate of a step, from 1."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Every parameter once, in an order that never changes."""
        ...

    def losses(self, samples: Tensor) -> Tensor:
        """The evaluation-mode loss of each of `samples`; leaves no trace in the state."""
        ...


@runtime_checkable
class Repeatable(Protocol):
    """A trainee whose training steps can be computed again: the loss of one needs no forward pass of its own."""

    def training_loss(self, batch: Batch, dropout: float) -> Tensor:
        """The loss of a share, bit for bit as the loop hands it to the gate with so much dropout; leaves no trace."""
        ...
