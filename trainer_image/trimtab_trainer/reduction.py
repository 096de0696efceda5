"""Gradients reduced over all ranks in flat buckets whose layout never changes.

A reduction that regroups tensors after its first pass, as DistributedDataParallel does, adds numbers in another order
after a restart; with three ranks or more a resumed run would then differ in the last bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab_trainer.accumulation import MicroBatches
from trimtab_trainer.collectives import World
from trimtab_trainer.distributed_tensors import own_part
from trimtab_trainer.optim import count_non_finite, gradient_norms
from trimtab_trainer.tensors import floats


@dataclass(frozen=True, slots=True)
class Reduced:
    """What travelled with the gradients: mean and maximum of the ranks' losses, largest logits, raw bad values."""

    loss: float
    loss_max: float
    max_logits: Tensor
    """[layers, heads], the maximum over all ranks; a NaN of any rank is infinity here."""

    exact: bool
    """Whether every largest logit is exact on every rank; some are upper bounds otherwise."""

    nonfinite: int
    """Non-finite losses and largest logits, counted in every micro-batch of every rank before reduction."""


class GradientBuckets:
    """Owns the gradient memory: every parameter's `grad` is a view of a flat bucket.

    The last elements of the last bucket carry the loss and the count of non-finite values, so that they cost no
    exchange of their own.
    """

    TAIL = 2

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], world: World, bucket_bytes: int) -> None:
        self._world = world
        groups = _layout([parameter for _, parameter in parameters], bucket_bytes)
        self._buckets: list[Tensor] = []
        for position, group in enumerate(groups):
            tail = self.TAIL if position == len(groups) - 1 else 0
            bucket = torch.zeros(sum(p.numel() for p in group) + tail, dtype=group[0].dtype, device=group[0].device)
            offset = 0
            for parameter in group:
                parameter.grad = bucket[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()
            self._buckets.append(bucket)
        self._tail = self._buckets[-1][-self.TAIL :]
        self._named = [(name, _gradient(parameter)) for name, parameter in parameters]

    def named(self) -> list[tuple[str, Tensor]]:
        """Every gradient, in the model's order."""
        return self._named

    def norms(self, parts: Sequence[Sequence[Tensor]]) -> list[float]:
        """The norm of each of `parts` of the reduced gradient, which every rank has whole."""
        return gradient_norms(parts)

    def nonfinite(self) -> int:
        """How many elements of the reduced gradient are not finite."""
        return count_non_finite(gradient for _, gradient in self._named)

    def zero(self) -> None:
        """Clear every gradient, keeping the views."""
        for bucket in self._buckets:
            bucket.zero_()

    @torch.no_grad()
    def reduce(self, computed: MicroBatches) -> Reduced:
        """Average gradients and loss over the ranks; take the maximum of the losses and of the largest logits."""
        self._tail[0] = computed.loss
        self._tail[1] = computed.nonfinite
        for bucket in self._buckets:
            self._world.sum(bucket)
        nonfinite = self._tail[1].clone()
        for bucket in self._buckets:
            bucket.div_(self._world.size)
        return _reduced(self._tail[0], nonfinite, computed, self._world)


class ShardedGradients:
    """Gradients of sharded parameters, of which each rank has its part: backward passes reduce them by themselves."""

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], world: World) -> None:
        self._parameters, self._world = parameters, world

    def named(self) -> list[tuple[str, Tensor]]:
        """This rank's part of every gradient, in the model's order; zeros where there is none."""
        return [(name, _own_gradient(parameter)) for name, parameter in self._parameters]

    def norms(self, parts: Sequence[Sequence[Tensor]]) -> list[float]:
        """The norm of each part of the gradient over all ranks, given this rank's share of each: one exchange."""
        squares = torch.tensor([norm**2 for norm in gradient_norms(parts)], dtype=torch.float64)
        self._world.sum(squares)
        return [math.sqrt(square) for square in floats(squares)]

    def nonfinite(self) -> int:
        """How many elements of the gradient are not finite, over all ranks."""
        count = torch.tensor([count_non_finite(gradient for _, gradient in self.named())])
        self._world.sum(count)
        return int(count)

    def zero(self) -> None:
        """Forget every gradient."""
        for _, parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def reduce(self, computed: MicroBatches) -> Reduced:
        """Average the losses over the ranks; take the maximum of the losses and of the largest logits."""
        sums = torch.stack((computed.loss.float(), computed.nonfinite.float()))
        self._world.sum(sums)
        return _reduced(sums[0] / self._world.size, sums[1], computed, self._world)


def _reduced(loss: Tensor, nonfinite: Tensor, computed: MicroBatches, world: World) -> Reduced:
    max_logits = computed.max_logits
    inexact = (~computed.exact).any().float().view(1)
    largest = torch.cat((max_logits.flatten().float(), computed.loss.float().view(1), inexact))
    world.max(largest)
    mean, count, loss_max, is_inexact = floats(torch.cat((loss.view(1), nonfinite.view(1), largest[-2:])))
    return Reduced(
        loss=mean,
        loss_max=loss_max,
        max_logits=largest[:-2].view_as(max_logits),
        exact=not is_inexact,
        nonfinite=int(count),
    )


def _own_gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(own_part(parameter)) if parameter.grad is None else own_part(parameter.grad)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _layout(parameters: Sequence[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    """Fill buckets in parameter order: a function of the model alone."""
    groups: list[list[Tensor]] = [[]]
    size = 0
    for parameter in parameters:
        length = parameter.numel() * parameter.element_size()
        if groups[-1] and (size + length > bucket_bytes or parameter.dtype != groups[-1][0].dtype):
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += length
    return groups
