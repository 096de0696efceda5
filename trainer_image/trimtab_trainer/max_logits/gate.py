"""The log-sum-exp gate: which heads can have a logit above a threshold, and the largest logit of those.

A row's log-sum-exp is an upper bound of its logits. A head whose largest log-sum-exp is below the threshold therefore
cannot exceed it, and in the other heads only the rows that may hold the maximum are computed again.
"""

import math
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.max_logits.logits import Logits
from trimtab_trainer.tensors import floats

GATE_MARGIN: Final = 1e-4
"""A log-sum-exp in few bits can lie just below the true maximum: by this share of it, or so much below 1."""

FULL_PRODUCT_FRACTION: Final = 0.1
"""Above this share of a head's rows, one product for all rows is cheaper than gathering the rows."""

FIRST_ROWS: Final = 8
"""Rows of a head with the largest log-sum-exp, of each sample: most often one of them holds the maximum."""


def measured_max_logit(logits: Logits, log_sum_exp: Tensor, threshold: float, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Return `gated_max_logit`; when `exact`, that of heads at or below the threshold is the largest logit itself, too.

    The numbers of the heads above it have the same bits either way: a step that is looked at closely must clip by the
    same numbers as any other.
    """
    max_logit, known = gated_max_logit(logits, log_sum_exp, threshold)
    if not exact or known.all():
        return max_logit, known
    every, _ = gated_max_logit(logits, log_sum_exp, -math.inf)
    return torch.where(known, max_logit, every), torch.ones_like(known)


def gated_max_logit(logits: Logits, log_sum_exp: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the largest logit [heads] or an upper bound, and where it is the largest logit itself.

    `log_sum_exp` [batch, heads, queries] is that of every row, a sink's logit included where there is one.
    """
    if (blind := logits.mask.blind(log_sum_exp.shape[-1], log_sum_exp.device)) is not None:
        # Kernels return 0 for a row that sees nothing.
        log_sum_exp = log_sum_exp.masked_fill(blind, -math.inf)
    # A few numbers: operators on tensors of this size cost more than they compute.
    bounds = [_bound(largest) for largest in floats(log_sum_exp.amax((0, 2)))]
    is_open = [threshold < bound < math.inf for bound in bounds]
    found, known = log_sum_exp.new_tensor(bounds), torch.tensor(is_open, device=log_sum_exp.device)
    if not any(is_open):
        return found, known
    heads = known.nonzero().squeeze(-1)
    opened = log_sum_exp if all(is_open) else log_sum_exp.index_select(1, heads)
    return found.index_copy(0, heads, _maxima(logits, heads, opened).to(found.dtype)), known


def _bound(log_sum_exp: float) -> float:
    """What no logit exceeds; what is not finite stays as it is, for the caller's finite gate must see it."""
    return log_sum_exp + _margin(log_sum_exp) if math.isfinite(log_sum_exp) else log_sum_exp


def _margin(number: float) -> float:
    return GATE_MARGIN * max(abs(number), 1.0)


def _maxima(logits: Logits, heads: Tensor, log_sum_exp: Tensor) -> Tensor:
    """The largest logit of `heads`, given their `log_sum_exp` [batch, len(heads), queries]."""
    bounds, rows = log_sum_exp.topk(min(FIRST_ROWS, log_sum_exp.shape[-1]), -1)
    attained = logits.maxima_of_rows(rows, heads)
    lowest = [one - _margin(one) for one in floats(attained)]
    is_unsure = [left >= low for left, low in zip(floats(bounds[..., -1].amax(0)), lowest, strict=True)]
    if rows.shape[-1] == log_sum_exp.shape[-1] or not any(is_unsure):
        return attained
    lower, unsure = attained.new_tensor(lowest), torch.tensor(is_unsure, device=attained.device)
    candidates = (log_sum_exp >= lower[None, :, None]) & unsure[None, :, None]
    wide = candidates.sum((0, 2)) > FULL_PRODUCT_FRACTION * candidates.shape[0] * candidates.shape[2]
    few = unsure & ~wide
    if wide.any():
        attained[wide] = logits.maxima(heads[wide])
    if few.any():
        attained[few] = logits.maxima_of_marked(candidates[:, few], heads[few])
    return attained
