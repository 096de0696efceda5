"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) for what is not a hidden matrix."""

import math
from collections.abc import Container, Sequence

import torch
from torch import Tensor

from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.weights import Weight


class AdamW:
    """AdamW with the decoupled decay and the scale of the learning rate of each weight.

    Both moments are filled with zeros from the start so that the keys of the state never depend on which
    steps were taken.
    """

    def __init__(self, weights: Sequence[Weight], config: MuonClipConfig) -> None:
        self._config = config
        self._weights = weights
        self._first = {weight.name: torch.zeros_like(weight.value) for weight in weights}
        self._second = {weight.name: torch.zeros_like(weight.value) for weight in weights}

    @torch.no_grad()
    def step(self, lr: float, count: int, names: Container[str] | None = None) -> None:
        """Update every parameter, or those of `names`, at rate `lr`; `count` is the number of this update, from 1.

        A parameter without a gradient counts as one with a zero gradient.
        """
        config = self._config
        # The bias corrections are folded into two scalars, not applied to every element.
        rate = lr / (1 - config.beta1**count)
        correction = math.sqrt(1 - config.beta2**count)
        for weight in self._weights:
            if names is not None and weight.name not in names:
                continue
            value, first, second = weight.value, self._first[weight.name], self._second[weight.name]
            gradient = weight.gradient().to(value.dtype)
            first.lerp_(gradient, 1 - config.beta1)
            second.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
            denominator = second.sqrt().div_(correction).add_(config.epsilon)
            if weight.decay:
                value.mul_(1 - lr * weight.decay)
            value.addcdiv_(first, denominator, value=-rate * weight.learning_rate_scale)

    def first_moments(self) -> dict[str, Tensor]:
        """Return the running mean of the gradients by name (the live tensors)."""
        return self._first

    def second_moments(self) -> dict[str, Tensor]:
        """Return the running mean of the squared gradients by name (the live tensors)."""
        return self._second
