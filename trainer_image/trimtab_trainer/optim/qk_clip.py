"""QK-Clip (Kimi K2, arXiv 2507.20534, section 2.1).

A head whose largest logit S exceeded its layer's threshold T in the forward pass just done has its weights scaled so
that the same input would now give T: its logits shrink by gamma = T / S. Other heads keep every bit. How gamma is
shared out depends on who else uses a weight:

* multi-head: the root of gamma on the head's query and on its key;
* latent: the root on the content query and the content key, gamma on the rotary query. The rotary key belongs to all
  heads and stays as it is;
* grouped-query: the key belongs to a group of heads, and the paper has no rule. With g the smallest gamma of the group:

    query     gamma on the query, the key stays     exact, touches no other head; all shrinking lands on the query
    balanced  root of g on the key, gamma / root of g on the query
                                                    exact, touches no other head; a query factor may exceed 1
    roots     root of gamma on the query, root of g on the key
                                                    heads beside a hot one shrink, too
    group     root of g on the key and on every query of the group
                                                    the same, more so; what Megatron-LM does
"""

from collections.abc import Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor

from trimtab_trainer.errors import TrainerError
from trimtab_trainer.head_parameters import AttentionHeads, LogitPart
from trimtab_trainer.max_logits import LARGEST_RESOLVED_LOGIT, infinite_beyond_resolution
from trimtab_trainer.optim.config import GroupedQueryRule
from trimtab_trainer.tensors import first_index, integers, sent


class NonFiniteLogitsError(TrainerError):
    """A largest attention logit is NaN or infinite, or as large as only a fault makes it; nothing was changed."""


def require_finite(max_logits: Tensor) -> None:
    """Check the largest logits [layers, heads].

    Raises:
        NonFiniteLogitsError: names the first layer and head that are not finite, or beyond what float32 resolves.
    """
    bad = first_index(~infinite_beyond_resolution(max_logits).isfinite())
    if bad is not None:
        layer, head = bad
        found = max_logits[layer, head].item()
        beyond = f", beyond ±{LARGEST_RESOLVED_LOGIT:.0f}, where a softmax weighs rounding errors"
        why = beyond if isfinite(found) else ""
        raise NonFiniteLogitsError(f"max_logits: {found} at layer {layer}, head {head}{why}; no update was made")


def qk_clip_gamma(max_logits: Tensor, threshold: float | Tensor) -> Tensor:
    """Return T / S where S > T and 1 elsewhere, of the shape of `max_logits`, with which `threshold` broadcasts.

    Not min(1, T / S): that would turn a head whose largest logit is negative into NaN.
    """
    return torch.where(max_logits > threshold, threshold / max_logits, 1.0)


def part_factors(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> Mapping[LogitPart, Tensor]:
    """Return the factors of each part of the logits that is scaled, one for each of its heads; `gamma` is [heads]."""
    if layer.kind == "multiHead":
        return {LogitPart.QUERY: gamma.sqrt(), LogitPart.KEY: gamma.sqrt()}
    if layer.kind == "latent":
        root = gamma.sqrt()
        return {LogitPart.CONTENT_QUERY: root, LogitPart.CONTENT_KEY: root, LogitPart.ROTARY_QUERY: gamma}
    if rule == "query":
        return {LogitPart.QUERY: gamma}
    # Consecutive query heads share a key.
    groups = gamma.view(layer.of(LogitPart.SHARED_KEY)[0].heads, -1)
    key = groups.amin(1).sqrt()
    query = {"balanced": groups / key[:, None], "roots": groups.sqrt(), "group": key[:, None].expand_as(groups)}[rule]
    return {LogitPart.QUERY: query.flatten(), LogitPart.SHARED_KEY: key}


@torch.no_grad()
def scale_heads(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    """Scale a layer's weights and biases in place, head by head, so that its logits shrink by `gamma` [heads]."""
    for part, factors in part_factors(layer, gamma.double(), rule).items():
        for each in layer.of(part):
            blocks = each.parameter.view(len(factors), -1, *each.parameter.shape[1:])
            blocks.mul_(factors.to(blocks.dtype).view(-1, *[1] * (blocks.ndim - 1)))


def qk_clip(
    layers: Sequence[AttentionHeads], max_logits: Tensor, thresholds: Sequence[float], rule: GroupedQueryRule = "query"
) -> Tensor:
    """Clip every layer at its threshold, from `max_logits` [layers, heads]; return gamma [layers, heads]."""
    gamma = layer_gamma(max_logits, thresholds)
    for index in hot_layers(gamma):
        scale_heads(layers[index], gamma[index], rule)
    return gamma


def hot_layers(gamma: Tensor) -> list[int]:
    """Return the layers in which some head is to shrink, from `gamma` [layers, heads]."""
    # One look at all layers: in most steps no head is hot, and then there is nothing else to do.
    return integers((gamma < 1).any(1).nonzero().flatten())


def layer_gamma(max_logits: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return the factor on the logits of every head, [layers, heads]."""
    threshold = sent(torch.tensor(thresholds, dtype=max_logits.dtype), max_logits.device)
    return qk_clip_gamma(max_logits, threshold[:, None])
