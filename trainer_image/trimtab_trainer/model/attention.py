"""Causal attention that also reports the largest logit of every head.

QK-Clip (Kimi K2, arXiv 2507.20534, section 2.1) acts on the largest input of the softmax: after scaling,
before the softmax, signed, masked positions excluded. Fused kernels do not return it, but on the CPU they
return the log-sum-exp of every row, which brackets it: with n visible keys,
`lse - ln(n) <= max <= lse`. A head whose largest log-sum-exp is below the threshold therefore cannot
exceed it, and in the other heads only the rows that may hold the maximum are computed again.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab_trainer.tensors import transposed, true_indices

GATE_MARGIN: Final = 1e-4
"""A bfloat16 log-sum-exp can lie just below the true maximum, so the gate opens a little early."""

FULL_PRODUCT_FRACTION: Final = 0.1
"""Above this share of rows, one product for all rows is cheaper than gathering the rows."""

CHUNK_ROWS: Final = 64
"""Query rows per product: the scores of one chunk stay in cache."""

LARGEST_RESOLVED_LOGIT: Final = 2.0**24
"""Above it float32 numbers lie more than 1 apart, so a softmax of such logits weighs rounding errors."""

_KERNEL_SCHEMA: Final = (
    "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, "
    "float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> "
    "(Tensor output, Tensor logsumexp)"
)


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """Output [batch, heads, tokens, head dimension] and the largest logit of each head.

    `max_logit` [heads] is float32 (float64 for float64 inputs) and detached. It is the maximum itself where
    `exact` [heads] is true, otherwise an upper bound.
    """

    output: Tensor
    max_logit: Tensor
    exact: Tensor


def causal_attention(query: Tensor, key: Tensor, value: Tensor, *, threshold: float, exact: bool) -> AttentionResult:
    """Attend causally; all inputs are [batch, heads, tokens, head dimension].

    The largest logit is exact for every head that exceeds `threshold`, and for every head when `exact`.
    """
    if query.device.type != "cpu" or not kernel_returns_log_sum_exp():
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return _all_exact(output, full_product_max_logit(query, key))
    output, log_sum_exp = attention_with_log_sum_exp(query, key, value)
    if exact:
        return _all_exact(output, full_product_max_logit(query, key))
    with torch.no_grad():
        return _gated(output, query, key, log_sum_exp, threshold)


def infinite_beyond_resolution(max_logit: Tensor) -> Tensor:
    """Return `max_logit` with infinities where float32 cannot resolve the logits any more.

    A flipped exponent bit in a query weight gives logits of 1e36 beside a finite loss; whether the gradient is
    finite then depends on how the kernel rounds. No healthy head comes near the limit.
    """
    return torch.where(max_logit.abs() > LARGEST_RESOLVED_LOGIT, max_logit * math.inf, max_logit)


def kernel_returns_log_sum_exp() -> bool:
    """Whether this PyTorch has the private CPU kernel with the signature this module was written for."""
    operation = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    return operation is not None and str(operation.default._schema) == _KERNEL_SCHEMA  # noqa: SLF001


def attention_with_log_sum_exp(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the causal attention output and the log-sum-exp [batch, heads, tokens] of every row."""
    output, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        query, key, value, 0.0, True
    )
    return output, log_sum_exp


@torch.no_grad()
def full_product_max_logit(query: Tensor, key: Tensor) -> Tensor:
    """Return the largest causal logit [heads], from the whole product in chunks of query rows."""
    query, key = _computable(query), _computable(key)
    tokens = query.shape[-2]
    future = torch.ones(CHUNK_ROWS, CHUNK_ROWS, dtype=torch.bool, device=query.device).triu(1)
    maxima: list[Tensor] = []
    for start in range(0, tokens, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, tokens)
        scores = query[:, :, start:stop] @ transposed(key[:, :, :stop])
        rows = stop - start
        scores[..., start:stop].masked_fill_(future[:rows, :rows], -math.inf)
        maxima.append(scores.amax((0, 2, 3)))
    return torch.stack(maxima).amax(0) * _scale(query)


def _gated(output: Tensor, query: Tensor, key: Tensor, log_sum_exp: Tensor, threshold: float) -> AttentionResult:
    bound = log_sum_exp.amax((0, 2))
    # A non-finite bound stays as it is: the caller's finite gate must see it.
    is_open = (bound > threshold * (1 - GATE_MARGIN)) & bound.isfinite()
    if not is_open.any():
        return AttentionResult(output, bound, is_open)
    candidates = _rows_that_may_hold_the_maximum(log_sum_exp) & is_open[None, :, None]
    if candidates.count_nonzero() > FULL_PRODUCT_FRACTION * candidates.numel():
        return _all_exact(output, full_product_max_logit(query, key))
    max_logit = torch.where(is_open, -math.inf, bound)
    _raise_to_row_maxima(max_logit, query, key, candidates)
    return AttentionResult(output, max_logit, is_open)


def _rows_that_may_hold_the_maximum(log_sum_exp: Tensor) -> Tensor:
    """Mark the rows whose upper bound reaches the best lower bound of their head."""
    visible = torch.arange(1, log_sum_exp.shape[-1] + 1, dtype=log_sum_exp.dtype, device=log_sum_exp.device)
    lower = (log_sum_exp - visible.log()).amax((0, 2))
    slack = GATE_MARGIN * lower.abs().clamp(min=1)
    return log_sum_exp >= (lower - slack)[None, :, None]


def _raise_to_row_maxima(max_logit: Tensor, query: Tensor, key: Tensor, rows: Tensor) -> None:
    """Raise `max_logit` [heads] in place to the largest logit of the marked `rows`."""
    tokens = query.shape[-2]
    positions = torch.arange(tokens, device=query.device)
    for batch, head in true_indices(rows.any(-1)):
        selected = rows[batch, head].nonzero().squeeze(-1)
        scores = _computable(query[batch, head, selected]) @ _computable(key[batch, head]).T
        scores.masked_fill_(positions > selected[:, None], -math.inf)
        max_logit[head] = torch.maximum(max_logit[head], scores.amax() * _scale(query))


def _all_exact(output: Tensor, max_logit: Tensor) -> AttentionResult:
    return AttentionResult(output, max_logit, torch.ones_like(max_logit, dtype=torch.bool))


def _computable(tensor: Tensor) -> Tensor:
    """Widen to at least float32: a bfloat16 product rounds a logit of 198 by 0.27."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _scale(query: Tensor) -> float:
    return 1 / math.sqrt(query.shape[-1])
