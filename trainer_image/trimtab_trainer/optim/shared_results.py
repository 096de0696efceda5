"""Results that one rank computes and all ranks get, travelling while the next ones are computed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from trimtab_trainer.optim.division import Round, Task, divided
from trimtab_trainer.tensors import stretches

ROUND_BYTES: Final = 32 << 20
"""How much travels at once, of all ranks together; there is room for two rounds."""


class Peers(Protocol):
    """All ranks that share the work, this one among them."""

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def share_later(self, parts: Sequence[Tensor]) -> Callable[[], None]:
        """Begin to fill the part of every rank, in rank order, from that rank; what is returned waits for the end.

        Parts are flat and may be empty; this rank's own is there already. None is touched in between.
        """
        ...


class SharedResults:
    """Who computes which task, and the memory in which results travel."""

    def __init__(self, tasks: Sequence[Task], peers: Peers, dtype: torch.dtype, device: torch.device) -> None:
        self._peers = peers
        self._rounds = divided(tasks, peers.size, ROUND_BYTES // dtype.itemsize)
        longest = max((sum(each.lengths) for each in self._rounds), default=0)
        self._buffers = [torch.empty(longest, dtype=dtype, device=device) for _ in self._rounds[:2]]
        own = (task for each in self._rounds for task in each.portions[peers.rank].tasks)
        self.own: frozenset[int] = frozenset(own)
        """Places of the tasks that this rank computes."""

    def each(self, compute: Callable[[int], Tensor], meanwhile: Callable[[], None]) -> Iterator[tuple[int, Tensor]]:
        """Compute this rank's tasks; yield the place of every task and its flat result, valid until the next one.

        `meanwhile` is done while the last results travel. What the peers' exchange raises is raised here.
        """
        travelling: _Travelling | None = None
        for number, round_ in enumerate(self._rounds):
            sent = self._sent(round_, number % 2, compute)
            if travelling is not None:
                yield from travelling.arrived()
            travelling = sent
        meanwhile()
        if travelling is not None:
            yield from travelling.arrived()

    def _sent(self, round_: Round, buffer: int, compute: Callable[[int], Tensor]) -> "_Travelling":
        lengths = round_.lengths
        parts = stretches(self._buffers[buffer][: sum(lengths)], lengths)
        portion = round_.portions[self._peers.rank]
        for task, result in portion.results(parts[self._peers.rank]):
            result.copy_(compute(task).flatten())
        return _Travelling(round_, parts, self._peers.share_later(parts))


@dataclass(frozen=True, slots=True)
class _Travelling:
    """A round of results on their way."""

    round: Round
    parts: Sequence[Tensor]
    wait: Callable[[], None]

    def arrived(self) -> Iterator[tuple[int, Tensor]]:
        """Wait; the place and the result of every task, of all ranks."""
        self.wait()
        for portion, part in zip(self.round.portions, self.parts, strict=True):
            yield from portion.results(part)
