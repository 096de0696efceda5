"""The keyed permutation of `permutation` for whole arrays of indices: what many samples are looked up with."""

import numpy as np
from numpy.typing import NDArray

from trimtab_contract.permutation import (
    FIRST_MULTIPLIER,
    GOLDEN_GAMMA,
    MASK,
    ROUNDS,
    SECOND_MULTIPLIER,
    half_bits,
    mix,
)

Indices = NDArray[np.uint64]

CHUNK = 1 << 15
"""Indices turned at a time: their halves and what is in between stay in the processor's cache."""

LARGEST_SIZE = 1 << 62
"""Both halves of an index together have at most 62 bits."""


def permute_all(indices: NDArray[np.integer], size: int, key: int) -> Indices:
    """`permute(index, size, key)` of each of `indices` [n], all from 0 to size - 1, as uint64 [n].

    Raises:
        ValueError: `size` is beyond 2^62, or an index is not below it.
    """
    if size > LARGEST_SIZE:
        raise ValueError(f"size {size} is beyond {LARGEST_SIZE}")
    # A negative index becomes a huge one, which is refused as such.
    found = indices.astype(np.uint64)
    if found.size and int(found.max()) >= max(size, 1):
        raise ValueError(f"an index is not below size {size}")
    if size < 2:
        return found
    keys = [np.uint64(mix((key ^ round_number) & MASK)) for round_number in range(ROUNDS)]
    half = half_bits(size)
    _turn(found, half, keys)
    # Those that fall outside are turned again, all together, until they are inside.
    outside = np.flatnonzero(found >= size)
    walking = found[outside]
    while outside.size:
        _turn(walking, half, keys)
        found[outside] = walking
        again = walking >= size
        outside, walking = outside[again], walking[again]
    return found


def _turn(indices: Indices, half: int, keys: list[np.uint64]) -> None:
    """All rounds of the network, in place."""
    for start in range(0, indices.size, CHUNK):
        _turn_chunk(indices[start : start + CHUNK], half, keys)


def _turn_chunk(indices: Indices, half: int, keys: list[np.uint64]) -> None:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = indices >> bits, indices & mask
    mixed, shifted = np.empty_like(indices), np.empty_like(indices)
    for key in keys:
        np.bitwise_xor(right, key, out=mixed)
        _mix(mixed, shifted)
        np.bitwise_and(mixed, mask, out=mixed)
        np.bitwise_xor(left, mixed, out=left)
        left, right = right, left
    np.left_shift(left, bits, out=left)
    np.bitwise_or(left, right, out=indices)


def _mix(value: Indices, shifted: Indices) -> None:
    """`permutation.mix` of each value, in place; unsigned products wrap by themselves."""
    np.add(value, np.uint64(GOLDEN_GAMMA), out=value)
    for shift, multiplier in ((30, FIRST_MULTIPLIER), (27, SECOND_MULTIPLIER)):
        np.right_shift(value, np.uint64(shift), out=shifted)
        np.bitwise_xor(value, shifted, out=value)
        np.multiply(value, np.uint64(multiplier), out=value)
    np.right_shift(value, np.uint64(31), out=shifted)
    np.bitwise_xor(value, shifted, out=value)
