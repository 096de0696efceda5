"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) for what is not a hidden matrix."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab_trainer.optim.config import MuonClipConfig


class AdamW:
    """AdamW with decoupled decay for matrices only (not for gains and biases).

    Both moments are filled with zeros from the start so that the keys of the state never depend on which
    steps were taken.
    """

    def __init__(self, parameters: Mapping[str, Tensor], config: MuonClipConfig) -> None:
        self._config = config
        self._names = tuple(parameters)
        self._parameters = list(parameters.values())
        self._first = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._second = [torch.zeros_like(parameter) for parameter in self._parameters]

    @torch.no_grad()
    def step(self, lr: float, count: int) -> None:
        """Update every parameter at rate `lr`; `count` is the number of this update, from 1.

        A parameter without a gradient counts as one with a zero gradient.
        """
        config = self._config
        # The bias corrections are folded into two scalars, not applied to every element.
        rate = lr / (1 - config.beta1**count)
        correction = math.sqrt(1 - config.beta2**count)
        for parameter, first, second in zip(self._parameters, self._first, self._second, strict=True):
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            first.lerp_(gradient, 1 - config.beta1)
            second.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
            denominator = second.sqrt().div_(correction).add_(config.epsilon)
            if parameter.ndim >= 2:
                parameter.mul_(1 - lr * config.decay)
            parameter.addcdiv_(first, denominator, value=-rate)

    def first_moments(self) -> dict[str, Tensor]:
        """Return the running mean of the gradients by name (the live tensors)."""
        return dict(zip(self._names, self._first, strict=True))

    def second_moments(self) -> dict[str, Tensor]:
        """Return the running mean of the squared gradients by name (the live tensors)."""
        return dict(zip(self._names, self._second, strict=True))
