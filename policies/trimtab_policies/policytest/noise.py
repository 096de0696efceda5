"""Noise that is the same on every machine and in every run.

The n-th number of a stream is a function of the stream's key and n alone (SplitMix64: Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014), made normal by Box and Muller. A stream's key is made from the
seed of the case, the attempt and the name of what it belongs to, so that another series changes no stream.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-53


def stream_key(seed: int, attempt: int, name: str) -> int:
    """The key of one stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{attempt}/{name}".encode()).digest()[:8], "little")


def normals(key: int, start: int, count: int) -> NDArray[np.float64]:
    """Numbers `start` to `start + count` of a stream: mean 0, standard deviation 1."""
    indices = np.arange(2 * start, 2 * (start + count), dtype=np.uint64)
    with np.errstate(over="ignore"):
        uniform = ((_mixed(np.uint64(key) + (indices + np.uint64(1)) * _GOLDEN) >> np.uint64(11)) + 0.5) * _UNIT
    return np.sqrt(-2 * np.log(uniform[::2])) * np.cos(2 * np.pi * uniform[1::2])


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
