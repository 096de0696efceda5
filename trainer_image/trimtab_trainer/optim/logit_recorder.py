"""The largest logit of every head of any model that attends with `scaled_dot_product_attention`."""

import math
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trimtab_trainer.tensors import transposed

CHUNK_ROWS: Final = 128
"""Query rows per product: the scores of all rows are never in memory at once."""

_POSITIONAL: Final = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class LogitRecorder(TorchFunctionMode):
    """While entered, every call of `scaled_dot_product_attention` leaves its largest logits here.

    Enter it around the forward pass alone: activation checkpointing attends again in the backward pass. Calls are
    taken for the layers in turn, so that the forward passes of several micro-batches end in one maximum for each head.
    The attention itself is left as it is. Attention of another kind, and that within functions of PyTorch's own such as
    `multi_head_attention_forward`, is not seen: call `observe` for it.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self._layers = layers
        self._maxima: list[Tensor] = []
        self._calls = 0

    def max_logits(self) -> Tensor:
        """Return the largest logits [layers, heads] since the last call, and begin anew.

        Raises:
            ValueError: attention was not computed a whole number of times in every layer.
        """
        if self._calls == 0 or self._calls % self._layers:
            raise ValueError(
                f"layers: {self._layers} layers attended {self._calls} times in all; each must do so as often as the "
                "others, by scaled_dot_product_attention or with a call of observe"
            )
        found, self._maxima, self._calls = torch.stack(self._maxima), [], 0
        return found

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        """Note the attention of the next layer; see `largest_logits`."""
        layer = self._calls % self._layers
        maximum = largest_logits(query, key, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
        if self._calls < self._layers:
            self._maxima.append(maximum)
        else:
            self._maxima[layer] = torch.maximum(self._maxima[layer], maximum)
        self._calls += 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass everything on, and note attention."""
        given = kwargs or {}
        if func is F.scaled_dot_product_attention:
            named = (
                dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | given
            )
            self.observe(
                cast("Tensor", named["query"]),
                cast("Tensor", named["key"]),
                attn_mask=named.get("attn_mask"),
                is_causal=bool(named.get("is_causal", False)),
                scale=named.get("scale"),
            )
        return func(*args, **given)


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
