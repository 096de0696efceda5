"""Several sources of samples by weights: which source a position reads, and which of its samples in turn.

A cycle of as many positions as the shares' sum is laid out once, and repeats. Up to any position each source has the
floor or the ceiling of its share. With two sources that holds for every stretch of positions, wherever it begins; with
three or more no order can do that for all weights, and a stretch that begins elsewhere is off by less than two.

The k-th sample of a source with share w of W has its place between `floor((k-1) W/w)` and `ceil(k W/w)`; the earliest
deadline goes first, which finds such places for all whenever there are any (Baruah, Cohen, Plaxton, Varvel 1996,
"Proportionate progress").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import Self

from trimtab_contract.errors import InvalidPosition

LONGEST_CYCLE = 10_000
"""Largest sum of shares: weights of four decimals."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of the sources: whole numbers from 1, without a common divisor."""

    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse what is no mixture; `of` makes one of any weights."""
        if not self.shares or min(self.shares) < 1 or gcd(*self.shares) != 1:
            message = f"shares {list(self.shares)} must be whole numbers from 1 without a common divisor"
            raise InvalidPosition(message)
        if sum(self.shares) > LONGEST_CYCLE:
            message = (
                f"the weights have shares of {sum(self.shares):,} in all, more than {LONGEST_CYCLE:,}: "
                "give weights of fewer digits"
            )
            raise InvalidPosition(message)

    @classmethod
    def of(cls, weights: Sequence[float]) -> Self:
        """The mixture by weights above 0, each taken as the decimal number it is written as."""
        if not weights or not all(0 < weight < float("inf") for weight in weights):
            message = f"weights {list(weights)} must all be above 0"
            raise InvalidPosition(message)
        fractions = [Fraction(str(weight)) for weight in weights]
        unit = lcm(*(fraction.denominator for fraction in fractions))
        whole = [int(fraction * unit) for fraction in fractions]
        divisor = gcd(*whole)
        return cls(tuple(number // divisor for number in whole))

    @property
    def cycle(self) -> int:
        """Positions after which the order of the sources repeats."""
        return sum(self.shares)

    def place(self, position: int) -> tuple[int, int]:
        """The source read at a position, and how many samples of that source come before it."""
        round_number, slot = divmod(position, self.cycle)
        source, before = _layout(self.shares)[slot]
        return source, round_number * self.shares[source] + before


@lru_cache(maxsize=16)
def _layout(shares: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Of each position of a cycle, the source and how many samples of it come before."""
    cycle, taken = sum(shares), [0] * len(shares)
    places: list[tuple[int, int]] = []
    for slot in range(cycle):
        # The earliest deadline; of several, the one furthest behind its share; of several, the first.
        _, _, source = min(
            (-(-(taken[number] + 1) * cycle // share), taken[number] * cycle - (slot + 1) * share, number)
            for number, share in enumerate(shares)
            if taken[number] * cycle // share <= slot
        )
        places.append((source, taken[source]))
        taken[source] += 1
    return tuple(places)
