"""What a metric record says of weights and optimizer, and of where QK-Clip acted.

Every `every` steps all of it; in a step whose update was withheld only what is not finite.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab_trainer.collectives import World
from trimtab_trainer.distributed_tensors import own_part
from trimtab_trainer.optim import MuonClip, ShardedMuonClip
from trimtab_trainer.optim.health import (
    WeightHealth,
    clip_activity,
    nonfinite_elements,
    nonfinite_state,
    optimizer_health,
)

Metrics = tuple[dict[str, float], dict[str, Tensor]]
"""Scalars and vectors of a record."""


class HealthMetrics:
    """Looks at the state behind the update of a step; every rank calls it at every step."""

    def __init__(self, every: int, layers: Sequence[Sequence[str]]) -> None:
        """`layers` are the names of the parameters of each layer; others belong to the whole alone."""
        self._every = every
        self._layer = {name: layer for layer, names in enumerate(layers) for name in names}
        self._layers = len(layers)
        self._gammas: list[Tensor] = []
        self._first, self._last = 0, (0, 0)

    def of_step(
        self,
        attempt: int,
        step: int,
        gamma: Tensor | None,
        optimizer: MuonClip | ShardedMuonClip,
        parameters: Sequence[tuple[str, Tensor]],
        world: World,
    ) -> Metrics:
        """The metrics of a step, of most steps none.

        `gamma` [layers, heads] are QK-Clip's factors, None where the update was withheld; `parameters` are the model's.
        """
        activity = self._activity(attempt, step, gamma)
        if gamma is None:
            return _nonfinite(optimizer, parameters, world), activity
        if step % self._every:
            return {}, activity
        scalars, vectors = self._weights(optimizer, world)
        return scalars, vectors | activity

    def _activity(self, attempt: int, step: int, gamma: Tensor | None) -> dict[str, Tensor]:
        """What QK-Clip did in the last `every` steps, if this attempt made all of them."""
        if self._last != (attempt, step - 1) or step % self._every == 1 % self._every:
            self._first, self._gammas = step, []
        self._last = attempt, step
        self._gammas += [] if gamma is None else [gamma]
        if step % self._every or self._first != step - self._every + 1 or not self._gammas:
            return {}
        activity = clip_activity(torch.stack(self._gammas))
        return {"qk_clip_rate": activity.share, "qk_clip_smallest": activity.smallest}

    def _weights(self, optimizer: MuonClip | ShardedMuonClip, world: World) -> Metrics:
        """Norms, spectral norms and what is not finite: an exchange of a few numbers, and of sharded weights."""
        sharded = isinstance(optimizer, ShardedMuonClip)
        if sharded:
            found = [one for names in optimizer.wholes() for one in optimizer_health(optimizer.own, only=names)]
        else:
            # Replicas have the same weights, so each estimates the spectral norms of a part of them.
            share = optimizer.routes[world.rank :: world.size]
            found = optimizer_health(optimizer, spectral_of={route.name for route in share})
        sums, largest = self._packed(found)
        _reduce(sums, world, add=sharded)
        _reduce(largest, world, add=False)
        counts, (*squares, elements) = sums[:2], sums[2:].view(4, -1)
        norms = [one.sum().sqrt() for one in squares]
        weights, momenta, updates = (one[:-1].sqrt() for one in squares)
        scalars = {
            "weight_norm": norms[0].item(),
            "momentum_norm": norms[1].item(),
            "spectral_norm": largest.max().item(),
            "nonfinite_weights": counts[0].item(),
            "nonfinite_state": counts[1].item(),
        }
        return scalars, {
            "layer_weight_norm": weights,
            "layer_momentum_norm": momenta,
            "layer_spectral_norm": largest[:-1],
            "layer_update_rms": updates / elements[:-1].clamp(min=1).sqrt(),
        }

    def _packed(self, found: Sequence[WeightHealth]) -> tuple[Tensor, Tensor]:
        """Two counts; for each layer and the rest the squares of three norms (weights, momenta, Muon's updates) and how
        many elements Muon updates; spectral norms for the same."""
        counts = torch.zeros(2, dtype=torch.float64)
        sums, spectral = torch.zeros(4, self._layers + 1, dtype=torch.float64), torch.zeros(self._layers + 1)
        for one in found:
            place = self._layer.get(one.name, self._layers)
            counts += torch.tensor([one.nonfinite, one.nonfinite_state], dtype=torch.float64)
            norms = torch.tensor([one.norm, one.momentum_norm, one.update_norm or 0.0], dtype=torch.float64)
            sums[:3, place] += norms**2
            sums[3, place] += 0 if one.update_norm is None else one.elements
            spectral[place] = torch.maximum(spectral[place], torch.tensor(one.spectral_norm or 0.0))
        return torch.cat((counts, sums.flatten())), spectral


def _nonfinite(
    optimizer: MuonClip | ShardedMuonClip, parameters: Sequence[tuple[str, Tensor]], world: World
) -> dict[str, float]:
    """What is not finite in weights and optimizer state: of the worst replica, or of all ranks' shares."""
    sharded = isinstance(optimizer, ShardedMuonClip)
    weights = nonfinite_elements(own_part(parameter) for _, parameter in parameters)
    state = nonfinite_state(optimizer.own if sharded else optimizer)
    counts = torch.tensor([weights, state], dtype=torch.float64)
    _reduce(counts, world, add=sharded)
    return {"nonfinite_weights": counts[0].item(), "nonfinite_state": counts[1].item()}


def _reduce(figures: Tensor, world: World, *, add: bool) -> None:
    """Over all ranks, in place; what is not a number is infinite from here on, since a maximum may lose it."""
    figures.nan_to_num_(nan=torch.inf, posinf=torch.inf)
    if add:
        world.sum(figures)
    else:
        world.max(figures)
