"""Who updates which sharded parameter, in which round, and whose the state is.

Everything follows from shapes, settings and the number of ranks, so all ranks come to the same without a word.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import torch

from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.division import update_cost
from trimtab_trainer.optim.muon import shared_products
from trimtab_trainer.optim.muon_clip import weight_of
from trimtab_trainer.optim.routing import MASTER_TYPES, Route
from trimtab_trainer.optim.stages import Stage, in_turn, joined, owners, stages

Key = tuple[str, str]
"""A kind of tensor, and the parameter that it belongs to."""

MASTERS: Final = "master_weights"

ROUND_BYTES: Final = 32 << 20
"""How much a rank puts together at once, of weights and gradients; there is room for two such rounds."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What every rank does in each round of an update."""

    rounds: tuple[tuple[Stage, ...], ...]
    """Of each round the stage of every rank."""

    state_keys: tuple[Key, ...]
    """All tensors of the state, in one order."""

    @classmethod
    def of(
        cls,
        routes: Sequence[Route],
        layers: Sequence[frozenset[str]],
        config: MuonClipConfig,
        ranks: int,
        device: str,
    ) -> "ShardPlan":
        """`routes` are those of all parameters, of which only shapes and types count.

        `layers` are the parameters of each attention layer, which are clipped together; `device` is a kind, as `cpu`.
        """
        costs = {route.name: update_cost(route, config) for route in routes}
        owned = owners(costs, layers, ranks)
        by_rank: list[list[Route]] = [[] for _ in range(ranks)]
        for route in routes:
            by_rank[owned[route.name]].append(route)
        columns = [_stages(own, layers, config, device) for own in by_rank]
        keys = sorted((kind, route.name) for route in routes for kind in _kinds(route))
        return cls(tuple(zip_longest(*columns, fillvalue=Stage())), tuple(keys))

    def names_of(self, rank: int) -> frozenset[str]:
        """The parameters that a rank updates."""
        return frozenset(name for each in self.rounds for name in each[rank].arriving)

    def state_rounds(self) -> Iterator[list[list[Key]]]:
        """The keys of the state in the rounds of their parameters: of each rank those that it has."""
        kinds: dict[str, list[Key]] = {}
        for key in self.state_keys:
            kinds.setdefault(key[1], []).append(key)
        for each in self.rounds:
            yield [[key for name in stage.arriving for key in kinds[name]] for stage in each]

    @property
    def has_masters(self) -> bool:
        """Whether some parameter has a float32 copy."""
        return any(kind == MASTERS for kind, _ in self.state_keys)


def _stages(own: Sequence[Route], layers: Sequence[frozenset[str]], config: MuonClipConfig, device: str) -> list[Stage]:
    """Those of one rank, whose parameters these are, in the model's order."""
    names = {route.name: route for route in own}
    sets = joined(names, (layer for layer in layers if layer <= names.keys()))
    weights = [weight_of(route, _master(route)) for route in own if route.optimizer == "muon"]
    slabs = [{name for name, _ in slab} for slab in shared_products(weights, config, device)]
    cheap = {route.name for route in own if route.optimizer == "adamw"}
    sizes = {route.name: 2 * route.parameter.nbytes for route in own}
    return stages(in_turn(sets, cheap), slabs, sizes, ROUND_BYTES)


def _master(route: Route) -> torch.Tensor | None:
    return None if route.parameter.dtype in MASTER_TYPES else route.parameter.float()


def _kinds(route: Route) -> Iterator[str]:
    if route.optimizer == "muon":
        yield "muon_momentum"
    else:
        yield from ("adamw_first_moment", "adamw_second_moment")
    if route.parameter.dtype not in MASTER_TYPES:
        yield MASTERS
