"""MuonClip, slow and obvious, in float64: what the fast implementation is tested against.

One function per line of Algorithm 1 in Kimi K2 (arXiv 2507.20534); AdamW after arXiv 1711.05101.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab_trainer.optim.coefficients import Polynomials
from trimtab_trainer.optim.config import MuonClipConfig
from trimtab_trainer.tensors import singular_value_decomposition


@dataclass(frozen=True)
class MatrixState:
    """A hidden matrix [rows, columns] and its momentum."""

    weight: Tensor
    momentum: Tensor


@dataclass(frozen=True)
class OtherState:
    """Any other parameter and its two moments."""

    weight: Tensor
    first: Tensor
    second: Tensor


def orthogonalise(matrix: Tensor, polynomials: Polynomials) -> Tensor:
    """Apply the polynomials to the singular values themselves."""
    left, values, right = singular_value_decomposition(matrix)
    values = values / max(float(values.square().sum().sqrt()), 1e-7)
    for a, b, c in polynomials:
        values = a * values + b * values**3 + c * values**5
    return left @ torch.diag(values) @ right


def muon_step(
    state: MatrixState,
    gradient: Tensor,
    lr: float,
    config: MuonClipConfig,
    polynomials: Polynomials,
    scale: float = 1.0,
) -> MatrixState:
    """M = mu M + G;  O = NS(M) 0.2 sqrt(max(n, m));  W = W - lr (scale O + decay W)."""
    momentum = config.momentum * state.momentum + gradient
    direction = gradient + config.momentum * momentum if config.nesterov else momentum
    update = orthogonalise(direction, polynomials) * 0.2 * math.sqrt(max(gradient.shape))
    weight = state.weight - lr * (scale * update + config.decay * state.weight)
    return MatrixState(weight, momentum)


def adamw_step(
    state: OtherState, gradient: Tensor, lr: float, count: int, config: MuonClipConfig, scale: float = 1.0
) -> OtherState:
    """Bias-corrected moments; decoupled decay for matrices only, at the rate before `scale`."""
    first = config.beta1 * state.first + (1 - config.beta1) * gradient
    second = config.beta2 * state.second + (1 - config.beta2) * gradient**2
    mean = first / (1 - config.beta1**count)
    variance = second / (1 - config.beta2**count)
    decay = config.decay if gradient.ndim >= 2 else 0.0
    update = mean / (variance.sqrt() + config.epsilon)
    weight = state.weight - lr * (scale * update + decay * state.weight)
    return OtherState(weight, first, second)


def largest_logits(query: Tensor, key: Tensor) -> Tensor:
    """Largest causal logit of each head from [batch, heads, tokens, head dimension]."""
    tokens, dimension = query.shape[-2:]
    scores = query.double() @ key.double().transpose(-2, -1) / math.sqrt(dimension)
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return scores.masked_fill(~visible, -math.inf).amax((0, 2, 3))


def clip_head(weight: Tensor, head: int, heads: int, largest: float, threshold: float) -> Tensor:
    """If S > tau: gamma = tau / S, and this head's rows of the query or key weight (or bias) times sqrt(gamma)."""
    if largest <= threshold:
        return weight
    rows = len(weight) // heads
    factors = torch.ones_like(weight)
    factors[head * rows : (head + 1) * rows] = math.sqrt(threshold / largest)
    return weight * factors
