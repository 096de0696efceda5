"""Many samples of a data order at once: what `DataOrder.sample` says of each position, with arrays."""

import numpy as np

from trimtab_contract.data_position import DataOrder, Order, SampleId, SourceOrder
from trimtab_contract.permutation_arrays import permute_all


def samples_between(order: DataOrder, first: int, count: int) -> tuple[SampleId, ...]:
    """The samples at `count` positions from `first` on, in that order."""
    places = [order.mixture.place(position) for position in range(first, first + count)]
    found = [SampleId(0, 0)] * count
    for number, source in enumerate(order.sources):
        own = [slot for slot, place in enumerate(places) if place[0] == number]
        for slot, sample in zip(own, _samples(source, [places[slot][1] for slot in own]), strict=True):
            found[slot] = SampleId(number, sample)
    return tuple(found)


def _samples(source: SourceOrder, indices: list[int]) -> list[int]:
    """The samples read after so many others of the source; `indices` rise."""
    if source.order is Order.SEQUENTIAL:
        return [index % source.samples for index in indices]
    found: list[int] = []
    while indices:
        epoch = indices[0] // source.samples
        inside = [index for index in indices if index // source.samples == epoch]
        offsets = np.array([index % source.samples for index in inside], dtype=np.uint64)
        found += permute_all(offsets, source.samples, source.key(epoch)).tolist()
        indices = indices[len(inside) :]
    return found
