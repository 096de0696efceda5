"""The keyed permutation of samples: what an index costs, alone and in arrays, beside a table of random order.

`python -m benchmarks.permutation`. The yardstick is `Generator.permutation`, which needs all indices at once, and
memory for them.
"""

import time
from collections.abc import Callable

import numpy as np
from trimtab_contract.permutation import permute
from trimtab_contract.permutation_arrays import permute_all

from benchmarks.figures import Figure, Measurement, ratios, write

ROUNDS = 7
INDICES = 2_000_000
SINGLE_INDICES = 20_000
SIZES = (1_000_000, 100_000_000, 1_000_000_000)
"""Of the second, hardly more than a third of the network's outputs are samples: nearly the worst there is."""
KEY = 0x5EED


def nanoseconds(count: int, act: Callable[[], object]) -> float:
    """Processor time for each of `count` indices."""
    begun = time.process_time()
    act()
    return (time.process_time() - begun) / count * 1e9


def figures_of(size: int) -> tuple[Figure, ...]:
    """What an index below `size` costs."""
    random = np.random.default_rng(1)
    indices = random.integers(0, size, INDICES)
    few = indices[:SINGLE_INDICES].tolist()
    arrays: list[float] = []
    singles: list[float] = []
    tables: list[float] = []
    for _ in range(ROUNDS):
        arrays.append(nanoseconds(INDICES, lambda: permute_all(indices, size, KEY)))
        singles.append(nanoseconds(SINGLE_INDICES, lambda: [permute(index, size, KEY) for index in few]))
        tables.append(nanoseconds(INDICES, lambda: random.permutation(INDICES)))
    name = f"an index below {size:,}, in an array"
    return (
        Figure(name, tuple(arrays), "ns", goal=100.0),
        Figure(f"{name} ÷ alone", ratios(arrays, singles)),
        Figure(f"{name} ÷ in a table of {INDICES:,}", ratios(arrays, tables)),
    )


def main() -> None:
    """Measure and keep."""
    figures = [figure for size in SIZES for figure in figures_of(size)]
    write(
        "permutation",
        Measurement(
            title="Order of samples",
            about=f"The keyed permutation that tells which sample lies at a position, in processor time of one core: "
            f"{INDICES:,} indices in an array, {SINGLE_INDICES:,} one by one, and a table of random order by NumPy.",
            figures=tuple(figures),
            notes=("10 million indices a second are 100 ns an index.",),
        ),
    )


if __name__ == "__main__":
    main()
