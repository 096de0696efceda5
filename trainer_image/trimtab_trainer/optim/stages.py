"""In which portions sharded parameters are put together, updated and dealt out again, on whichever rank.

Everything follows from sizes, settings and the number of ranks alone, so all ranks come to the same without a word.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab_trainer.optim.division import assigned


@dataclass(frozen=True, slots=True)
class Stage:
    """What one rank does in one round."""

    arriving: tuple[str, ...] = ()
    """Parameters that are put together for it."""

    slabs: tuple[int, ...] = ()
    """Places of the slabs of matrices whose last parameter has arrived."""

    leaving: tuple[str, ...] = ()
    """Parameters that are done behind it, and are dealt out."""


def owners(costs: Mapping[str, int], together: Iterable[frozenset[str]], ranks: int) -> dict[str, int]:
    """Which rank updates which parameter, so that each has about as much to do. All ranks agree."""
    shares = sorted(sorted(names) for names in joined(costs, together))
    chosen = assigned([sum(costs[name] for name in names) for names in shares], ranks)
    return {name: rank for names, rank in zip(shares, chosen, strict=True) for name in names}


def joined(names: Iterable[str], together: Iterable[frozenset[str]]) -> list[tuple[str, ...]]:
    """Cut `names` into sets, each in their order, so that none of `together` lies in two of them."""
    found = {name: [name] for name in names}
    for kept in together:
        sets = {id(found[name]): found[name] for name in kept}
        union = [name for one in sets.values() for name in one]
        found |= dict.fromkeys(union, union)
    order = {name: place for place, name in enumerate(found)}
    distinct = {id(one): sorted(one, key=order.__getitem__) for one in found.values()}
    return [tuple(one) for one in distinct.values()]


def in_turn(sets: Sequence[tuple[str, ...]], cheap: Collection[str]) -> list[tuple[str, ...]]:
    """The sets in the order in which they are updated; those of `cheap` parameters alone come in the middle.

    There is nothing to compute while the first ones arrive and the last ones leave, and while a cheap one is there
    little.
    """
    dear = [names for names in sets if not all(name in cheap for name in names)]
    others = [names for names in sets if all(name in cheap for name in names)]
    middle = len(dear) // 2
    return [*dear[:middle], *others, *dear[middle:]]


def stages(
    sets: Sequence[tuple[str, ...]], slabs: Sequence[Collection[str]], sizes: Mapping[str, int], most: int
) -> list[Stage]:
    """Cut what one rank updates into rounds of about `most` in all; a set larger than that has a round to itself.

    `sets` must each leave together, and come in this order. `slabs` are the parameters of which each slab of matrices
    is made. A parameter stays until the last of its slabs is updated, and all of its set with it.
    """
    arrival = _arrivals(sets, sizes, most)
    last = [max(arrival[name] for name in names) for names in slabs]
    ready = dict(arrival)
    for names, number in zip(slabs, last, strict=True):
        ready |= {name: max(ready[name], number) for name in names}
    for names in sets:
        ready |= dict.fromkeys(names, max(ready[name] for name in names))
    return [
        Stage(
            arriving=tuple(name for name, number in arrival.items() if number == stage),
            slabs=tuple(place for place, number in enumerate(last) if number == stage),
            leaving=tuple(name for name, number in ready.items() if number == stage),
        )
        for stage in range(max(arrival.values(), default=-1) + 1)
    ]


def rows_of(rows: int, ranks: int) -> list[tuple[int, int]]:
    """The first row that each rank has, and the one behind its last: dealt out as `torch.chunk` does it."""
    each = -(-rows // ranks)
    return list(pairwise(min(each * rank, rows) for rank in range(ranks + 1)))


def _arrivals(sets: Sequence[tuple[str, ...]], sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """The round of each parameter."""
    arrival: dict[str, int] = {}
    number, length = 0, 0
    for names in sets:
        size = sum(sizes[name] for name in names)
        if length and length + size > most:
            number, length = number + 1, 0
        arrival |= dict.fromkeys(names, number)
        length += size
    return arrival
