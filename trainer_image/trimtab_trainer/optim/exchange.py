"""Tensors of any types between all ranks at once, each pair of them exchanging what it has for one another."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Protocol

import torch
from torch import Tensor

from trimtab_trainer.tensors import stretches

ALIGNMENT: Final = 16
"""In bytes: where each tensor begins among those that travel together, whatever the types of those before it."""


class ShardPeers(Protocol):
    """All ranks over which parameters are sharded, this one among them."""

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def trade_later(
        self, outgoing: Tensor, sent: Sequence[int], incoming: Tensor, received: Sequence[int]
    ) -> Callable[[], None]:
        """Begin to send the i-th stretch of `outgoing` to rank i and to fill that of `incoming` from it.

        `sent` and `received` are the lengths of the stretches; both tensors are flat. What is returned waits for the
        end, and neither tensor is touched before.
        """
        ...

    def sum(self, tensor: Tensor) -> None:
        """Sum `tensor` over all ranks, in place."""
        ...


Targets = Callable[[], Sequence[Sequence[Tensor]]]
"""Makes the tensors to be filled from each rank, when what fills them is there."""


def exchange_later(
    peers: ShardPeers,
    outgoing: Sequence[Sequence[Tensor]],
    lengths: Sequence[Sequence[int]],
    targets: Targets,
    device: torch.device,
) -> Callable[[], None]:
    """Begin to send the tensors of `outgoing[i]` to rank i; what is returned waits, and fills those of `targets`.

    `lengths` are the bytes of the tensors that come from each rank, in order; `device` is where all of them are.
    `outgoing` may change at once.
    """
    sent = [sum(_padded(tensor.nbytes) for tensor in tensors) for tensors in outgoing]
    received = [sum(map(_padded, each)) for each in lengths]
    packed = torch.empty(sum(sent), dtype=torch.uint8, device=device)
    arrived = torch.empty(sum(received), dtype=torch.uint8, device=device)
    for tensors, stretch in zip(outgoing, stretches(packed, sent), strict=True):
        for tensor, place in zip(tensors, _places(stretch, [tensor.nbytes for tensor in tensors]), strict=True):
            place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    wait = peers.trade_later(packed, sent, arrived, received)

    def fill() -> None:
        wait()
        for tensors, each, stretch in zip(targets(), lengths, stretches(arrived, received), strict=True):
            for tensor, place in zip(tensors, _places(stretch, each), strict=True):
                tensor.copy_(place.view(tensor.dtype).view(tensor.shape))

    return fill


def _places(stretch: Tensor, lengths: Iterable[int]) -> Iterator[Tensor]:
    """The bytes of each of the tensors that share a stretch."""
    sizes = list(lengths)
    bounds = pairwise(accumulate(map(_padded, sizes), initial=0))
    for (start, _), size in zip(bounds, sizes, strict=True):
        yield stretch[start : start + size]


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
