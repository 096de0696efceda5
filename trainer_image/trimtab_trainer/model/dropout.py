"""Dropout whose mask is a function of what is dropped, not of the order of calls.

A global random state would make a resumed or re-distributed run differ from an undisturbed one. Here each
bit of the mask is a hash of (seed, sample, site, element), so a sample meets the same mask on any rank, in
any batch, after any restart.
"""

from typing import Final

import torch
from torch import Tensor

# The increments and multipliers of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
# Generators, OOPSLA 2014), as signed 64-bit integers because PyTorch's int64 arithmetic wraps.
_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST_MULTIPLIER: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND_MULTIPLIER: Final = 0x94D049BB133111EB - (1 << 64)
_UNIFORM_BITS: Final = 53


def keyed_dropout(x: Tensor, *, probability: float, seed: int, sample_ids: Tensor, site: int) -> Tensor:
    """Zero elements of `x` [batch, ...] with `probability` and scale the others by 1 / (1 - probability).

    `sample_ids` [batch] are the absolute identities of the samples; `site` numbers the place in the model.
    """
    key = _mix(_mix(torch.full_like(sample_ids, seed)) + sample_ids)
    key = _mix(key + site)
    element = torch.arange(x[0].numel(), dtype=torch.int64, device=x.device)
    bits = _mix(key[:, None] + element)
    uniform = _shift_right(bits, 64 - _UNIFORM_BITS).double() * 2.0**-_UNIFORM_BITS
    kept = (uniform >= probability).view_as(x)
    return x * kept / (1 - probability)


def _mix(value: Tensor) -> Tensor:
    """Advance and finalise SplitMix64, element by element."""
    value = value + _GOLDEN_GAMMA
    value = (value ^ _shift_right(value, 30)) * _FIRST_MULTIPLIER
    value = (value ^ _shift_right(value, 27)) * _SECOND_MULTIPLIER
    return value ^ _shift_right(value, 31)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Shift int64 right without copying the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
