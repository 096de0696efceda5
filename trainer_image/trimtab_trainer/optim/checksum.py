"""A checksum of parameters that equal replicas share and that any single flipped bit changes.

With x_i the i-th 32-bit word of the whole model, the checksum is sum((2 i + 1) x_i) modulo 2^64. The
weights are odd, so a change of one word changes the sum; and exchanging two unequal words changes it by
2 (x_i - x_j) (j - i), which is no multiple of 2^64 for fewer than 2^31 words. A plain sum would miss the
exchange, and a sum of floats would depend on its order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.distributed_tensors import first_element, is_sharded, own_part
from trimtab_trainer.tensors import integers

CHUNK_WORDS: Final = 1 << 16
"""Words per pass: the weights and the products of one pass stay in cache."""

_MODULUS: Final = 1 << 64
_WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ParameterChecksum:
    """Checksum of a model and of each of its tensors, as unsigned 64-bit integers.

    Of a sharded tensor it is that of the own part, at its place in the whole; `sharded` is the sum over those.
    """

    total: int
    tensors: tuple[tuple[str, int], ...]
    sharded: int = 0

    def first_difference(self, other: "ParameterChecksum") -> str | None:
        """Return the name of the first tensor whose checksum differs from the other's, or None."""
        pairs = zip(self.tensors, other.tensors, strict=True)
        return next((mine[0] for mine, theirs in pairs if mine != theirs), None)


@torch.no_grad()
def parameter_checksum(named_tensors: Iterable[tuple[str, Tensor]]) -> ParameterChecksum:
    """Compute the checksum of `named_tensors`, whose order counts."""
    names: list[str] = []
    sums: list[Tensor] = []
    sharded: list[bool] = []
    offset, room = 0, _Room()
    for name, tensor in named_tensors:
        words = _words(own_part(tensor))
        words_each = max(1, tensor.element_size() // _WORD_BYTES)
        names.append(name)
        sums.append(_weighted_sum(words, offset + first_element(tensor) * words_each, room))
        sharded.append(is_sharded(tensor))
        offset += tensor.numel() * words_each
    values = [value % _MODULUS for value in integers(torch.stack(sums))]
    return ParameterChecksum(
        total=sum(values) % _MODULUS,
        tensors=tuple(zip(names, values, strict=True)),
        sharded=sum(value for value, is_part in zip(values, sharded, strict=True) if is_part) % _MODULUS,
    )


def whole_checksum(total: int, sharded: int, parts: Iterable[int]) -> int:
    """The total of a whole state, the same on however many ranks it is.

    `total` and `sharded` are those of one rank, `parts` has the `sharded` of every rank: a sum over all elements is the
    sum over the parts, and what every rank has counts once.
    """
    return (total - sharded + sum(parts)) % _MODULUS


def _words(tensor: Tensor) -> Tensor:
    """View the bytes of `tensor` as 32-bit integers, or 16-bit ones for two-byte types."""
    word = torch.int16 if tensor.element_size() == 2 else torch.int32
    return tensor.detach().contiguous().flatten().view(word)


class _Room:
    """Where the words of one pass become 64-bit integers.

    Made once: room made anew at each pass is not found again by the allocator between the sums that stay, and the
    process would grow by a third of a megabyte a tensor.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.int64)

    def holding(self, words: Tensor) -> Tensor:
        """`words`, until the next call."""
        if self._room.device != words.device or len(self._room) < len(words):
            self._room = torch.empty(CHUNK_WORDS, dtype=torch.int64, device=words.device)
        return self._room[: len(words)].copy_(words)


def _weighted_sum(words: Tensor, offset: int, room: _Room) -> Tensor:
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), CHUNK_WORDS):
        chunk = room.holding(words[start : start + CHUNK_WORDS])
        # sum((2 (o + i) + 1) x_i) = 2 o sum(x_i) + sum((2 i + 1) x_i)
        total += 2 * (offset + start) * chunk.sum() + chunk.dot(_odd_numbers(words.device)[: len(chunk)])
    return total


@cache
def _odd_numbers(device: torch.device) -> Tensor:
    return torch.arange(1, 2 * CHUNK_WORDS, 2, dtype=torch.int64, device=device)
