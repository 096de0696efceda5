"""The log-sum-exp gate: which heads can have a logit above a threshold, and the largest logit of those.

A row's log-sum-exp is an upper bound of its logits. A head whose largest log-sum-exp is below the threshold therefore
cannot exceed it, and in the other heads only the rows that may hold the maximum are computed again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.max_logits.logits import Logits
from trimtab_trainer.tensors import floats, sent, stretches

GATE_MARGIN: Final = 1e-4
"""A log-sum-exp in few bits can lie just below the true maximum: by this share of it, or so much below 1."""

FULL_PRODUCT_FRACTION: Final = 0.1
"""Above this share of a head's rows, one product for all rows is cheaper than gathering the rows."""

FIRST_ROWS: Final = 8
"""Rows of a head with the largest log-sum-exp, of each sample: most often one of them holds the maximum."""


@dataclass(frozen=True, slots=True)
class RowBounds:
    """What a kernel leaves of a layer: its logits, not computed yet, and an upper bound of those of every row.

    `log_sum_exp` [batch, heads, queries] is that of every row, a sink's logit included where there is one.
    """

    logits: Logits
    log_sum_exp: Tensor


def measured_max_logits(layers: Sequence[RowBounds], threshold: float, *, exact: bool) -> list[tuple[Tensor, Tensor]]:
    """Return for each layer the largest logit [heads] or an upper bound, and where it is the largest logit itself.

    That is so for heads that can be above `threshold`, and when `exact` for all. The numbers of the heads above it have
    the same bits either way: a step that is looked at closely must clip by the same numbers as any other. However many
    layers there are, a device is waited for once, and again only for layers with such a head.
    """
    seen = [_without_blind_rows(layer) for layer in layers]
    largest = [layer.log_sum_exp.amax((0, 2)) for layer in seen]
    bounds = [[_bound(number) for number in numbers] for numbers in _read_together(largest)]
    is_open = [_opened(each, threshold) for each in bounds]
    there = _written_together((*bounds, *is_open), (*largest, *largest))
    found, known = there[: len(seen)], [marks.bool() for marks in there[len(seen) :]]
    return [_measured(*each, exact=exact) for each in zip(seen, bounds, is_open, found, known, strict=True)]


def measured_max_logit(logits: Logits, log_sum_exp: Tensor, threshold: float, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Return the same of one layer."""
    return measured_max_logits([RowBounds(logits, log_sum_exp)], threshold, exact=exact)[0]


def _read_together(largest: Sequence[Tensor]) -> list[list[float]]:
    """The numbers of all layers; operators on tensors of this size cost more than they compute."""
    if not largest or largest[0].device.type == "cpu":
        return [floats(one) for one in largest]
    numbers = iter(floats(torch.cat([one.to(largest[0].device) for one in largest])))
    return [[next(numbers) for _ in range(len(one))] for one in largest]


def _written_together(rows: Sequence[Sequence[float]], like: Sequence[Tensor]) -> list[Tensor]:
    """Each of `rows` as a tensor of the type and the device of one of `like`, sent there at once."""
    if not like or like[0].device.type == "cpu":
        return [one.new_tensor(row) for row, one in zip(rows, like, strict=True)]
    kind = reduce(torch.promote_types, {one.dtype for one in like})
    together = sent(torch.tensor([number for row in rows for number in row], dtype=kind), like[0].device)
    return [part.to(one) for part, one in zip(stretches(together, [len(row) for row in rows]), like, strict=True)]


def _without_blind_rows(layer: RowBounds) -> RowBounds:
    """Kernels return 0 for a row that sees nothing."""
    log_sum_exp = layer.log_sum_exp
    blind = layer.logits.mask.blind(log_sum_exp.shape[-1], log_sum_exp.device)
    return layer if blind is None else replace(layer, log_sum_exp=log_sum_exp.masked_fill(blind, -math.inf))


def _measured(
    layer: RowBounds, bounds: Sequence[float], is_open: Sequence[bool], found: Tensor, known: Tensor, *, exact: bool
) -> tuple[Tensor, Tensor]:
    """`found` are the `bounds`, and `known` is `is_open`, where the layer's tensors are."""
    max_logit = _gated(layer, found, is_open)
    if exact and not all(is_open):
        every = _gated(layer, found, _opened(bounds, -math.inf))
        return torch.where(known, max_logit, every), torch.ones_like(known)
    return max_logit, known


def _opened(bounds: Sequence[float], threshold: float) -> list[bool]:
    return [threshold < bound < math.inf for bound in bounds]


def _gated(layer: RowBounds, found: Tensor, is_open: Sequence[bool]) -> Tensor:
    """The largest logit of each head that is open, else what was found, its bound."""
    if not any(is_open):
        return found
    heads = torch.tensor([head for head, opened in enumerate(is_open) if opened], device=found.device)
    opened = layer.log_sum_exp if all(is_open) else layer.log_sum_exp.index_select(1, heads)
    return found.index_copy(0, heads, _maxima(layer.logits, heads, opened).to(found.dtype))


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
