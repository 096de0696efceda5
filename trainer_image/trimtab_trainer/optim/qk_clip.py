"""QK-Clip for dense multi-head attention (Kimi K2, arXiv 2507.20534, section 2.1).

A head whose largest logit S exceeded the threshold T in the forward pass just done has its query and key
weights scaled by sqrt(T / S) each, so that the same input would now give T. Other heads keep every bit.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trimtab_trainer.errors import TrainerError
from trimtab_trainer.tensors import first_index


class NonFiniteLogitsError(TrainerError):
    """A largest attention logit is NaN or infinite; nothing was changed."""


def require_finite(max_logits: Tensor) -> None:
    """Check the largest logits [layers, heads].

    Raises:
        NonFiniteLogitsError: names the first layer and head that are not finite.
    """
    bad = first_index(~max_logits.isfinite())
    if bad is not None:
        layer, head = bad
        raise NonFiniteLogitsError(
            f"max_logits: {max_logits[layer, head].item()} at layer {layer}, head {head}; no update was made"
        )


def qk_clip_gamma(max_logits: Tensor, threshold: float) -> Tensor:
    """Return T / S where S > T and 1 elsewhere, of the shape of `max_logits`.

    Not min(1, T / S): that would turn a head whose largest logit is negative into NaN.
    """
    return torch.where(max_logits > threshold, threshold / max_logits, 1.0)


@torch.no_grad()
def scale_query_key(query: Iterable[Tensor], key: Iterable[Tensor], gamma: Tensor) -> None:
    """Scale in place, head by head, what makes the queries and keys of one layer.

    `query` and `key` hold weights [heads * head dimension, width] and biases [heads * head dimension];
    `gamma` is [heads].
    """
    for parameter in (*query, *key):
        root = gamma.to(parameter.dtype).sqrt()
        parameter.view(len(gamma), -1).mul_(root[:, None])


def qk_clip(
    layers: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], max_logits: Tensor, threshold: float
) -> Tensor:
    """Clip every layer, given as (query parameters, key parameters); return gamma [layers, heads]."""
    gamma = qk_clip_gamma(max_logits, threshold)
    for (query, key), factors in zip(layers, gamma, strict=True):
        scale_query_key(query, key, factors)
    return gamma
