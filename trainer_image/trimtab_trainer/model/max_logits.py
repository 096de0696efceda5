"""The largest logit of each head, from queries and keys: from the whole product, or from some rows of it.

Where products in bfloat16 are several times faster than in float32, the whole product is taken in bfloat16 first. How
far that can be off is known, so only the few rows that may hold the maximum are computed again, in float32: the result
is as exact as that of the float32 product, at a fraction of its cost.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.model.visibility import Visibility
from trimtab_trainer.tensors import transposed, true_indices

CHUNK_ROWS: Final = 64
"""Query rows per product: the scores of one chunk stay in cache."""

SHORTEST_COARSE: Final = 256
"""Below so many tokens the float32 product is cheap, and looking for rows costs more than it saves."""

COARSE_ERROR: Final = 2.0**-6
"""Bound on the error of a bfloat16 product, relative to the product of the norms of its two vectors: each element is
rounded by at most 2^-8, which makes 2^-7 for a pair (Cauchy-Schwarz), and the sum by 2^-8 again; 2^-8 is left over."""

ROWS_TOGETHER: Final = 32
"""Up to so many rows of each head are computed in one product for all heads, padded to the most that one has."""

MANY_ROWS: Final = 0.1
"""Above this share of rows that may hold the maximum, the float32 product of all rows is cheaper."""


@dataclass(frozen=True, slots=True)
class Logits:
    """The logits of one attention layer, not computed yet.

    `query` is [batch, heads, tokens, dimension]; `key` may have fewer heads, each for as many consecutive query heads.
    All results are detached and at least float32.
    """

    query: Tensor
    key: Tensor
    visibility: Visibility
    scale: float

    @torch.no_grad()
    def maxima(self, heads: Tensor | None = None) -> Tensor:
        """The largest logit of `heads` (all when None).

        Minus infinity where no query of a head sees any key.
        """
        chosen = self._every_head if heads is None else heads
        if self._coarse_first:
            return self._from_coarse(chosen)
        return self._from_all_rows(chosen)

    @property
    def _coarse_first(self) -> bool:
        query = self.query
        return (
            query.device.type == "cpu"
            and query.dtype == torch.float32
            and query.shape[-2] >= SHORTEST_COARSE
            and half_products_are_fast()
        )

    def _from_all_rows(self, heads: Tensor) -> Tensor:
        query, key = self._of(heads)
        query, key = _computable(query), _computable(key)
        return torch.stack([scores.amax((0, 2, 3)) for scores in self._chunks(query, key)]).amax(0) * self.scale

    def _from_coarse(self, heads: Tensor) -> Tensor:
        query, key = self._of(heads)
        norms = _norms(query) * _norms(key).amax(-1, keepdim=True) * COARSE_ERROR
        coarse = torch.cat([scores.amax(-1) for scores in self._chunks(query.bfloat16(), key.bfloat16())], -1).float()
        candidates = coarse + norms >= (coarse - norms).amax((0, 2), keepdim=True)
        # What is not finite marks no rows, or all of them.
        rare = (
            candidates.any(-1).any(0) & (candidates.float().mean((0, 2)) <= MANY_ROWS) & norms.isfinite().all(-1).all(0)
        )
        maxima = self.maxima_of_rows(candidates & rare[:, None], heads)
        if not rare.all():
            maxima[~rare] = self._from_all_rows(heads[~rare])
        return maxima

    def _chunks(self, query: Tensor, key: Tensor) -> Generator[Tensor]:
        """The products of some rows after the other, minus infinity where a key is not seen."""
        tokens = query.shape[-2]
        for start in range(0, tokens, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, tokens)
            first = self.visibility.first_column(start)
            scores = query[:, :, start:stop] @ transposed(key[:, :, first:stop])
            self._hide(scores, start, stop, first)
            yield scores

    @torch.no_grad()
    def maxima_of_rows(self, marked: Tensor, heads: Tensor | None = None) -> Tensor:
        """The largest logit of each of `heads` (all when None) in the rows `marked` [batch, len(heads), tokens].

        Minus infinity where none is marked. Other rows may be looked at too: the largest logit of the head bounds it.
        """
        chosen = self._every_head if heads is None else heads
        most = int(marked.sum(-1).max())
        if most == 0:
            return self._nothing(chosen)
        if most > ROWS_TOGETHER:
            return self._one_by_one(marked, chosen)
        query, key = self._of(chosen)
        rows = marked.to(torch.uint8).topk(most, -1).indices
        gathered = query.gather(2, rows[..., None].expand(*rows.shape, query.shape[-1]))
        scores = _computable(gathered) @ transposed(_computable(key))
        scores.masked_fill_(~self.visibility.seen_by(rows, query.shape[-2]), -math.inf)
        found = scores.amax((2, 3)).masked_fill_(~marked.any(-1), -math.inf)
        return found.amax(0) * self.scale

    def _one_by_one(self, marked: Tensor, heads: Tensor) -> Tensor:
        """The same where heads have so many marked rows that padding all to the most of them would cost more."""
        found = self._nothing(heads)
        groups = self.query.shape[1] // self.key.shape[1]
        columns = torch.arange(self.query.shape[-2], device=self.query.device)
        for batch, place in true_indices(marked.any(-1)):
            head, rows = int(heads[place]), marked[batch, place].nonzero().squeeze(-1)
            scores = _computable(self.query[batch, head, rows]) @ _computable(self.key[batch, head // groups]).T
            scores.masked_fill_(~self.visibility.sees(rows, columns, batch)[0], -math.inf)
            found[place] = torch.maximum(found[place], scores.amax() * self.scale)
        return found

    def _nothing(self, heads: Tensor) -> Tensor:
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        return torch.full((len(heads),), -math.inf, dtype=dtype, device=self.query.device)

    @property
    def _every_head(self) -> Tensor:
        return torch.arange(self.query.shape[1], device=self.query.device)

    def _of(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Queries of `heads`, and a key for each."""
        count = self.query.shape[1]
        groups = count // self.key.shape[1]
        query = self.query if len(heads) == count else self.query[:, heads]
        return query, self.key if len(heads) == count and groups == 1 else self.key[:, heads // groups]

    def _hide(self, scores: Tensor, start: int, stop: int, first: int) -> None:
        """Put minus infinity where the queries `start` to `stop` do not see the keys from `first` on."""
        device = scores.device
        if self.visibility.plain:
            # Only the last square of a chunk reaches into the future.
            future = torch.ones(stop - start, stop - start, dtype=torch.bool, device=device).triu(1)
            scores[..., start:stop].masked_fill_(future, -math.inf)
        else:
            rows, columns = torch.arange(start, stop, device=device), torch.arange(first, stop, device=device)
            scores.masked_fill_(~self.visibility.sees(rows, columns)[:, None], -math.inf)


@cache
def half_products_are_fast() -> bool:
    """Whether this processor multiplies bfloat16 numbers in hardware."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _norms(vectors: Tensor) -> Tensor:
    """Euclidean norms over the last dimension."""
    return vectors.square().sum(-1).sqrt()


def _computable(tensor: Tensor) -> Tensor:
    """Widen to at least float32: a bfloat16 product rounds a logit of 198 by 0.27."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
