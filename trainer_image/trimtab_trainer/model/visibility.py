"""Which keys each query of causal attention may see."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Visibility:
    """A `Mask`: a query sees itself and earlier keys; of those only what the fields leave.

    The tensors [batch, tokens] hold for one forward pass, so masks are made once and used by every layer.
    """

    window: int | None = None
    """A query sees at most so many keys, itself included (sliding-window attention)."""

    documents: Tensor | None = None
    """[batch, tokens], the number of the document that a token belongs to: a query sees its own document only."""

    present: Tensor | None = None
    """[batch, tokens], false for padding, which neither sees nor is seen."""

    _made: dict[tuple[object, ...], Any] = field(
        default_factory=dict[tuple[object, ...], Any], repr=False, compare=False
    )

    @property
    def plain(self) -> bool:
        """Whether a query sees all of its past."""
        return self.window is None and self.documents is None and self.present is None

    def sees(self, rows: Tensor, columns: Tensor, batch: int | None = None) -> Tensor:
        """Whether query `rows` see key `columns`, both positions: [batch, rows, columns].

        The first dimension is 1 where all samples have the same mask, and for one sample of the `batch`.
        """
        distance = rows[:, None] - columns
        seen = distance >= 0
        if self.window is not None:
            seen = seen & (distance < self.window)
        seen = seen[None]
        if self.documents is not None:
            documents = self._of(self.documents, batch)
            seen = seen & (documents[:, rows, None] == documents[:, None, columns])
        if self.present is not None:
            present = self._of(self.present, batch)
            seen = seen & present[:, rows, None] & present[:, None, columns]
        return seen

    def hidden_from(self, rows: Tensor, tokens: int) -> Tensor:
        """Which keys the query `rows` [batch, heads, rows] do not see: [batch, heads, rows, tokens]."""
        columns = torch.arange(tokens, device=rows.device)
        hidden = columns > rows[..., None]
        if self.window is not None:
            hidden |= columns <= rows[..., None] - self.window
        samples = torch.arange(rows.shape[0], device=rows.device)[:, None, None]
        if self.documents is not None:
            hidden |= self.documents[samples, rows][..., None] != self.documents[:, None, None, :tokens]
        if self.present is not None:
            hidden |= ~(self.present[samples, rows][..., None] & self.present[:, None, None, :tokens])
        return hidden

    def columns(self, rows: slice, keys: int) -> slice:
        """See `Mask`."""
        return slice(0 if self.window is None else max(0, rows.start - self.window + 1), min(rows.stop, keys))

    def of_block(self, rows: slice, columns: slice, heads: Tensor) -> Tensor:
        """See `Mask`."""
        device = heads.device
        if self.plain:
            # Only the last square of a chunk reaches into the future.
            side = rows.stop - rows.start
            return torch.ones(1, 1, side, side, dtype=torch.bool, device=device).triu(1)
        queries, keys = (torch.arange(each.start, each.stop, device=device) for each in (rows, columns))
        return ~self.sees(queries, keys)[:, None]

    def of_rows(self, rows: Tensor, heads: Tensor, keys: int) -> Tensor:
        """See `Mask`."""
        return self.hidden_from(rows, keys)

    def of_head(self, rows: Tensor, keys: int, batch: int, head: int) -> Tensor:
        """See `Mask`."""
        return ~self.sees(rows, torch.arange(keys, device=rows.device), batch)[0]

    def blind(self, queries: int, device: torch.device) -> Tensor | None:
        """See `Mask`."""
        return None if self.plain else (self.counts(queries, device) == 0)[:, None]

    def counts(self, tokens: int, device: torch.device) -> Tensor:
        """How many keys each query sees, [batch or 1, tokens]."""
        return self.made_once(("counts", tokens, device), lambda: self._everything(tokens, device).sum(-1))

    def additive_mask(self, query: Tensor, *, sink: bool) -> Tensor:
        """Zero where seen and minus infinity elsewhere, [batch or 1, 1, tokens, keys], of the query's type.

        With `sink` a last column is there, which every query sees.
        """
        tokens = query.shape[-2]

        def made() -> Tensor:
            seen = self._everything(tokens, query.device)
            if sink:
                seen = torch.cat((seen, torch.ones_like(seen[..., :1])), -1)
            return torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, -math.inf)[
                :, None
            ]

        return self.made_once(("mask", tokens, query.dtype, query.device, sink), made)

    def made_once(self, key: tuple[object, ...], make: Callable[[], _Made]) -> _Made:
        """What `make` returns, from the first call with this key on; any mask that follows from this one."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _everything(self, tokens: int, device: torch.device) -> Tensor:
        positions = torch.arange(tokens, device=device)
        return self.made_once(("all", tokens, device), lambda: self.sees(positions, positions))

    @staticmethod
    def _of(values: Tensor, batch: int | None) -> Tensor:
        return values if batch is None else values[batch : batch + 1]


CAUSAL: Final = Visibility()
"""A query sees itself and all earlier keys."""
