"""A keyed permutation of 0..size-1 in constant time and memory, one index at a time.

`permutation_arrays` computes the same for whole arrays.
"""

MASK = (1 << 64) - 1
ROUNDS = 6
GOLDEN_GAMMA, FIRST_MULTIPLIER, SECOND_MULTIPLIER = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """One round function: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value + GOLDEN_GAMMA) & MASK
    value = ((value ^ (value >> 30)) * FIRST_MULTIPLIER) & MASK
    value = ((value ^ (value >> 27)) * SECOND_MULTIPLIER) & MASK
    return value ^ (value >> 31)


def half_bits(size: int) -> int:
    """Bits of each of the two halves that an index below `size` is cut into."""
    return ((size - 1).bit_length() + 1) // 2


def permute(index: int, size: int, key: int) -> int:
    """A keyed bijection of 0..size-1: a balanced Feistel network with cycle walking, O(1) in time and memory."""
    if size < 2:
        return 0
    half = half_bits(size)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for round_number in range(ROUNDS):
            left, right = right, left ^ (mix(mix(key ^ round_number) ^ right) & mask)
        index = (left << half) | right
        if index < size:
            return index
