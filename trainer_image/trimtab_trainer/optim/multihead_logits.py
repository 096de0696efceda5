"""The largest logits of `torch.nn.MultiheadAttention`, which attends within one function of PyTorch's own."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab_trainer.optim.attention_logits import largest_logits

_SIGNATURE: Final = inspect.signature(F.multi_head_attention_forward)


@torch.no_grad()
def multihead_largest_logits(arguments: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """Return the largest input of the softmax of each head [heads], given what the function was called with.

    Query and key are projected once more: the function keeps them to itself.
    """
    bound = _SIGNATURE.bind(*arguments, **named)
    bound.apply_defaults()
    given: dict[str, Any] = bound.arguments
    query, key = _projected(given)
    return largest_logits(_by_head(query, given), _by_head(key, given), attn_mask=_mask(given, query, key))


def _projected(given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Query [queries, batch, width] and key [keys, batch, width] behind their maps, the appended keys included."""
    width: int = given["embed_dim_to_check"]
    query, key = (one if one.ndim == 3 else one[:, None] for one in (given["query"], given["key"]))
    if given["use_separate_proj_weight"]:
        weights = given["q_proj_weight"], given["k_proj_weight"]
    else:
        weights = given["in_proj_weight"][:width], given["in_proj_weight"][width : 2 * width]
    bias = given["in_proj_bias"]
    biases = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])
    # In the type that the function's own maps compute in under autocast.
    query = F.linear(query, weights[0], biases[0])
    key = F.linear(key, weights[1], biases[1]) if given["static_k"] is None else _from_heads(given["static_k"], query)
    if given["bias_k"] is not None:
        key = torch.cat((key, given["bias_k"].expand(1, key.shape[1], width)))
    if given["add_zero_attn"]:
        key = torch.cat((key, key.new_zeros(1, *key.shape[1:])))
    return query, key


def _from_heads(static: Tensor, query: Tensor) -> Tensor:
    """Keys [batch x heads, keys, dimension] that are given as they are, as [keys, batch, width]."""
    return static.transpose(0, 1).reshape(static.shape[1], query.shape[1], query.shape[2])


def _by_head(tensor: Tensor, given: Mapping[str, Any]) -> Tensor:
    """[tokens, batch, width] as [batch, heads, tokens, dimension]."""
    return tensor.view(*tensor.shape[:-1], given["num_heads"], -1).permute(1, 2, 0, 3)


def _mask(given: Mapping[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    """Both masks of the call as an additive one, with nothing hidden of the appended keys."""
    masks: list[Tensor] = []
    if given["attn_mask"] is not None:
        mask = _additive(given["attn_mask"], query)
        # [batch x heads, queries, keys], or one for all.
        masks.append(mask.view(query.shape[1], -1, *mask.shape[1:]) if mask.ndim == 3 else mask)
    if given["key_padding_mask"] is not None:
        padding = _additive(given["key_padding_mask"], query)
        masks.append(padding.view(-1, 1, 1, padding.shape[-1]))
    if not masks:
        return None
    total = masks[0] if len(masks) == 1 else masks[0] + masks[1]
    return F.pad(total, (0, key.shape[0] - total.shape[-1]))


def _additive(mask: Tensor, query: Tensor) -> Tensor:
    """A mask whose true elements are hidden as one that is added."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(mask, -math.inf)
