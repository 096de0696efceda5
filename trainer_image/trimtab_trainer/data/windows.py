"""The windows a run trains on: G samples each, of one source or of several, and one rank's share of them."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from trimtab_contract.data_description import DataDescription
from trimtab_contract.data_position import SampleId
from trimtab_contract.sample_arrays import samples_between

from trimtab_trainer.data.sources import Source
from trimtab_trainer.data.streams import Tokens


class Windows:
    """The share of one rank in every window of G samples.

    Each rank takes a contiguous run of G / world size samples, so the same samples make a window for any world size.
    """

    def __init__(
        self, sources: Sequence[Source], description: DataDescription, *, rank: int = 0, world_size: int = 1
    ) -> None:
        """`sources` are those of the description, in its order; G is a multiple of `world_size`."""
        self.description = description
        self.order = description.data_order()
        self._sources = sources
        self._rank = rank
        self._share = description.global_batch // world_size
        self._last: tuple[int, list[Tokens]] = (-1, [])

    def close(self) -> None:
        """Close the sources."""
        for source in self._sources:
            source.close()

    @property
    def separator(self) -> int | None:
        """The token behind which another document begins, where no target may cross from one to the next."""
        return self.description.separator

    @property
    def attention_separator(self) -> int | None:
        """The token behind which another document begins, where attention sees no earlier ones."""
        return self.description.attention_separator

    def read(self, window: int) -> Tensor:
        """This rank's share of a window, int64 [G / world size, T + 1]; raises DataUnreadable."""
        tokens = np.stack([sample.astype(np.int64) for sample in self._share_of(window)])
        return torch.from_numpy(tokens)  # pyright: ignore[reportUnknownMemberType] torch types numpy loosely

    def positions(self, window: int) -> Tensor:
        """The absolute position of each sample of this rank's share, int64 [G / world size]."""
        first = self._first(window)
        return torch.arange(first, first + self._share, dtype=torch.int64)

    def digest(self, window: int) -> str:
        """SHA-256 of this rank's share as it is stored: of what was read, when `window` was the last one read."""
        return _digest(self._share_of(window))

    def sample_digests(self, window: int) -> tuple[str, ...]:
        """SHA-256 of each sample of this rank's share as it is stored, in order."""
        return tuple(_digest([sample]) for sample in self._share_of(window))

    def window_digest(self, window: int) -> str:
        """SHA-256 of the whole window as it is stored, the same on every rank and for any world size."""
        first, last = self.order.positions_of_window(window)
        return _digest(self._tokens(samples_between(self.order, first, last - first + 1)))

    def _first(self, window: int) -> int:
        return self.order.positions_of_window(window)[0] + self._rank * self._share

    def _share_of(self, window: int) -> list[Tokens]:
        if self._last[0] != window:
            samples = samples_between(self.order, self._first(window), self._share)
            self._last = (window, self._tokens(samples))
        return self._last[1]

    def _tokens(self, samples: Sequence[SampleId]) -> list[Tokens]:
        return [self._sources[one.source].read(one.sample) for one in samples]


def _digest(samples: Sequence[Tokens]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.tobytes())
    return digest.hexdigest()
