"""Results that one rank computes and all ranks get, travelling while the next ones are computed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import torch
from torch import Tensor

from trimtab_trainer.optim.division import Round, Task, divided

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

    def gather_later(self, own: Tensor, gathered: Tensor) -> Callable[[], None]:
        """Begin to fill `gathered` with the `own` of every rank, in rank order; what is returned waits for the end.

        Both are flat, and `own` is as long on every rank. Neither is touched in between.
        """
        ...


class SharedResults:
    """Who computes which task, and the memory in which results travel."""

    def __init__(self, tasks: Sequence[Task], peers: Peers, dtype: torch.dtype, device: torch.device) -> None:
        self._peers = peers
        self._rounds = divided(tasks, peers.size, ROUND_BYTES // dtype.itemsize)
        longest = max((each.elements for each in self._rounds), default=0)
        self._buffers = [
            (
                torch.zeros(longest, dtype=dtype, device=device),
                torch.empty(longest * peers.size, dtype=dtype, device=device),
            )
            for _ in self._rounds[:2]
        ]
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
        own, gathered = self._buffers[buffer]
        portion = round_.portions[self._peers.rank]
        for task, (start, stop) in zip(portion.tasks, pairwise(portion.bounds), strict=True):
            own[start:stop] = compute(task).flatten()
        everything = gathered[: round_.elements * self._peers.size]
        return _Travelling(round_, everything, self._peers.gather_later(own[: round_.elements], everything))


@dataclass(frozen=True, slots=True)
class _Travelling:
    """A round of results on their way."""

    round: Round
    gathered: Tensor
    wait: Callable[[], None]

    def arrived(self) -> Iterator[tuple[int, Tensor]]:
        """Wait; the place and the result of every task, of all ranks."""
        self.wait()
        for rank, portion in enumerate(self.round.portions):
            results = self.gathered[rank * self.round.elements :]
            for task, (start, stop) in zip(portion.tasks, pairwise(portion.bounds), strict=True):
                yield task, results[start:stop]
