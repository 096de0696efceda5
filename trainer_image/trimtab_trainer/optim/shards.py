"""Sharded parameters, and what belongs to them: which elements of it each rank has, and how they come together."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.distributed_tensors import is_sharded, own_part
from trimtab_trainer.optim.exchange import ShardPeers, exchange_later
from trimtab_trainer.optim.routing import MASTER_TYPES
from trimtab_trainer.optim.shard_plan import Key
from trimtab_trainer.optim.stages import rows_of

WEIGHT: Final = "weight"
GRADIENT: Final = "gradient"
"""Kinds of tensors beside those of an optimizer's state; each tensor of any kind has the shape of its parameter."""


class Shards:
    """The parameters by name, of which each of the peers has some rows."""

    def __init__(self, parameters: Mapping[str, Tensor], peers: ShardPeers) -> None:
        self.parameters, self._peers = parameters, peers
        self.device = next((own_part(one).device for one in parameters.values()), torch.device("cpu"))
        self._kinds = self._kinds_now()

    def converted(self) -> Iterator[str]:
        """Why nothing may be exchanged: what ranks send each other is known from what the parameters were."""
        now = self._kinds_now()
        other = [name for name, kind in now.items() if kind != self._kinds[name]]
        if other:
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            (dtype, device), (was, place) = now[other[0]], self._kinds[other[0]]
            yield (
                f"{other[0]}{more}: is {dtype} on {device}, and was {was} on {place} when the optimizer was built; "
                "build it behind what converts or moves the model, or anew"
            )

    def _kinds_now(self) -> dict[str, tuple[torch.dtype, torch.device]]:
        return {name: (one.dtype, own_part(one).device) for name, one in self.parameters.items()}

    def part(self, key: Key) -> Tensor:
        """What this rank has of a parameter or of its gradient, of which a part that is not there is of zeros."""
        kind, name = key
        parameter = self.parameters[name]
        if kind == WEIGHT:
            return own_part(parameter).detach()
        return self.room(key).zero_() if parameter.grad is None else own_part(parameter.grad).to(self.dtype(key))

    def room(self, key: Key) -> Tensor:
        """Room for what this rank has of a tensor."""
        return torch.empty_like(own_part(self.parameters[key[1]]), dtype=self.dtype(key))

    def part_of(self, tensor: Tensor, key: Key) -> Tensor:
        """What this rank has of a tensor that is sharded like its parameter, or is to be."""
        return own_part(tensor) if is_sharded(tensor) else self._rows(key, tensor, self._peers.rank)

    def dtype(self, key: Key) -> torch.dtype:
        """The type of a tensor: what an optimizer keeps has as many bits as what it updates."""
        kind, name = key
        own = self.parameters[name].dtype
        return own if kind in {WEIGHT, GRADIENT} or own in MASTER_TYPES else torch.float32

    def gather_later(
        self, keys: Sequence[Sequence[Key]], part: Callable[[Key], Tensor], whole: Callable[[Key], Tensor]
    ) -> Callable[[], None]:
        """Begin to fill the `whole` tensors of this rank from the parts of all, given the keys of every rank."""
        own, ranks = keys[self._peers.rank], range(self._peers.size)

        def targets() -> list[list[Tensor]]:
            wholes = [(key, whole(key)) for key in own]
            return [[self._rows(key, each, rank) for key, each in wholes] for rank in ranks]

        outgoing = [[part(key) for key in each] for each in keys]
        lengths = [[self._length(key, rank) for key in own] for rank in ranks]
        return exchange_later(self._peers, outgoing, lengths, targets, self.device)

    def deal_later(
        self, keys: Sequence[Sequence[Key]], whole: Callable[[Key], Tensor], part: Callable[[Key], Tensor]
    ) -> Callable[[], None]:
        """Begin to fill the parts that this rank has, given the keys of the `whole` tensors of each rank."""
        wholes = [(key, whole(key)) for key in keys[self._peers.rank]]
        outgoing = [[self._rows(key, each, rank) for key, each in wholes] for rank in range(self._peers.size)]
        lengths = [[self._length(key, self._peers.rank) for key in each] for each in keys]
        return exchange_later(
            self._peers, outgoing, lengths, lambda: [[part(key) for key in each] for each in keys], self.device
        )

    def _rows(self, key: Key, whole: Tensor, rank: int) -> Tensor:
        start, stop = rows_of(self.parameters[key[1]].shape[0], self._peers.size)[rank]
        return whole[start:stop]

    def _length(self, key: Key, rank: int) -> int:
        """In bytes."""
        rows, *rest = self.parameters[key[1]].shape
        start, stop = rows_of(rows, self._peers.size)[rank]
        return (stop - start) * math.prod(rest) * self.dtype(key).itemsize
