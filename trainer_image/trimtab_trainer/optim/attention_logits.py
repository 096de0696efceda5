"""The largest logit of every head from the queries and keys of `scaled_dot_product_attention`, in chunks."""

import math
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.tensors import transposed

CHUNK_ROWS: Final = 128
"""Query rows per product: the scores of all rows are never in memory at once."""


@torch.no_grad()
def largest_logits(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return the largest input of the softmax of each head [heads], in float32 at least.

    `query` is [batch, heads, queries, dimension] and `key` [batch, key heads, keys, dimension]; mask, causality and
    scale are those of `scaled_dot_product_attention`. A head that sees nothing at all gets the lowest finite number.

    Raises:
        ValueError: another number of dimensions.
    """
    if query.ndim != 4 or key.ndim != 4:
        raise ValueError(
            f"query, key: {query.ndim} and {key.ndim} dimensions must be [batch, heads, tokens, dimension]"
        )
    kind = torch.promote_types(query.dtype, torch.float32)
    query = query.detach().to(kind) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    key = transposed(key.detach().to(kind).repeat_interleave(query.shape[1] // key.shape[1], dim=1))
    maxima: list[Tensor] = []
    for start in range(0, query.shape[2], CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        # The caller's autocast would round the product to its own type again.
        with torch.autocast(query.device.type, enabled=False):
            scores = query[:, :, rows] @ key
        if is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(start + 1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:
            scores = _masked(scores, attn_mask[..., rows, :] if attn_mask.shape[-2] > 1 else attn_mask)
        maxima.append(scores.amax((0, 2, 3)))
    return torch.stack(maxima).amax(0).clamp(min=torch.finfo(kind).min)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
