"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) for what is not a hidden matrix."""

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor

from trimtab_trainer import tensor_lists
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
        for group in self._together(names):
            values = [weight.value for weight in group]
            first = [self._first[weight.name] for weight in group]
            second = [self._second[weight.name] for weight in group]
            gradients = [weight.gradient().to(weight.value.dtype) for weight in group]
            tensor_lists.move_towards(first, gradients, 1 - config.beta1)
            tensor_lists.scale(second, config.beta2)
            tensor_lists.add_products(second, gradients, gradients, 1 - config.beta2)
            denominators = tensor_lists.scaled_roots(second, correction, config.epsilon)
            if group[0].decay:
                tensor_lists.scale(values, 1 - lr * group[0].decay)
            tensor_lists.add_quotients(values, first, denominators, -rate * group[0].learning_rate_scale)

    def _together(self, names: Container[str] | None) -> Iterable[Sequence[Weight]]:
        """What is updated in one go: on the CPU each weight by itself, which stays in the cache from pass to pass."""
        groups: defaultdict[object, list[Weight]] = defaultdict(list)
        for weight in self._weights:
            if names is None or weight.name in names:
                device = weight.value.device
                alone = weight.name if device.type == "cpu" else ""
                groups[alone, device, weight.decay, weight.learning_rate_scale].append(weight)
        return groups.values()

    def first_moments(self) -> dict[str, Tensor]:
        """Return the running mean of the gradients by name (the live tensors)."""
        return self._first

    def second_moments(self) -> dict[str, Tensor]:
        """Return the running mean of the squared gradients by name (the live tensors)."""
        return self._second
