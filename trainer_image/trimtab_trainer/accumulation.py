"""One rank's share of a step, computed in micro-batches whose gradients add up.

All micro-batches have as many windows, so the mean of their means is the mean over the share; which
samples a step sees, and in which order, does not depend on how finely the share is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab_trainer.batches import Batch
from trimtab_trainer.max_logits import AttentionTelemetry
from trimtab_trainer.model import ExpertTelemetry, ModelOutput
from trimtab_trainer.tensors import backpropagate, first_index


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """What the forward passes of one share yielded: losses [count], and [count, layers, heads] of the two others."""

    losses: Tensor
    logits: Tensor
    """The largest attention logit of every head, or an upper bound where `exactly` is false."""

    exactly: Tensor
    experts: ExpertTelemetry | None = None
    """The mean over the micro-batches, of a mixture of experts."""

    @property
    def loss(self) -> Tensor:
        """The mean loss of the share, a scalar."""
        return self.losses.mean()

    @property
    def max_logits(self) -> Tensor:
        """The largest attention logits [layers, heads] over all micro-batches; a NaN of any prevails."""
        return self.logits.amax(0)

    @property
    def exact(self) -> Tensor:
        """Whether each of `max_logits` is the maximum itself: the micro-batch that it comes from says so."""
        return self.exactly.gather(0, self.logits.argmax(0, keepdim=True)).squeeze(0)

    @property
    def nonfinite(self) -> Tensor:
        """How many losses and largest logits are not finite, a scalar."""
        return (~self.losses.isfinite()).sum() + (~self.logits.isfinite()).sum()

    def first_bad(self) -> str | None:
        """Name the first loss or logit, in the order of computation, that is not finite; None where all are."""
        bad_logits, bad_losses = ~self.logits.isfinite().flatten(1).all(1), ~self.losses.isfinite()
        found = first_index(bad_logits | bad_losses)
        if found is None:
            return None
        number = found[0]
        where = f" of micro-batch {number + 1} of {len(self.losses)}" if len(self.losses) > 1 else ""
        if (place := first_index(~self.logits[number].isfinite())) is not None:
            return f"attention logits of layer {place[0]}, head {place[1]}{where}"
        return f"loss{where}"


def accumulate(
    batch: Batch, count: int, forward: Callable[[Batch], ModelOutput], *, scale: float = 1.0
) -> MicroBatches:
    """Add `scale` times the gradient of the share's mean objective to every parameter's `grad`, in `count` passes."""
    losses: list[Tensor] = []
    attention: list[AttentionTelemetry] = []
    experts: list[ExpertTelemetry] = []
    for part in batch.micro_batches(count):
        output = forward(part)
        assert output.loss is not None
        assert output.objective is not None
        backpropagate(output.objective * (scale / count))
        losses.append(output.loss.detach())
        attention.append(output.attention)
        experts += [] if output.experts is None else [output.experts]
    return MicroBatches(
        losses=torch.stack(losses),
        logits=torch.stack([one.max_logit for one in attention]),
        exactly=torch.stack([one.exact for one in attention]),
        experts=_mean(experts) if experts else None,
    )


def _mean(experts: list[ExpertTelemetry]) -> ExpertTelemetry:
    return ExpertTelemetry(
        load=torch.stack([one.load for one in experts]).mean(0),
        entropy=torch.stack([one.entropy for one in experts]).mean(0),
        dropped=torch.stack([one.dropped for one in experts]).mean(0),
        z_loss=torch.stack([one.z_loss for one in experts]).mean(),
    )
