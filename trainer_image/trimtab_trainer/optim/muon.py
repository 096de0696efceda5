"""Muon: momentum, orthogonalised, at a root mean square that suits AdamW's learning rates.

Algorithm 1 of Kimi K2 (arXiv 2507.20534) without its last part, QK-Clip; scale factor and decay as in
Moonlight (arXiv 2502.16982).
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS
from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.newton_schulz import COMPUTE_TYPES, newton_schulz

LARGEST_BATCHED_SIDE: Final = 256
"""On the CPU, stacks of larger matrices leave the cache and cost more than one product after another."""


class Muon:
    """Muon over two-dimensional parameters; matrices of equal shape share their products.

    The momentum of one shape is one tensor [count, rows, columns], filled with zeros from the start so that
    the keys of the state never depend on which steps were taken.
    """

    def __init__(self, parameters: Mapping[str, Tensor], config: MuonClipConfig) -> None:
        self._config = config
        self._groups = [_Group(members) for members in _by_shape(parameters).values()]

    @torch.no_grad()
    def step(self, lr: float) -> float:
        """Update every parameter at rate `lr`; return the sum of squares of the updates before `lr`.

        A parameter without a gradient counts as one with a zero gradient.
        """
        return sum(self._step_group(group, lr) for group in self._groups)

    def momentum(self) -> dict[str, Tensor]:
        """Return the momentum of every parameter by name: views, so that loading writes into them."""
        return {
            name: buffer
            for group in self._groups
            for name, buffer in zip(group.names, group.momentum.unbind(), strict=True)
        }

    def _step_group(self, group: "_Group", lr: float) -> float:
        gradients = group.gradients()
        squares = 0.0
        for start in range(0, len(group.names), group.slab):
            part = slice(start, start + group.slab)
            updates = muon_updates(gradients[part], group.momentum[part], self._config)
            apply_updates(group.parameters[part], updates, lr, self._config.decay)
            squares += float(updates.square().sum(dtype=torch.float64))
        return squares


class _Group:
    """Parameters of one shape."""

    def __init__(self, members: Mapping[str, Tensor]) -> None:
        self.names = tuple(members)
        self.parameters = list(members.values())
        first = self.parameters[0]
        self.momentum = torch.zeros((len(self.names), *first.shape), dtype=first.dtype, device=first.device)
        batched = first.device.type != "cpu" or min(first.shape) <= LARGEST_BATCHED_SIDE
        self.slab = len(self.names) if batched else 1

    def gradients(self) -> Tensor:
        return torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters])


def muon_updates(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    """Advance `momentum` in place and return the updates before the learning rate.

    All three are [count, rows, columns]. M = mu M + G; the update is NS(M), or NS(G + mu M) with Nesterov,
    times 0.2 sqrt(max(rows, columns)): a root mean square of about 0.2 at full rank.
    """
    momentum.mul_(config.momentum).add_(gradients)
    direction = torch.add(gradients, momentum, alpha=config.momentum) if config.nesterov else momentum
    orthogonal = newton_schulz(
        direction, COEFFICIENT_SETS[config.coefficients], COMPUTE_TYPES[config.newton_schulz_dtype]
    )
    scale = 0.2 * math.sqrt(max(gradients.shape[-2:]))
    return orthogonal.to(momentum.dtype) * scale


def apply_updates(parameters: list[Tensor], updates: Tensor, lr: float, decay: float) -> None:
    """W = W - lr (update + decay W), in place; the decay uses the base rate, not the scaled one."""
    for parameter, update in zip(parameters, updates, strict=True):
        parameter.mul_(1 - lr * decay).add_(update, alpha=-lr)


def _by_shape(parameters: Mapping[str, Tensor]) -> dict[tuple[object, ...], dict[str, Tensor]]:
    groups: defaultdict[tuple[object, ...], dict[str, Tensor]] = defaultdict(dict)
    for name, parameter in parameters.items():
        groups[(parameter.shape, parameter.dtype, parameter.device)][name] = parameter
    return groups
