"""The logits of a call of `scaled_dot_product_attention`, and the largest one of every head."""

import math

import torch
from torch import Tensor

from trimtab_trainer.max_logits import AttentionMask, Logits
from trimtab_trainer.tensors import as_autocast_casts, without_autocast


@torch.no_grad()
def attention_logits(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Logits:
    """Return the inputs of the softmax of such a call, not computed yet.

    `query` is [batch, heads, queries, dimension] and `key` [batch, key heads, keys, dimension]; mask, causality and
    scale are those of `scaled_dot_product_attention`.

    Raises:
        ValueError: another number of dimensions.
    """
    if query.ndim != 4 or key.ndim != 4:
        raise ValueError(
            f"query, key: {query.ndim} and {key.ndim} dimensions must be [batch, heads, tokens, dimension]"
        )
    if len(query) != len(key) or query.shape[1] < key.shape[1]:
        samples, heads = max(len(query), len(key)), max(query.shape[1], key.shape[1])
        query = query.expand(samples, heads if query.shape[1] == 1 else -1, -1, -1)
        key = key.expand(samples, -1, -1, -1)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = AttentionMask.of_call(attn_mask, query.shape[-2], key.shape[-2], causal=is_causal)
    if mask.adds or factor <= 0:
        # Both change which product is the largest one, so that it can be scaled no later.
        query, factor = query.to(torch.promote_types(query.dtype, torch.float32)) * factor, 1.0
    return Logits(query, key, mask, factor)


def largest_logits(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return the largest input of the softmax of each head [heads], in float32 at least, from the whole product.

    Takes what `attention_logits` takes; queries and keys are rounded as autocast rounds them for such a call. A head
    that sees nothing at all gets the lowest finite number.

    Raises:
        ValueError: another number of dimensions.
    """
    query, key = (as_autocast_casts(each) for each in (query, key))
    if (nothing := largest_of_nothing(query, key)) is not None:
        return nothing
    logits = attention_logits(query, key, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    with without_autocast(query.device.type):
        return finite_where_nothing_is_seen(logits.maxima())


def largest_of_nothing(query: Tensor, key: Tensor) -> Tensor | None:
    """Return the lowest finite number for each head [heads] where there are no samples, queries or keys; else None."""
    if query.numel() and key.numel():
        return None
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.full((query.shape[-3],), torch.finfo(dtype).min, dtype=dtype, device=query.device)


def finite_where_nothing_is_seen(max_logit: Tensor) -> Tensor:
    """Return `max_logit` with the lowest finite number in place of minus infinity: such a head is not broken."""
    return max_logit.clamp(min=torch.finfo(max_logit.dtype).min)
