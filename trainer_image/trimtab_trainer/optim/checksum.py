"""A checksum of parameters that equal replicas share and that any single flipped bit changes.

With x_i the i-th 32-bit word of the whole model, the checksum is sum((2 i + 1) x_i) modulo 2^64. The
weights are odd, so a change of one word changes the sum; and exchanging two unequal words changes it by
2 (x_i - x_j) (j - i), which is no multiple of 2^64 for fewer than 2^31 words. A plain sum would miss the
exchange, and a sum of floats would depend on its order.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab_trainer.distributed_tensors import first_element, is_sharded, own_part
from trimtab_trainer.tensors import integers

COLUMNS: Final = 1 << 10
ROWS: Final = 1 << 6
"""Words are looked at as rows of a table; on a device, so many rows a pass."""

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


def parameter_checksum(named_tensors: Iterable[tuple[str, Tensor]]) -> ParameterChecksum:
    """Compute the checksum of `named_tensors`, whose order counts."""
    return GrowingChecksum(named_tensors).result()


class GrowingChecksum:
    """The checksum of tensors that get their values one by one. Several threads may add at once."""

    def __init__(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Names, types and shapes count, and the order; what the tensors hold is not looked at yet."""
        self._tensors = dict(named_tensors)
        self._offsets: dict[str, int] = {}
        self._sums: dict[str, Tensor] = {}
        self._room = _Room()
        end = 0
        for name, tensor in self._tensors.items():
            words_each = max(1, tensor.element_size() // _WORD_BYTES)
            self._offsets[name] = end + first_element(tensor) * words_each
            end += tensor.numel() * words_each

    @torch.no_grad()
    def add(self, name: str) -> None:
        """Take in a tensor that has its values now."""
        words = _words(own_part(self._tensors[name]))
        self._sums[name] = _weighted_sum(words, self._offsets[name], self._room)

    def result(self) -> ParameterChecksum:
        """The checksum of all, with those that were not added before as they are now."""
        for name in self._tensors.keys() - self._sums.keys():
            self.add(name)
        sums = [self._sums[name] for name in self._tensors]
        values = [value % _MODULUS for value in integers(torch.stack(sums))]
        named = tuple(zip(self._tensors, values, strict=True))
        return ParameterChecksum(
            total=sum(values) % _MODULUS,
            tensors=named,
            sharded=sum(value for name, value in named if is_sharded(self._tensors[name])) % _MODULUS,
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


class _Room(threading.local):
    """Where the words of one pass become 64-bit integers, on each thread.

    Made once: room made anew at each pass is not found again by the allocator between the sums that stay, and the
    process would grow by a third of a megabyte a tensor.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, COLUMNS, dtype=torch.int64)

    def holding(self, words: Tensor) -> Tensor:
        """`words` [rows, COLUMNS], until the next call."""
        if self._room.device != words.device or not len(self._room):
            self._room = torch.empty(ROWS, COLUMNS, dtype=torch.int64, device=words.device)
        return self._room[: len(words)].copy_(words)


def _weighted_sum(words: Tensor, offset: int, room: _Room) -> Tensor:
    """sum((2 (offset + i) + 1) x_i) over `words`.

    The weights grow evenly, so the sums of rows and of columns are enough; no word is multiplied. With o the offset and
    C columns, sum((2 (o + C r + c) + 1) x_rc) = (2 o + 1) sum(x) + 2 C sum(r row_r) + 2 sum(c column_c).
    """
    count, device = words.numel() // COLUMNS, words.device
    rest = words[count * COLUMNS :].to(torch.int64)
    total = rest.dot(2 * (offset + count * COLUMNS + _numbers(device)[: len(rest)]) + 1)
    if not count:
        return total
    table = words[: count * COLUMNS].view(count, COLUMNS)
    rows, columns = _sums_on_host(table) if device.type == "cpu" else _sums(table, room)
    total += (2 * offset + 1) * rows.sum() + 2 * COLUMNS * rows.dot(torch.arange(count, device=device))
    return total.add_(columns.dot(_numbers(device)), alpha=2)


def _sums(table: Tensor, room: _Room) -> tuple[Tensor, Tensor]:
    """Sums of the rows and of the columns, as 64-bit integers."""
    rows = torch.empty(len(table), dtype=torch.int64, device=table.device)
    columns = torch.zeros(COLUMNS, dtype=torch.int64, device=table.device)
    for start in range(0, len(table), ROWS):
        part = room.holding(table[start : start + ROWS])
        torch.sum(part, 1, out=rows[start : start + ROWS])
        columns += part.sum(0)
    return rows, columns


def _sums_on_host(table: Tensor) -> tuple[Tensor, Tensor]:
    """The same in two calls: with several a pass, threads that add at once mostly wait for the interpreter's lock."""
    words = cast("NDArray[np.int32]", table.numpy())
    return torch.as_tensor(words.sum(1, dtype=np.int64)), torch.as_tensor(words.sum(0, dtype=np.int64))


@cache
def _numbers(device: torch.device) -> Tensor:
    return torch.arange(COLUMNS, device=device)
