"""MuonClip over sharded parameters: each of them is put together on one rank, updated there, and dealt out again.

Newton-Schulz needs whole matrices, and QK-Clip all that makes the logits of a head. The parameters are shared out among
the ranks by what their updates cost, and each rank holds the moments of its own parameters alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec
import torch
from torch import Tensor

from trimtab_trainer.collectives import World
from trimtab_trainer.distributed_tensors import own_part, with_part
from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.optim import MuonClip, ParameterGroup, StepTelemetry
from trimtab_trainer.optim.division import assigned
from trimtab_trainer.optim.routing import Route
from trimtab_trainer.tensors import stretches


class ShardedOptimizer:
    """What `MuonClip` is to whole parameters; every rank calls every method at once.

    Its state is that of one MuonClip over all parameters, under the same keys on every rank, each tensor sharded like
    its parameter: it may be loaded into any number of ranks, and into replicas.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        costs: Mapping[str, int],
        together: Iterable[frozenset[str]],
        make: Callable[[Mapping[str, Tensor]], MuonClip],
        world: World,
    ) -> None:
        """`make` builds the optimizer of the parameters that are this rank's, given as whole tensors.

        `costs` says how much work the update of each parameter is. `together` names parameters that one rank must have
        all of.
        """
        self._parameters, self._world = dict(parameters), world
        self._owners = owners(costs, together, world.size)
        self._whole = {
            name: torch.zeros(parameter.shape, dtype=parameter.dtype)
            for name, parameter in self._parameters.items()
            if self._owners[name] == world.rank
        }
        self._own = make(self._whole)
        self._muon_elements = sum(route.parameter.numel() for route in self._own.routes if route.optimizer == "muon")
        self._keys = self._agreed_keys()

    @property
    def own(self) -> MuonClip:
        """The optimizer of this rank's parameters; its weights are those behind the last update."""
        return self._own

    @property
    def routes(self) -> tuple[Route, ...]:
        """Which optimizer updates which of this rank's parameters."""
        return self._own.routes

    @property
    def lowest_threshold(self) -> float:
        """The lowest threshold of QK-Clip in the next update."""
        return self._own.lowest_threshold

    @property
    def count(self) -> int:
        """Updates made so far."""
        return self._own.count

    @property
    def lr(self) -> float:
        """Muon's learning rate of the next update."""
        return self._own.lr

    def set_lr(self, scale: float) -> None:
        """Set both learning rates to `scale` times their peaks, until the next call."""
        self._own.set_lr(scale)

    @torch.no_grad()
    def step(self, max_logits: Tensor) -> StepTelemetry:
        """Update the parameters from their gradients, then clip heads; see `MuonClip.step`."""
        names = list(self._parameters)
        weights = [own_part(parameter) for parameter in self._parameters.values()]
        gradients = [
            torch.zeros_like(weight) if parameter.grad is None else own_part(parameter.grad)
            for parameter, weight in zip(self._parameters.values(), weights, strict=True)
        ]
        gathered = iter(self._gathered(names * 2, weights + gradients))
        for whole in self._whole.values():
            whole.copy_(next(gathered))
        for whole in self._whole.values():
            whole.grad = next(gathered)
        telemetry = self._own.step(max_logits)
        for weight, part in zip(weights, self._dealt(names, list(self._whole.values())), strict=True):
            weight.copy_(part)
        return replace(telemetry, update_rms=self._root_mean_square(telemetry.update_rms))

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: plain numbers, and sharded copies of the moments."""
        own = self._own.state_dict()
        state: dict[str, Any] = {key: value for key, value in own.items() if not isinstance(value, Mapping)}
        moments = _moments(self._own)
        mine = [moments[kind][name] for kind, name in self._keys if self._owners[name] == self._world.rank]
        parts = self._dealt([name for _, name in self._keys], mine)
        for (kind, name), part in zip(self._keys, parts, strict=True):
            state.setdefault(kind, {})[name] = with_part(part, self._parameters[name])
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy `state` into the ranks that own its parts; raises InvalidFields as `MuonClip` does."""
        own: dict[str, Any] = {
            key: {} if isinstance(value, Mapping) else state.get(key) for key, value in self._own.state_dict().items()
        }
        parts = [own_part(state[kind][name]) for kind, name in self._keys]
        gathered = iter(self._gathered([name for _, name in self._keys], parts))
        for kind, name in self._keys:
            if self._owners[name] == self._world.rank:
                own[kind][name] = next(gathered)
        self._own.load_state_dict(own)

    def _agreed_keys(self) -> list[tuple[str, str]]:
        """Kind and parameter of every tensor of the state, whichever rank has it, in one order."""
        found = [(kind, name) for kind, moments in _moments(self._own).items() for name in moments]
        texts = self._world.gather_text(msgspec.json.encode(found).decode())
        return sorted(one for text in texts for one in msgspec.json.decode(text, type=list[tuple[str, str]]))

    def _gathered(self, names: Sequence[str], parts: Sequence[Tensor]) -> list[Tensor]:
        """Put together the tensors of this rank's parameters, given the own part of a tensor for each of `names`."""
        owned = self._by_owner(names)
        ranks = range(self._world.size)
        outgoing = [_joined([parts[index] for index in owned[rank]], parts[0]) for rank in ranks]
        mine = [names[index] for index in owned[self._world.rank]]
        incoming = [sum(self._elements(name, rank) for name in mine) for rank in ranks]
        received = [
            stretches(stretch, [self._elements(name, rank) for name in mine])
            for rank, stretch in zip(ranks, self._world.trade(outgoing, incoming), strict=True)
        ]
        return [
            torch.cat([received[rank][number] for rank in ranks]).view(self._parameters[name].shape)
            for number, name in enumerate(mine)
        ]

    def _dealt(self, names: Sequence[str], wholes: Sequence[Tensor]) -> list[Tensor]:
        """The own part of a tensor for each of `names`, given those of this rank's parameters as `wholes`."""
        owned = self._by_owner(names)
        ranks = range(self._world.size)
        like = own_part(self._parameters[names[0]])
        mine = [names[index] for index in owned[self._world.rank]]
        cut = [
            stretches(whole.flatten(), [self._elements(name, rank) for rank in ranks])
            for name, whole in zip(mine, wholes, strict=True)
        ]
        outgoing = [_joined([parts[rank] for parts in cut], like) for rank in ranks]
        rank = self._world.rank
        incoming = [sum(self._elements(names[index], rank) for index in owned[source]) for source in ranks]
        found: dict[int, Tensor] = {}
        for source, stretch in zip(ranks, self._world.trade(outgoing, incoming), strict=True):
            sizes = [self._elements(names[index], rank) for index in owned[source]]
            found |= dict(zip(owned[source], stretches(stretch, sizes), strict=True))
        return [found[index].view_as(own_part(self._parameters[name])) for index, name in enumerate(names)]

    def _by_owner(self, names: Sequence[str]) -> list[list[int]]:
        """The places in `names` of the parameters of each rank."""
        return [
            [index for index, name in enumerate(names) if self._owners[name] == rank]
            for rank in range(self._world.size)
        ]

    def _elements(self, name: str, rank: int) -> int:
        """How many elements of a parameter a rank has: the rows are dealt out as `torch.chunk` does it."""
        rows, *rest = self._parameters[name].shape
        each = -(-rows // self._world.size)
        return min(max(rows - each * rank, 0), each) * math.prod(rest)

    def _root_mean_square(self, own: float) -> float:
        """Over Muon's updates of all ranks, given that of this rank."""
        sums = torch.tensor([own**2 * self._muon_elements, self._muon_elements], dtype=torch.float64)
        self._world.sum(sums)
        return float((sums[0] / sums[1].clamp(min=1)).sqrt())


def owners(costs: Mapping[str, int], together: Iterable[frozenset[str]], ranks: int) -> dict[str, int]:
    """Which rank updates which parameter, so that each has about as much to do. All ranks agree."""
    kept = [sorted(names) for names in together]
    single = [[name] for name in costs if not any(name in names for names in kept)]
    shares = sorted([*kept, *single])
    chosen = assigned([sum(costs[name] for name in names) for names in shares], ranks)
    return {name: rank for names, rank in zip(shares, chosen, strict=True) for name in names}


def own_layers(layers: Sequence[AttentionHeads], own: Mapping[str, Tensor]) -> list[AttentionHeads]:
    """All layers, with the parameters that are among `own` in place of the model's; others are left to their owners."""
    return [
        replace(layer, parameters=tuple(replace(one, parameter=own[one.name]) for one in layer.parameters))
        if all(one.name in own for one in layer.parameters)
        else AttentionHeads("multiHead", layer.heads, ())
        for layer in layers
    ]


def own_groups(groups: Sequence[ParameterGroup], own: Iterable[str]) -> tuple[ParameterGroup, ...]:
    """The groups that apply to some parameter of `own`: a pattern that matches none would be refused."""
    first = (next((group for group in groups if fnmatchcase(name, group.pattern)), None) for name in own)
    applied = {id(group) for group in first}
    return tuple(group for group in groups if id(group) in applied)


def _moments(optimizer: MuonClip) -> dict[str, Mapping[str, Tensor]]:
    """The tensors of an optimizer's state, by kind and parameter."""
    return {
        kind: cast("Mapping[str, Tensor]", value)
        for kind, value in optimizer.state_dict().items()
        if isinstance(value, Mapping)
    }


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """One stretch of all elements."""
    return torch.cat([like.new_empty(0), *(part.flatten() for part in parts)])
