"""The largest logit of each head, from queries and keys: from the whole product, or from some rows of it."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.max_logits.masks import Mask, masked
from trimtab_trainer.tensors import transposed, true_indices

CHUNK_ROWS: Final = 256
"""Query rows per product: the scores of one chunk stay in cache."""

SCORES_TOGETHER: Final = 1 << 26
"""On an accelerator, where all samples and heads share a product, it has about so many scores at most: its memory is
what the backward pass needs, too."""

BFLOAT16_SPACING: Final = 2.0**-7
"""Two neighbouring bfloat16 numbers lie at most this share of either apart."""

ROWS_TOGETHER: Final = 32
"""Up to so many rows of each head are computed in one product for all heads, padded to the most that one has."""


@dataclass(frozen=True, slots=True)
class Logits:
    """The logits of one attention layer, not computed yet.

    `query` is [batch, heads, queries, dimension] and `key` [batch, key heads, keys, dimension]; each key head is for as
    many consecutive query heads. All results are detached and at least float32.
    """

    query: Tensor
    key: Tensor
    mask: Mask
    scale: float
    """On the products; positive. It is 1 where the mask adds something, and the query float32 at least."""

    @torch.no_grad()
    def maxima(self, heads: Tensor | None = None) -> Tensor:
        """The largest logit of `heads` (all when None).

        Minus infinity where no query of a head sees any key.
        """
        chosen = self._every_head if heads is None else heads
        query, key = self._of(chosen)
        if query.device.type == "cpu" and query.dtype == torch.bfloat16:
            # Rounding keeps the order, so only rows that reach the largest rounded product can hold the largest one.
            rounded = self._row_maxima(query, key, chosen).float()
            largest = rounded.amax((0, 2), keepdim=True)
            if largest.isfinite().all():
                return self.maxima_of_marked(rounded >= largest - BFLOAT16_SPACING * largest.abs(), chosen)
        return self._row_maxima(_computable(query), _computable(key), chosen).amax((0, 2)) * self.scale

    def _row_maxima(self, query: Tensor, key: Tensor, heads: Tensor) -> Tensor:
        """The largest product of every row of `heads` in the type of both, [batch, len(heads), queries]."""
        found = query.new_empty(query.shape[:-1])
        queries, keys = query.shape[-2], key.shape[-2]
        most = CHUNK_ROWS
        if query.device.type != "cpu":
            most = min(max(SCORES_TOGETHER // (query.shape[0] * query.shape[1] * keys), 1), CHUNK_ROWS)
        for start in range(0, queries, most):
            rows = slice(start, min(start + most, queries))
            columns = self.mask.columns(rows, keys)
            mask = self.mask.of_block(rows, columns, heads)
            if query.device.type == "cpu":
                # Of several heads at once, parts of queries and keys are copied before they are multiplied.
                _keep_largest_one_by_one(query[:, :, rows], key[:, :, columns], mask, found[:, :, rows])
            else:
                found[:, :, rows] = masked(query[:, :, rows] @ transposed(key[:, :, columns]), mask).amax(-1)
        return found

    @torch.no_grad()
    def maxima_of_rows(self, rows: Tensor, heads: Tensor) -> Tensor:
        """The largest logit of each of `heads` in the `rows` [batch, len(heads), some] that are named for it."""
        return self._scores_of_rows(rows, heads).amax((0, 2, 3)) * self.scale

    @torch.no_grad()
    def maxima_of_marked(self, marked: Tensor, heads: Tensor) -> Tensor:
        """The largest logit of each of `heads` in the rows `marked` [batch, len(heads), queries].

        Minus infinity where none is marked. Other rows may be looked at too: the largest logit of the head bounds it.
        """
        most = int(marked.sum(-1).max())
        if most == 0:
            return self._nothing(heads)
        if most > ROWS_TOGETHER:
            return self._one_by_one(marked, heads)
        scores = self._scores_of_rows(marked.to(torch.uint8).topk(most, -1).indices, heads)
        return scores.amax((2, 3)).masked_fill_(~marked.any(-1), -math.inf).amax(0) * self.scale

    def _scores_of_rows(self, rows: Tensor, heads: Tensor) -> Tensor:
        """Products of `rows` [batch, len(heads), some] with every key, behind the mask."""
        samples = torch.arange(len(rows), device=rows.device)[:, None, None]
        gathered, key = self.query[samples, heads[:, None], rows], self._keys_of(heads)
        scores = _computable(gathered) @ transposed(_computable(key))
        return masked(scores, self.mask.of_rows(rows, heads, key.shape[-2]))

    def _one_by_one(self, marked: Tensor, heads: Tensor) -> Tensor:
        """The same where heads have so many marked rows that padding all to the most of them would cost more."""
        found = self._nothing(heads)
        groups, keys = self.query.shape[1] // self.key.shape[1], self.key.shape[-2]
        for batch, place in true_indices(marked.any(-1)):
            head, rows = int(heads[place]), marked[batch, place].nonzero().squeeze(-1)
            scores = _computable(self.query[batch, head, rows]) @ _computable(self.key[batch, head // groups]).T
            largest = masked(scores, self.mask.of_head(rows, keys, batch, head)).amax()
            found[place] = torch.maximum(found[place], largest * self.scale)
        return found

    def _nothing(self, heads: Tensor) -> Tensor:
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        return torch.full((len(heads),), -math.inf, dtype=dtype, device=self.query.device)

    @property
    def _every_head(self) -> Tensor:
        return torch.arange(self.query.shape[1], device=self.query.device)

    def _of(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Queries of `heads`, and a key for each."""
        query = self.query if len(heads) == self.query.shape[1] else self.query.index_select(1, heads)
        return query, self._keys_of(heads)

    def _keys_of(self, heads: Tensor) -> Tensor:
        count, groups = self.query.shape[1], self.query.shape[1] // self.key.shape[1]
        return self.key if len(heads) == count and groups == 1 else self.key.index_select(1, heads // groups)


def _keep_largest_one_by_one(query: Tensor, key: Tensor, mask: Tensor | None, found: Tensor) -> None:
    """Fill `found` [batch, heads, rows] with the largest product of each row that `mask` leaves.

    What `mask` is says `Mask.of_block`.
    """
    places = product(*map(range, query.shape[:2]))
    if mask is None:
        for place in places:
            torch.amax(query[place] @ key[place].T, -1, out=found[place])
        return
    last = mask.shape[-1]
    each = mask.expand(len(query), query.shape[1], -1, -1)
    if query.dtype != torch.bfloat16:
        for place in places:
            torch.amax(masked(query[place] @ key[place].T, each[place]), -1, out=found[place])
        return
    ceiling = torch.full(mask.shape, math.inf, dtype=query.dtype).masked_fill_(mask, -math.inf).expand_as(each)
    for place in places:
        scores = query[place] @ key[place].T
        # Several times faster than to fill; what is not finite is looked at again in float32.
        torch.minimum(scores[:, -last:], ceiling[place], out=scores[:, -last:])
        torch.amax(scores, -1, out=found[place])


def _computable(tensor: Tensor) -> Tensor:
    """Widen to at least float32: a bfloat16 product rounds a logit of 198 by 0.27."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
