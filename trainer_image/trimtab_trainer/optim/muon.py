"""Muon: momentum, orthogonalised, at a root mean square that suits AdamW's learning rates.

Algorithm 1 of Kimi K2 (arXiv 2507.20534) without its last part, QK-Clip; scale factor and decay as in
Moonlight (arXiv 2502.16982).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor

from trimtab_trainer import tensor_lists
from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS, Polynomials
from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.division import Task, matrix_cost
from trimtab_trainer.optim.newton_schulz import COMPUTE_TYPES, normalise, orthogonalised
from trimtab_trainer.optim.shared_results import Peers, SharedResults
from trimtab_trainer.optim.weights import Weight
from trimtab_trainer.tensors import floats, frobenius_norms, joined_norm, row_pieces

SLAB_BYTES: Final = 1 << 18
"""How much, in the type of the products, is multiplied at once on the CPU, where stacks that leave the cache cost more
than one product after another. A slab never depends on the number of ranks, so neither do its bits."""

ACCELERATOR_SLAB_BYTES: Final = 8 << 20
"""The same on other devices, where each product has to be launched."""

Gradients = Mapping[str, tuple[Tensor, ...]]
"""The gradient of every matrix of every parameter."""


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
        self._norms: dict[int, Tensor] = {}
        blocks = self._blocks()
        kind = weights[0].value.device.type if weights else "cpu"
        self._slabs = [[blocks[place] for place in slab] for slab in shared_products(weights, config, kind)]
        self._shared: SharedResults | None = None

    def divide(self, peers: Peers) -> None:
        """Orthogonalise each matrix on one of the peers, which hold equal matrices, for all from now on.

        Who computes a matrix changes no bit of its update.
        """
        if self._slabs:
            dtype, device = COMPUTE_TYPES[self._config.newton_schulz_dtype], self._slabs[0][0].value.device
            self._shared = SharedResults([_task(slab, self._config) for slab in self._slabs], peers, dtype, device)

    @torch.no_grad()
    def step(self, lr: float, places: Collection[int] | None = None) -> None:
        """Update every matrix at rate `lr`, or those of the slabs at `places`, as `shared_products` numbers them.

        A parameter without a gradient counts as one with a zero gradient. Where the work is divided, all peers call
        this at once, for all matrices; an error of their exchange leaves some matrices updated and others not.
        """
        chosen = range(len(self._slabs)) if places is None else places
        names = {block.name for place in chosen for block in self._slabs[place]}
        gradients = {one.name: one.matrices(one.gradient()) for one in self._weights if one.name in names}
        for place, updates in self._updates(chosen, gradients):
            slab = self._slabs[place]
            values, first = [block.value for block in slab], slab[0]
            self._norms[place] = apply_updates(values, updates, lr, first.decay, first.learning_rate_scale)

    def squares(self) -> float:
        """The sum of squares of the last updates before the learning rate, each slab's last one."""
        # Added up in one order, whoever computed which, and when.
        norms = [self._norms[place] for place in sorted(self._norms)]
        return float(torch.cat(norms).double().square().sum()) if norms else 0.0

    def update_norms(self) -> dict[str, float]:
        """The Euclidean norm of each parameter's last update, before `lr`, by name; none before the first update."""
        squares: defaultdict[str, float] = defaultdict(float)
        places = sorted(self._norms)
        norms = floats(torch.cat([self._norms[place] for place in places])) if places else []
        for block, norm in zip((block for place in places for block in self._slabs[place]), norms, strict=True):
            squares[block.name] += norm**2
        return {name: math.sqrt(square) for name, square in squares.items()}

    def momentum(self) -> dict[str, Tensor]:
        """Return the momentum of every parameter by name (the live tensors)."""
        return self._momentum

    def _updates(self, places: Iterable[int], gradients: Gradients) -> Iterator[tuple[int, Tensor]]:
        """The place of every slab and the updates of its matrices, before the learning rate."""
        shared = self._shared
        if shared is None:
            for place in places:
                yield place, self._orthogonalised(place, gradients)
            return
        others = [place for place in range(len(self._slabs)) if place not in shared.own]
        for place, updates in shared.each(
            partial(self._orthogonalised, gradients=gradients), partial(self._keep_up, others, gradients)
        ):
            slab = self._slabs[place]
            yield place, updates.view(len(slab), *slab[0].value.shape)

    def _orthogonalised(self, place: int, gradients: Gradients) -> Tensor:
        """Advance the momentum of one slab; return the updates that follow from it."""
        slab = self._slabs[place]
        own = [gradients[block.name][block.index] for block in slab]
        return orthogonal_updates(directions(own, [block.momentum for block in slab], self._config), self._config)

    def _keep_up(self, places: Iterable[int], gradients: Gradients) -> None:
        """Advance the momentum of matrices that others orthogonalise: every rank has the whole state."""
        blocks = [block for place in places for block in self._slabs[place]]
        if blocks:
            own = [gradients[block.name][block.index] for block in blocks]
            _accumulate(own, [block.momentum for block in blocks], self._config)

    def _blocks(self) -> "dict[tuple[str, int], _Block]":
        found: dict[tuple[str, int], _Block] = {}
        for weight in self._weights:
            values, momenta = weight.matrices(weight.value.detach()), weight.matrices(self._momentum[weight.name])
            for index, (value, momentum) in enumerate(zip(values, momenta, strict=True)):
                how = (weight.decay, weight.learning_rate_scale)
                found[weight.name, index] = _Block(weight.name, index, value, momentum, *how)
        return found


@dataclass(frozen=True, slots=True)
class _Block:
    """One matrix: views of its parameter's value and momentum, and where to find its gradient."""

    name: str
    index: int
    value: Tensor
    momentum: Tensor
    decay: float
    learning_rate_scale: float


def shared_products(weights: Iterable[Weight], config: MuonClipConfig, device: str) -> list[list[tuple[str, int]]]:
    """Which matrices share their products on a kind of device, such as `cpu`: slabs of (parameter, number in it).

    Matrices of one shape, type and way to be updated share them, as many as pay, in the order of their parameters. Of
    the weights nothing is looked at but that, so that it holds for any rank's.
    """
    groups: defaultdict[tuple[object, ...], list[tuple[str, int]]] = defaultdict(list)
    for weight in weights:
        how = (weight.value.dtype, weight.value.device, weight.decay, weight.learning_rate_scale)
        for index, matrix in enumerate(weight.matrices(weight.value.detach())):
            groups[matrix.shape, *how].append((weight.name, index))
    most = SLAB_BYTES if device == "cpu" else ACCELERATOR_SLAB_BYTES
    size = COMPUTE_TYPES[config.newton_schulz_dtype].itemsize
    slabs: list[list[tuple[str, int]]] = []
    for (shape, *_), places in groups.items():
        count = max(most // (cast("torch.Size", shape).numel() * size), 1)
        slabs += [places[start : start + count] for start in range(0, len(places), count)]
    return slabs


def directions(gradients: Sequence[Tensor], momenta: Sequence[Tensor], config: MuonClipConfig) -> Tensor:
    """Advance each momentum [rows, columns] in place; return what is to be orthogonalised [count, rows, columns].

    M = mu M + G; the direction is M, or with Nesterov G + mu M, divided by its Frobenius norm, in the compute type. A
    gradient of fewer bits is widened; the norm is that of the direction before it is rounded.
    """
    rounded = torch.empty(
        (len(momenta), *momenta[0].shape),
        dtype=COMPUTE_TYPES[config.newton_schulz_dtype],
        device=momenta[0].device,
    )
    if rounded.device.type != "cpu":
        return normalise(rounded, _advance_together(gradients, momenta, rounded, config))
    norms = [_advance(*each, config) for each in zip(gradients, momenta, rounded.unbind(), strict=True)]
    return normalise(rounded, torch.stack(norms))


def orthogonal_updates(normalised: Tensor, config: MuonClipConfig) -> Tensor:
    """Return the updates of `normalised` directions [count, rows, columns] before the learning rate, in their type.

    NS(direction) times 0.2 sqrt(max(rows, columns)): a root mean square of about 0.2 at full rank.
    """
    scale = 0.2 * math.sqrt(max(normalised.shape[-2:]))
    return orthogonalised(normalised, _scaled(COEFFICIENT_SETS[config.coefficients], scale), gram=config.gram)


def apply_updates(parameters: Sequence[Tensor], updates: Tensor, lr: float, decay: float, scale: float = 1.0) -> Tensor:
    """W = W - lr (scale update + decay W), in place; the decay uses the base rate, not a scaled one.

    `updates` [count, rows, columns] may have fewer bits than the parameters. Returns their Frobenius norms [count].
    """
    if updates.device.type != "cpu":
        return _apply_together(parameters, updates, lr, decay, lr * scale)
    norms = [_apply(*each, lr, decay, lr * scale) for each in zip(parameters, updates.unbind(), strict=True)]
    return torch.cat(norms).flatten()


def _advance(gradient: Tensor, momentum: Tensor, rounded: Tensor, config: MuonClipConfig) -> Tensor:
    """Advance one momentum, write its direction into `rounded`; return the direction's norm [1, 1]."""
    norms: list[Tensor] = []
    for gradients, momenta, target in row_pieces(gradient, momentum, rounded):
        _accumulate([gradients], [momenta], config)
        direction = torch.add(gradients, momenta, alpha=config.momentum) if config.nesterov else momenta
        target.copy_(direction)
        norms.append(frobenius_norms(direction))
    return joined_norm(norms)


def _advance_together(
    gradients: Sequence[Tensor], momenta: Sequence[Tensor], rounded: Tensor, config: MuonClipConfig
) -> Tensor:
    """The same of all matrices at once; return the norms of their directions [count, 1, 1]."""
    _accumulate(gradients, momenta, config)
    towards = tensor_lists.add(gradients, momenta, alpha=config.momentum) if config.nesterov else momenta
    tensor_lists.copy_to(rounded.unbind(), towards)
    return tensor_lists.norms(towards, torch.promote_types(towards[0].dtype, torch.float32))[:, None, None]


def _apply(parameter: Tensor, update: Tensor, lr: float, decay: float, scaled_lr: float) -> Tensor:
    """Update one parameter; return the update's norm [1, 1]."""
    norms: list[Tensor] = []
    for values, changes in row_pieces(parameter, update):
        # Widened once, for the norm and for the addition.
        wide = changes.to(torch.promote_types(changes.dtype, torch.float32))
        norms.append(frobenius_norms(wide))
        values.mul_(1 - lr * decay).add_(wide, alpha=-scaled_lr)
    return joined_norm(norms)


def _apply_together(parameters: Sequence[Tensor], updates: Tensor, lr: float, decay: float, scaled_lr: float) -> Tensor:
    """Update all parameters at once; return the norms of their updates [count]."""
    wide = updates.to(torch.promote_types(updates.dtype, torch.float32))
    tensor_lists.scale(parameters, 1 - lr * decay)
    tensor_lists.add_to(parameters, wide.unbind(), alpha=-scaled_lr)
    return frobenius_norms(wide).flatten()


def _scaled(polynomials: Polynomials, scale: float) -> Polynomials:
    """Scale the result: a polynomial is linear in its coefficients, so that of the last iteration costs nothing."""
    *before, (a, b, c) = polynomials
    return (*before, (a * scale, b * scale, c * scale))


def _accumulate(gradients: Sequence[Tensor], momenta: Sequence[Tensor], config: MuonClipConfig) -> None:
    """M = mu M + G of each, in place; the same bits whoever else is updated in the same call."""
    if momenta[0].device.type != "cpu":
        tensor_lists.scale(momenta, config.momentum)
        tensor_lists.add_to(momenta, gradients)
        return
    for gradient, momentum in zip(gradients, momenta, strict=True):
        torch.add(gradient, momentum, alpha=config.momentum, out=momentum)


def _task(slab: "list[_Block]", config: MuonClipConfig) -> Task:
    rows, columns = slab[0].value.shape
    return Task(len(slab) * matrix_cost(rows, columns, config), len(slab) * rows * columns)
