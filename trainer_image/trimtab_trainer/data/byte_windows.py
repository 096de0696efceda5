"""Windows of one flat byte file: sample i is the T bytes from i T on and, as last target, the byte after them."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from trimtab_contract.data_position import DataOrder, Order, SampleId

from trimtab_trainer.errors import BadConfig, DataUnreadable

IDENTITY_BYTES = 1024 * 1024
"""How much of the head and of the tail of the file makes its identity."""


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Tells one data file from another: its size, and the SHA-256 of its head and tail.

    It does not read the whole of a file that may have terabytes: damage in the middle is what guards are for.
    """

    size: int
    sha256: str


class ByteWindows:
    """The share of one rank in every window of G samples.

    Each rank takes a contiguous run of G / world size samples, so the same samples make a window for any world size.
    Reads with `pread`, not through a memory map: a file that shrinks raises DataUnreadable instead of killing the
    process by SIGBUS.
    """

    def __init__(
        self,
        path: Path,
        *,
        sequence: int,
        global_batch: int,
        order: Order = Order.SEQUENTIAL,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Open the file; raises BadConfig with every wrong field."""
        self._path = path
        self._sequence = sequence
        self._rank = rank
        self._share = global_batch // world_size
        problems: list[str] = []
        if sequence < 1:
            problems.append(f"model.sequence: {sequence} must be at least 1")
        if global_batch < 1 or global_batch % world_size:
            problems.append(f"globalBatch: {global_batch} must be a multiple of the {world_size} ranks")
        self._file, self._size = -1, 0
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._file).st_size
            os.pread(self._file, 1, 0)
        except OSError as error:
            problems.append(f"data.path: {path} cannot be read: {error.strerror}")
        else:
            if sequence >= 1 and self._size <= sequence:
                problems.append(
                    f"data.path: {path} has {self._size} bytes; one sample of {sequence} and its target do not fit"
                )
        if problems:
            self.close()
            raise BadConfig(problems)
        self.order = DataOrder.of([self._size // sequence], global_batch=global_batch, order=order, seed=seed)
        self._last: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def identity(self) -> DataIdentity:
        """Size, and the SHA-256 of the first and the last MiB."""
        digest = hashlib.sha256(self._pread(min(IDENTITY_BYTES, self._size), 0))
        tail = min(IDENTITY_BYTES, self._size)
        digest.update(self._pread(tail, self._size - tail))
        return DataIdentity(self._size, digest.hexdigest())

    def read(self, window: int) -> Tensor:
        """This rank's share of a window, int64 [G / world size, T + 1]; raises DataUnreadable."""
        flat = np.frombuffer(self._share_bytes(window), dtype=np.uint8).astype(np.int64)
        return torch.from_numpy(flat).view(self._share, self._sequence + 1)  # pyright: ignore[reportUnknownMemberType]

    def positions(self, window: int) -> Tensor:
        """The absolute position of each sample of this rank's share, int64 [G / world size]."""
        first = window * self.order.global_batch + self._rank * self._share
        return torch.arange(first, first + self._share, dtype=torch.int64)

    def digest(self, window: int) -> str:
        """SHA-256 of the bytes of this rank's share: of those read, when `window` was the last one read."""
        return hashlib.sha256(self._share_bytes(window)).hexdigest()

    def window_digest(self, window: int) -> str:
        """SHA-256 of the bytes of the whole window, the same on every rank and for any world size."""
        return hashlib.sha256(self._bytes_of(self.order.samples_of_window(window))).hexdigest()

    def _share_bytes(self, window: int) -> bytes:
        if self._last[0] != window:
            first = self._rank * self._share
            samples = self.order.samples_of_window(window)[first : first + self._share]
            self._last = (window, self._bytes_of(samples))
        return self._last[1]

    def _bytes_of(self, samples: tuple[SampleId, ...]) -> bytes:
        return b"".join(self._sample(one.sample) for one in samples)

    def _sample(self, sample: int) -> bytes:
        start, length = sample * self._sequence, self._sequence + 1
        if start + length <= self._size:
            return self._pread(length, start)
        # The last sample of a file of whole samples: its last target is the first byte of the file.
        return self._pread(length - 1, start) + self._pread(1, 0)

    def _pread(self, length: int, offset: int) -> bytes:
        try:
            found = os.pread(self._file, length, offset)
        except OSError as error:
            message = f"data.path: {self._path} cannot be read at byte {offset}: {error.strerror}"
            raise DataUnreadable(message) from error
        if len(found) != length:
            message = f"data.path: {self._path} ends before byte {offset + length}: it shrank while it was read"
            raise DataUnreadable(message)
        return found
