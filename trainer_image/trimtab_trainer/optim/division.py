"""Work divided between ranks: who computes what, and in which portions the results travel.

Everything follows from sizes and the number of ranks alone, so all ranks come to the same division without a word.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest
from typing import Final

from torch import Tensor

from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.optim.newton_schulz import multiplications
from trimtab_trainer.optim.routing import Route
from trimtab_trainer.optim.weights import Weight

ELEMENT_COST: Final = 2048
"""What it costs to bring one element through an update, in multiplications: the time in which its bytes are moved."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something that one rank computes for all."""

    cost: int
    """In multiplications."""

    elements: int
    """Length of the result."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one rank computes before the results of all ranks travel together."""

    tasks: tuple[int, ...]
    """Places in the list of all tasks."""

    bounds: tuple[int, ...]
    """Where the result of each task begins among those of this portion, and where the last one ends."""

    def results(self, part: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each task's place, and the stretch of this portion's flat `part` that holds its result."""
        for task, (start, stop) in zip(self.tasks, pairwise(self.bounds), strict=True):
            yield task, part[start:stop]


@dataclass(frozen=True, slots=True)
class Round:
    """One exchange of results."""

    portions: tuple[Portion, ...]
    """Of each rank."""

    @property
    def lengths(self) -> list[int]:
        """How many elements each rank sends."""
        return [portion.bounds[-1] for portion in self.portions]


def assigned(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank of each piece of work: the dearest pieces first, each to the rank that has least to do."""
    loads = [0] * ranks
    found = [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
        rank = loads.index(min(loads))
        loads[rank] += costs[piece]
        found[piece] = rank
    return found


def divided(tasks: Sequence[Task], ranks: int, most: int) -> tuple[Round, ...]:
    """Give each task to one rank, and cut what every rank has into rounds of about `most` elements in all.

    A task longer than a rank's part of that travels by itself.
    """
    owners = assigned([task.cost for task in tasks], ranks)
    nothing = Portion((), (0,))
    by_rank = (
        _portions([place for place, owner in enumerate(owners) if owner == rank], tasks, most // ranks)
        for rank in range(ranks)
    )
    return tuple(Round(portions) for portions in zip_longest(*by_rank, fillvalue=nothing))


def matrix_cost(rows: int, columns: int, config: MuonClipConfig) -> int:
    """What the update of a matrix by Muon costs, in multiplications."""
    return multiplications(rows, columns, config.coefficients, gram=config.gram) + ELEMENT_COST * rows * columns


def update_cost(route: Route, config: MuonClipConfig) -> int:
    """What the update of a parameter costs, in multiplications."""
    parameter = route.parameter
    if route.optimizer == "adamw":
        return ELEMENT_COST * parameter.numel()
    matrices = Weight(route.name, parameter, rows=route.rows).matrices(parameter)
    return sum(matrix_cost(matrix.shape[0], matrix.shape[1], config) for matrix in matrices)


def _portions(own: Iterable[int], tasks: Sequence[Task], most: int) -> Iterator[Portion]:
    """The tasks of one rank, long results first: the last exchange, for which nothing is left to do, is short."""
    chosen: list[int] = []
    length = 0
    for place in sorted(own, key=lambda place: (-tasks[place].elements, place)):
        if chosen and length + tasks[place].elements > most:
            yield _portion(chosen, tasks)
            chosen, length = [], 0
        chosen.append(place)
        length += tasks[place].elements
    if chosen:
        yield _portion(chosen, tasks)


def _portion(chosen: Sequence[int], tasks: Sequence[Task]) -> Portion:
    return Portion(tuple(chosen), (0, *accumulate(tasks[place].elements for place in chosen)))
