"""Which keys a query may see, and what a mask adds to its logits."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Mask(Protocol):
    """What keeps logits from the softmax, or changes them before it.

    A tensor of booleans that is returned is true where a key is hidden. Any other is added to the logits, and has minus
    infinity where a key is hidden. None leaves every logit as it is.
    """

    def columns(self, rows: slice, keys: int) -> slice:
        """Which of so many `keys` the query `rows` could see at all."""
        ...

    def of_block(self, rows: slice, columns: slice, heads: Tensor) -> Tensor | None:
        """For the query `rows` of `heads` and the last keys of `columns`.

        Returns [batch or 1, len(heads) or 1, rows, last keys]; these rows see all keys of `columns` before those.
        """
        ...

    def of_rows(self, rows: Tensor, heads: Tensor, keys: int) -> Tensor | None:
        """For the query `rows` [batch, len(heads), some] and every key, [batch, len(heads) or 1, some, keys]."""
        ...

    def of_head(self, rows: Tensor, keys: int, batch: int, head: int) -> Tensor | None:
        """For the query `rows` [some] of one head of one sample and every key, [some, keys]."""
        ...

    def blind(self, queries: int, device: torch.device) -> Tensor | None:
        """Which queries see nothing, [batch or 1, heads or 1, queries]; None where each sees a key."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """The masks of `scaled_dot_product_attention`.

    With `causal` a query sees the keys up to its own position, both counted from the first one. `given` is
    [batch or 1, heads or 1, queries, keys], true where a key is seen, or added to the logits. Not both.
    """

    causal: bool = False
    given: Tensor | None = None

    @classmethod
    def of_call(cls, given: Tensor | None, queries: int, keys: int, *, causal: bool) -> "AttentionMask":
        """Take the arguments of a call, in which `given` has any shape that can be broadcast."""
        if given is None:
            return cls(causal=causal)
        given = given.detach()
        given = given.reshape((1,) * (4 - given.ndim) + given.shape).expand(-1, -1, queries, keys)
        if causal:
            later = torch.ones(queries, keys, dtype=torch.bool, device=given.device).triu(1)
            given = given & ~later if given.dtype == torch.bool else given.masked_fill(later, -math.inf)
        return cls(given=given)

    @property
    def adds(self) -> bool:
        """Whether it changes logits that it leaves."""
        return self.given is not None and self.given.dtype != torch.bool

    def columns(self, rows: slice, keys: int) -> slice:
        """See `Mask`."""
        return slice(0, min(rows.stop, keys) if self.causal else keys)

    def of_block(self, rows: slice, columns: slice, heads: Tensor) -> Tensor | None:
        """See `Mask`."""
        if self.given is not None:
            block = self.given[:, :, rows, columns]
            return _hidden_or_added(block.index_select(1, heads) if block.shape[1] > 1 else block)
        if not self.causal or rows.start >= columns.stop:
            return None
        # Only behind the first row's own key anything is hidden.
        side = columns.stop - rows.start
        return torch.ones(1, 1, rows.stop - rows.start, side, dtype=torch.bool, device=heads.device).triu(1)

    def of_rows(self, rows: Tensor, heads: Tensor, keys: int) -> Tensor | None:
        """See `Mask`."""
        if self.given is None:
            return torch.arange(keys, device=rows.device) > rows[..., None] if self.causal else None
        samples, those = torch.arange(len(rows), device=rows.device)[:, None, None], heads[:, None]
        samples = samples if len(self.given) > 1 else torch.zeros_like(samples)
        those = those if self.given.shape[1] > 1 else torch.zeros_like(those)
        return _hidden_or_added(self.given[samples, those, rows])

    def of_head(self, rows: Tensor, keys: int, batch: int, head: int) -> Tensor | None:
        """See `Mask`."""
        if self.given is None:
            return torch.arange(keys, device=rows.device) > rows[:, None] if self.causal else None
        own = self.given[batch if len(self.given) > 1 else 0, head if self.given.shape[1] > 1 else 0]
        return _hidden_or_added(own[rows])

    def blind(self, queries: int, device: torch.device) -> Tensor | None:
        """See `Mask`."""
        if self.given is None:
            return None
        return ~self.given.any(-1) if self.given.dtype == torch.bool else self.given.amax(-1) == -math.inf


def _hidden_or_added(part: Tensor) -> Tensor:
    return ~part if part.dtype == torch.bool else part


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Apply what a `Mask` has returned to the last keys of `scores`, in place."""
    if mask is None:
        return scores
    last = scores[..., -mask.shape[-1] :]
    if mask.dtype == torch.bool:
        last.masked_fill_(mask, -math.inf)
    else:
        last.add_(mask)
    return scores
