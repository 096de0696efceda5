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
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab_trainer.distributed_tensors import first_element, is_sharded, own_part
from trimtab_trainer.tensors import integers

COLUMNS: Final = 1 << 10
ROWS: Final = 1 << 6
"""Words are looked at as rows of a table, so many rows a pass: a few such parts fit a core's cache."""

DEVICE_ROWS: Final = 1 << 12
"""The same on an accelerator, where each pass has to be launched: 32 MiB as 64-bit integers."""

_MODULUS: Final = 1 << 64
_NUMBERS: Final = np.arange(COLUMNS)
_WORD_BYTES: Final = 4


Sum = TypeVar("Sum", int, Tensor)


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
        self._sums: dict[str, int | Tensor] = {}
        self._room, self._host_room = _Room(), _HostRoom()
        end = 0
        for name, tensor in self._tensors.items():
            words_each = max(1, tensor.element_size() // _WORD_BYTES)
            self._offsets[name] = end + first_element(tensor) * words_each
            end += tensor.numel() * words_each

    def growing(self, name: str, memory: memoryview) -> "GrowingSum | None":
        """The sum of a tensor whose values arrive in `memory` from the first byte on.

        None where that is not all that this rank has of it, in the order of its elements.
        """
        tensor = own_part(self._tensors[name])
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes != len(memory) or not memory:
            return None
        if torch.frombuffer(memory, dtype=torch.uint8).data_ptr() != tensor.data_ptr():
            return None
        return GrowingSum(_words(tensor), self._offsets[name], self._host_room)

    @torch.no_grad()
    def add(self, name: str, grown: "GrowingSum | None" = None) -> None:
        """Take in a tensor that has its values now, or what has `grown` with them."""
        words, offset = _words(own_part(self._tensors[name])), self._offsets[name]
        if grown is not None:
            self._sums[name] = grown.result()
        elif words.device.type == "cpu":
            self._sums[name] = GrowingSum(words, offset, self._host_room).result()
        else:
            self._sums[name] = _device_sum(words, offset, self._room)

    def result(self) -> ParameterChecksum:
        """The checksum of all, with those that were not added before as they are now."""
        for name in self._tensors.keys() - self._sums.keys():
            self.add(name)
        on_device = {name: found for name, found in self._sums.items() if isinstance(found, Tensor)}
        if on_device:
            self._sums |= zip(on_device, integers(torch.stack(list(on_device.values()))), strict=True)
        values = [int(self._sums[name]) % _MODULUS for name in self._tensors]
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
            self._room = torch.empty(DEVICE_ROWS, COLUMNS, dtype=torch.int64, device=words.device)
        return self._room[: len(words)].copy_(words)


class _HostRoom(threading.local):
    """The same for words in this process's memory."""

    def __init__(self) -> None:
        self._room = np.empty((ROWS, COLUMNS), np.int64)

    def holding(self, words: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """`words` [rows, COLUMNS], until the next call."""
        held = self._room[: len(words)]
        np.copyto(held, words)
        return held


class GrowingSum:
    """The weighted sum of a tensor's words in this process's memory, while they arrive: they are in the processor's
    cache then, and need not be read from memory again."""

    def __init__(self, words: Tensor, offset: int, room: _HostRoom) -> None:
        """`offset` is the number of the first of the `words` in the whole model."""
        count = words.numel() // COLUMNS
        self._words, self._offset, self._room = words, offset, room
        self._table = cast("NDArray[np.integer[Any]]", words[: count * COLUMNS].view(count, COLUMNS).numpy())
        self._rows, self._columns, self._done = np.empty(count, np.int64), np.zeros(COLUMNS, np.int64), 0

    def take(self, arrived: int) -> None:
        """So many bytes from the first one on are there, and will not change."""
        until = min(arrived // (COLUMNS * self._words.element_size()), len(self._table))
        for start in range(self._done, until, ROWS):
            part = slice(start, min(start + ROWS, until))
            held = self._room.holding(self._table[part])
            held.sum(1, None, self._rows[part])
            self._columns += held.sum(0)
        self._done = max(self._done, until)

    def result(self) -> int:
        """The sum of all, when they are all there."""
        self.take(self._words.nbytes)
        count, offset = len(self._rows), self._offset
        rest = self._words[count * COLUMNS :].numpy().astype(np.int64)
        last = rest.dot(2 * (offset + count * COLUMNS + _NUMBERS[: len(rest)]) + 1)
        return int(last) + _weighted(
            offset, int(self._rows.sum()), int(self._rows.dot(np.arange(count))), int(self._columns.dot(_NUMBERS))
        )


def _device_sum(words: Tensor, offset: int, room: _Room) -> Tensor:
    """The same of words in a device's memory."""
    count, device = words.numel() // COLUMNS, words.device
    table = words[: count * COLUMNS].view(count, COLUMNS)
    rows = torch.empty(count, dtype=torch.int64, device=device)
    columns = torch.zeros(COLUMNS, dtype=torch.int64, device=device)
    for start in range(0, count, DEVICE_ROWS):
        part = room.holding(table[start : start + DEVICE_ROWS])
        torch.sum(part, 1, out=rows[start : start + DEVICE_ROWS])
        columns += part.sum(0)
    rest = words[count * COLUMNS :].to(torch.int64)
    last = _product(rest, 2 * (offset + count * COLUMNS + _numbers(device)[: len(rest)]) + 1)
    by_row = _product(rows, torch.arange(count, device=device))
    return last + _weighted(offset, rows.sum(), by_row, _product(columns, _numbers(device)))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The scalar product: CUDA has none of its own for integers."""
    return (left * right).sum()


def _weighted(offset: int, total: Sum, by_row: Sum, by_column: Sum) -> Sum:
    """sum((2 (o + C r + c) + 1) x_rc) over a table of C columns whose first word is number o of the whole model.

    The weights grow evenly, so sum(x), sum(r x) and sum(c x) are enough; no word is multiplied.
    """
    return (2 * offset + 1) * total + 2 * COLUMNS * by_row + 2 * by_column


@cache
def _numbers(device: torch.device) -> Tensor:
    return torch.arange(COLUMNS, device=device)
