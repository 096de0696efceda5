"""Muon: momentum, orthogonalised, at a root mean square that suits AdamW's learning rates.

Algorithm 1 of Kimi K2 (arXiv 2507.20534) without its last part, QK-Clip; scale factor and decay as in
Moonlight (arXiv 2502.16982).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS, Polynomials
from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.newton_schulz import COMPUTE_TYPES, newton_schulz
from trimtab_trainer.optim.weights import Weight
from trimtab_trainer.tensors import frobenius_norms

LARGEST_BATCHED_SIDE: Final = 256
"""On the CPU, stacks of larger matrices leave the cache and cost more than one product after another."""


class Muon:
    """Muon over matrices and stacks of matrices; matrices of equal shape share their products where that pays.

    The momentum is filled with zeros from the start so that the keys of the state never depend on which steps were
    taken.
    """

    def __init__(self, weights: Sequence[Weight], config: MuonClipConfig) -> None:
        self._config = config
        self._weights = weights
        self._momentum = {
            weight.name: torch.zeros_like(weight.value, memory_format=torch.contiguous_format) for weight in weights
        }
        self._slabs = [slab for blocks in self._by_shape().values() for slab in _slabs(blocks)]

    @torch.no_grad()
    def step(self, lr: float) -> float:
        """Update every parameter at rate `lr`; return the sum of squares of the updates before `lr`.

        A parameter without a gradient counts as one with a zero gradient.
        """
        gradients = {weight.name: weight.matrices(weight.gradient()) for weight in self._weights}
        norms = [self._step_slab(slab, gradients, lr) for slab in self._slabs]
        return float(torch.cat(norms).double().square().sum()) if norms else 0.0

    def momentum(self) -> dict[str, Tensor]:
        """Return the momentum of every parameter by name (the live tensors)."""
        return self._momentum

    def _step_slab(self, slab: "Sequence[_Block]", gradients: dict[str, tuple[Tensor, ...]], lr: float) -> Tensor:
        """Update one slab; return the norms of its updates before `lr`."""
        directions = [
            advance_momentum(gradients[block.name][block.index], block.momentum, self._config) for block in slab
        ]
        # One matrix needs no copy.
        updates = orthogonal_updates(
            torch.stack(directions) if len(directions) > 1 else directions[0][None], self._config
        )
        apply_updates([block.value for block in slab], updates, lr, slab[0].decay)
        return frobenius_norms(updates).flatten()

    def _by_shape(self) -> "dict[tuple[object, ...], list[_Block]]":
        groups: defaultdict[tuple[object, ...], list[_Block]] = defaultdict(list)
        for weight in self._weights:
            matrices = zip(
                weight.matrices(weight.value.detach()), weight.matrices(self._momentum[weight.name]), strict=True
            )
            for index, (value, momentum) in enumerate(matrices):
                key = (value.shape, value.dtype, value.device, weight.decay)
                groups[key].append(_Block(weight.name, index, value, momentum, weight.decay))
        return groups


@dataclass(frozen=True, slots=True)
class _Block:
    """One matrix: views of its parameter's value and momentum, and where to find its gradient."""

    name: str
    index: int
    value: Tensor
    momentum: Tensor
    decay: float


def advance_momentum(gradient: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    """Advance `momentum` in place and return what is to be orthogonalised, which must not be written to.

    M = mu M + G; the direction is M, or with Nesterov G + mu M. Any shape; a gradient of fewer bits is widened.
    """
    torch.add(gradient, momentum, alpha=config.momentum, out=momentum)
    return torch.add(gradient, momentum, alpha=config.momentum) if config.nesterov else momentum


def orthogonal_updates(directions: Tensor, config: MuonClipConfig) -> Tensor:
    """Return the updates before the learning rate, of `directions` [count, rows, columns], in the compute type.

    NS(direction) times 0.2 sqrt(max(rows, columns)): a root mean square of about 0.2 at full rank.
    """
    scale = 0.2 * math.sqrt(max(directions.shape[-2:]))
    return newton_schulz(
        directions,
        _scaled(COEFFICIENT_SETS[config.coefficients], scale),
        COMPUTE_TYPES[config.newton_schulz_dtype],
        gram=config.gram,
    )


def apply_updates(parameters: Sequence[Tensor], updates: Iterable[Tensor], lr: float, decay: float) -> None:
    """W = W - lr (update + decay W), in place; the decay uses the base rate, not the scaled one."""
    for parameter, update in zip(parameters, updates, strict=True):
        parameter.mul_(1 - lr * decay).add_(update, alpha=-lr)


def _scaled(polynomials: Polynomials, scale: float) -> Polynomials:
    """Scale the result: a polynomial is linear in its coefficients, so that of the last iteration costs nothing."""
    *before, (a, b, c) = polynomials
    return (*before, (a * scale, b * scale, c * scale))


def _slabs(blocks: "list[_Block]") -> "list[list[_Block]]":
    """The blocks of one shape that are updated at once."""
    first = blocks[0].value
    batched = first.device.type != "cpu" or min(first.shape) <= LARGEST_BATCHED_SIDE
    return [blocks] if batched else [[block] for block in blocks]
