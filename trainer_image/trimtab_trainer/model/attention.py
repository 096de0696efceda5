"""Causal attention that also reports the largest logit of every head.

QK-Clip (Kimi K2, arXiv 2507.20534, section 2.1) acts on the largest input of the softmax: after scaling,
before the softmax, signed, masked positions excluded. Fused kernels do not return it, but many return the
log-sum-exp of every row, an upper bound of it. A head whose largest log-sum-exp is below the threshold therefore cannot
exceed it, and in the other heads only the rows that may hold the maximum are computed again.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab_trainer.max_logits import (
    AttentionTelemetry,
    Logits,
    RowBounds,
    measured_max_logit,
    measured_max_logits,
)
from trimtab_trainer.model.kernels import (
    CUDA_HEAD_MULTIPLE,
    AttentionCase,
    Kernel,
    available_kernels,
    choose_kernel,
    cuda_flash,
    differentiated_reproducibly,
    flex_with_max_scores,
)
from trimtab_trainer.model.kernels import cpu_flash as attention_with_log_sum_exp
from trimtab_trainer.model.visibility import CAUSAL, Visibility
from trimtab_trainer.tensors import without_autocast

_measuring: ContextVar[bool] = ContextVar("measuring", default=True)


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """Output [batch, heads, tokens, value dimension] and the largest logit of each head.

    `max_logit` [heads] is float32 (float64 for float64 inputs) and detached. It is the maximum itself where
    `exact` [heads] is true, otherwise an upper bound.
    """

    output: Tensor
    max_logit: Tensor
    exact: Tensor
    waiting: RowBounds | None = None
    """What the largest logits are to be measured from, where they are not yet."""


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    threshold: float,
    exact: bool,
    visibility: Visibility = CAUSAL,
    sink: Tensor | None = None,
    scale: float | None = None,
    postponed: bool = False,
) -> AttentionResult:
    """Attend causally; all inputs are [batch, heads, tokens, dimension].

    Keys and values may have fewer heads than queries, and values another dimension. `sink` [heads] is a logit that
    every query of a head sees beside its keys and that has no value; it is no part of the largest logit. `scale`
    multiplies the products, by default the root of the inverse dimension.

    The largest logit is exact for every head that exceeds `threshold`, and for every head when `exact`; that changes
    no bit of the heads that exceed it. When `postponed`, it may be left to `measured_together`.
    """
    logits = Logits(
        query.detach(), key.detach(), visibility, 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    )
    kernel = _kernel_for(query, value, visibility, sink)
    if kernel is Kernel.FLEX:
        output, of_rows = flex_with_max_scores(query, key, value, visibility, scale)
        return _all_exact(output, of_rows.amax((0, 2)))
    output, log_sum_exp = _attend(kernel, query, key, value, visibility, sink, scale)
    if not _measuring.get():
        return _unmeasured(output)
    with torch.no_grad():
        if log_sum_exp is None:
            return _all_exact(output, logits.maxima())
        if postponed:
            return replace(_unmeasured(output), waiting=RowBounds(logits, log_sum_exp))
        max_logit, known = measured_max_logit(logits, log_sum_exp, threshold, exact=exact)
        return AttentionResult(output, max_logit, known)


@torch.no_grad()
def measured_together(results: Sequence[AttentionResult], threshold: float, *, exact: bool) -> AttentionTelemetry:
    """The largest logits [layers, heads] of all layers; of those that are measured already as they are.

    On a device the whole forward pass is launched before the host waits for it the first time.
    """
    waiting = [result.waiting for result in results if result.waiting is not None]
    # Attention is outside an autocast by itself; what is left of it here lies within that of the whole forward pass.
    with without_autocast(results[0].output.device.type):
        measured = iter(measured_max_logits(waiting, threshold, exact=exact))
    found = [(one.max_logit, one.exact) if one.waiting is None else next(measured) for one in results]
    return AttentionTelemetry(
        max_logit=torch.stack([max_logit for max_logit, _ in found]), exact=torch.stack([known for _, known in found])
    )


@contextmanager
def without_max_logits() -> Generator[None]:
    """Attention inside reports nothing of its logits: for the second forward pass of activation checkpointing."""
    token = _measuring.set(False)
    try:
        yield
    finally:
        _measuring.reset(token)


def full_product_max_logit(query: Tensor, key: Tensor, visibility: Visibility = CAUSAL) -> Tensor:
    """Return the largest logit [heads], from the whole product in chunks of query rows."""
    return Logits(query, key, visibility, 1 / math.sqrt(query.shape[-1])).maxima()


def _kernel_for(query: Tensor, value: Tensor, visibility: Visibility, sink: Tensor | None) -> Kernel:
    case = AttentionCase(
        device=query.device.type,
        dtype=query.dtype,
        dimension=max(query.shape[-1], value.shape[-1]),
        masked=not visibility.plain,
        sink=sink is not None,
        smaller_dimension=min(query.shape[-1], value.shape[-1]),
    )
    return choose_kernel(case, available_kernels())


def _attend(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    sink: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor | None]:
    """Output, and the log-sum-exp of every row where the kernel returns it."""
    dimension = value.shape[-1]
    mask = None if visibility.plain and sink is None else visibility.additive_mask(query, sink=sink is not None)
    if sink is not None or query.shape[-1] != dimension:
        # Said before anything is padded: kernels would take it from the padded dimension.
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if sink is not None:
            query, key, value = _with_sink(query, key, value, sink / scale)
        query, key, value = _equally_wide(query, key, value)
    if kernel is Kernel.CPU_FLASH:
        output, log_sum_exp = attention_with_log_sum_exp(query, key, value, mask, scale)
    elif kernel is Kernel.CUDA_FLASH:
        output, log_sum_exp = cuda_flash(query, key, value, scale)
    else:
        grouped = query.shape[1] != key.shape[1]
        output, log_sum_exp = (
            F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
            ),
            None,
        )
        differentiated_reproducibly(output)
    return output[..., :dimension], log_sum_exp


def _with_sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add a dimension and a last key that make the product of every query with it the `sink` of its head.

    So the sink gets its gradient from any kernel, and the key it takes may be shared by the heads of a group.
    """
    last = F.pad(key.new_zeros(*key.shape[:2], 1, key.shape[-1]), (0, 1), value=1.0)
    query = torch.cat((query, sink.to(query.dtype).view(1, -1, 1, 1).expand(*query.shape[:-1], 1)), -1)
    return query, torch.cat((F.pad(key, (0, 1)), last), -2), F.pad(value, (0, 0, 0, 1))


def _equally_wide(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad with zeros, which changes no product: the flash kernels want one dimension for all three.

    On an accelerator a multiple of 8, for the others materialise the whole matrix.
    """
    width = max(query.shape[-1], value.shape[-1])
    if query.device.type != "cpu":
        width = -(-width // CUDA_HEAD_MULTIPLE) * CUDA_HEAD_MULTIPLE
    missing = [width - one.shape[-1] for one in (query, key, value)]
    padded = (F.pad(one, (0, by)) if by else one for one, by in zip((query, key, value), missing, strict=True))
    query, key, value = padded
    return query, key, value


def _all_exact(output: Tensor, max_logit: Tensor) -> AttentionResult:
    return AttentionResult(output, max_logit, torch.ones_like(max_logit, dtype=torch.bool))


def _unmeasured(output: Tensor) -> AttentionResult:
    nothing = torch.zeros(output.shape[1], device=output.device)
    return AttentionResult(output, nothing, nothing.bool())
