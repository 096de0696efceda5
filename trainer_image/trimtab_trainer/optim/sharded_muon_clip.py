"""MuonClip over sharded parameters: each of them is put together on one rank, updated there, and dealt out again.

Newton-Schulz needs whole matrices, and QK-Clip all that makes the logits of a head. The parameters are shared out among
the ranks by what their updates cost, and each rank holds the moments of its own parameters alone. What is whole is so
for a round: while it is updated, that of the next round arrives and that of the last one leaves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from trimtab_trainer.distributed_tensors import is_sharded, shard_problem, with_part
from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.optim.checks import STATE_VERSION, attention_problems, name_problems, state_problems
from trimtab_trainer.optim.config import MuonClipConfig, ParameterGroup
from trimtab_trainer.optim.exchange import ShardPeers
from trimtab_trainer.optim.gradients import forget_gradients
from trimtab_trainer.optim.muon_clip import MuonClip, QueryKeyParameters, StepTelemetry, layer_names, whole_layer
from trimtab_trainer.optim.routing import Route, route_parameters, routing_problems
from trimtab_trainer.optim.shard_plan import MASTERS, Key, ShardPlan
from trimtab_trainer.optim.shards import GRADIENT, WEIGHT, Shards


class ShardedMuonClip:
    """What `MuonClip` is to whole parameters, to those that `fully_shard` dealt out; every rank calls every method.

    `attention` is what it is for MuonClip, made of the sharded parameters. Its state is that of one MuonClip over all
    parameters, under the same keys on every rank, each tensor sharded like its parameter: it may be loaded into any
    number of ranks, and into replicas.

    Raises:
        InvalidFields: one sentence per parameter, group and layer that cannot be served; on every rank.
        PeerLost: whatever the peers raise; with `GroupPeers` an exchange that failed. The update is then half made.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        attention: Sequence[AttentionHeads | QueryKeyParameters],
        config: MuonClipConfig,
        peers: ShardPeers,
    ) -> None:
        """`peers` are the ranks over which the parameters are sharded; with replicas of each shard, those of one."""
        self.config, self._peers = config, peers
        named = tuple(named_parameters)
        raise_if_any(
            (*name_problems(named), *(shard_problem(name, each, peers.size, peers.rank) for name, each in named))
        )
        self._parameters = dict(named)
        self._shards = Shards(self._parameters, peers)
        standing = {name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in named}
        layers = [self._on(layer, standing) for layer in attention]
        raise_if_any(
            (
                *routing_problems(standing, config.groups, masters=config.master_weights),
                *attention_problems(layers, standing, config),
            )
        )
        routes = route_parameters(standing.items(), config.groups, decay=config.decay, masters=config.master_weights)
        self.routes: tuple[Route, ...] = tuple(
            replace(route, parameter=self._parameters[route.name]) for route in routes
        )
        """Which optimizer updates which parameter, whichever rank does it."""
        self._plan = ShardPlan.of(routes, layer_names(layers, standing), config, peers.size, self._shards.device.type)
        mine = self._plan.names_of(peers.rank)
        self._whole = {
            name: torch.empty(each.shape, dtype=each.dtype, device=self._shards.device)
            for name, each in named
            if name in mine
        }
        self._own = MuonClip(
            self._whole.items(),
            [_own_layer(self._on(layer, self._whole)) for layer in attention],
            replace(config, groups=_applied(config.groups, self._whole)),
        )
        self._forget(mine)
        if self._plan.has_masters:
            masters = self._own.tensors().get(MASTERS, {})
            for names in self.wholes():
                for name in names & masters.keys():
                    masters[name].copy_(self._whole[name])

    @property
    def own(self) -> MuonClip:
        """The optimizer of this rank's parameters, which are there while `wholes` says so."""
        return self._own

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

    def set_lr(self, scale: float, adamw_scale: float | None = None) -> None:
        """Set the learning rates until the next call; see `MuonClip.set_lr`."""
        self._own.set_lr(scale, adamw_scale)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        forget_gradients(self._parameters.values(), keep=not set_to_none)

    @torch.no_grad()
    def step(self, max_logits: Tensor) -> StepTelemetry:
        """Update the parameters from their gradients, then clip heads; see `MuonClip.step`.

        `max_logits` are equal on all ranks. A part that has no gradient on a rank counts as one of zeros.
        """
        raise_if_any(self._shards.converted())
        update = self._own.begin(max_logits)
        left = _nothing
        for number in self._arrivals(gradients=True):
            stage = self._plan.rounds[number][self._peers.rank]
            self._own.advance(update, stage.slabs, stage.leaving)
            left()
            left = self._leave(number)
        left()
        told = self._own.told(update)
        return replace(told, update_rms=self._root_mean_square(told.update_rms))

    def wholes(self) -> Iterator[frozenset[str]]:
        """Put this rank's parameters together, some at a time; yields their names, in which `own` has them just then.

        Every rank comes to the end of it.
        """
        for number in self._arrivals(gradients=False):
            names = self._plan.rounds[number][self._peers.rank].arriving
            yield frozenset(names)
            self._forget(names)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: plain numbers, and sharded copies of the moments; raises InvalidFields as `step`."""
        raise_if_any(self._shards.converted())
        parts = {(kind, name): self._shards.room((kind, name)) for kind, name in self._plan.state_keys}
        own = self._own.tensors()
        for keys in self._plan.state_rounds():
            self._shards.deal_later(keys, lambda key: own[key[0]][key[1]], parts.__getitem__)()
        state: dict[str, Any] = {"version": STATE_VERSION, "count": self.count}
        state |= {kind: {} for kind, _ in self._plan.state_keys}
        for (kind, name), part in parts.items():
            state[kind][name] = with_part(part, self._parameters[name])
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy `state` into the ranks that own its parts; raises InvalidFields as `MuonClip` does.

        Its tensors are sharded like their parameters, or whole on every rank, as a MuonClip has them.
        """
        raise_if_any(self._shards.converted())
        raise_if_any(self._state_problems(state))
        own = self._own.tensors()
        for keys in self._plan.state_rounds():
            self._shards.gather_later(
                keys, lambda key: self._shards.part_of(state[key[0]][key[1]], key), lambda key: own[key[0]][key[1]]
            )()
        self._own.load_state_dict({**self._own.state_dict(), "count": state["count"]})

    def _arrivals(self, *, gradients: bool) -> Iterator[int]:
        """The number of every round, when its parameters are put together; those of the next one are on their way."""
        arrived = _nothing
        for number in range(len(self._plan.rounds) + 1):
            arrived()
            arrived = self._arrive(number, gradients=gradients) if number < len(self._plan.rounds) else _nothing
            if number:
                yield number - 1

    def _arrive(self, number: int, *, gradients: bool) -> Callable[[], None]:
        """Begin to put together the parameters of a round, and their gradients; the result waits for them."""
        kinds = (WEIGHT, GRADIENT) if gradients else (WEIGHT,)
        keys = [[(kind, name) for name in stage.arriving for kind in kinds] for stage in self._plan.rounds[number]]
        return self._shards.gather_later(keys, self._shards.part, self._live_whole)

    def _leave(self, number: int) -> Callable[[], None]:
        """Begin to deal out the parameters that are done behind a round; the result waits, and puts them in place."""
        rounds = self._plan.rounds[number]
        keys = [[(WEIGHT, name) for name in stage.leaving] for stage in rounds]
        left = self._shards.deal_later(keys, lambda key: self._whole[key[1]], self._shards.part)
        self._forget(rounds[self._peers.rank].leaving)
        return left

    def _live_whole(self, key: Key) -> Tensor:
        """Where a parameter of this rank, or its gradient, is put together: memory that it takes now."""
        kind, name = key
        whole = self._whole[name]
        if kind == WEIGHT:
            whole.untyped_storage().resize_(whole.nbytes)
            return whole
        whole.grad = torch.empty_like(whole)
        return whole.grad

    def _forget(self, names: Iterable[str]) -> None:
        """Give back the memory of parameters that were put together; every view of them comes back with the next."""
        for name in names:
            self._whole[name].grad = None
            self._whole[name].untyped_storage().resize_(0)

    def _state_problems(self, state: Mapping[str, Any]) -> Iterator[str]:
        like: dict[str, dict[str, Tensor]] = {}
        for kind, name in self._plan.state_keys:
            shape, dtype = self._parameters[name].shape, self._shards.dtype((kind, name))
            like.setdefault(kind, {})[name] = torch.empty(shape, dtype=dtype, device="meta")
        problems = list(state_problems(like, state))
        yield from problems
        for kind, name in () if problems else self._plan.state_keys:
            if is_sharded(tensor := state[kind][name]):
                problem = shard_problem(f"{kind}.{name}", tensor, self._peers.size, self._peers.rank)
                yield from () if problem is None else (problem,)

    def _on(self, layer: AttentionHeads | QueryKeyParameters, whole: Mapping[str, Tensor]) -> AttentionHeads:
        """A layer on whole tensors in place of the sharded parameters, of those that there are."""
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        known = layer if isinstance(layer, AttentionHeads) else whole_layer(layer)
        placed = (
            one.resolved(found) if (found := whole.get(names.get(id(one.parameter), ""))) is not None else one
            for one in known.parameters
        )
        return replace(known, parameters=tuple(placed))

    def _root_mean_square(self, own: float) -> float:
        """Over Muon's updates of all ranks, given that of this rank."""
        elements = sum(route.parameter.numel() for route in self._own.routes if route.optimizer == "muon")
        sums = torch.tensor([own**2 * elements, elements], dtype=torch.float64, device=self._shards.device)
        self._peers.sum(sums)
        return float((sums[0] / sums[1].clamp(min=1)).sqrt())


def _own_layer(layer: AttentionHeads) -> AttentionHeads:
    """A layer that another rank clips keeps its place, and nothing that could be scaled."""
    elsewhere = any(is_sharded(one.parameter) for one in layer.parameters)
    return AttentionHeads("multiHead", layer.heads, ()) if elsewhere else layer


def _applied(groups: Sequence[ParameterGroup], own: Iterable[str]) -> tuple[ParameterGroup, ...]:
    """The groups that apply to some parameter of `own`: a pattern that matches none would be refused."""
    first = (next((group for group in groups if fnmatchcase(name, group.pattern)), None) for name in own)
    applied = {id(group) for group in first}
    return tuple(group for group in groups if id(group) in applied)


def _nothing() -> None:
    """Nothing is under way."""
