"""The small layers: normalisation, linear maps and embeddings without random numbers of their own, rotary positions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a gain, over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` [..., width]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class Linear(nn.Linear):
    """A linear layer that leaves its initialisation to the model, and so the global generator alone."""

    def reset_parameters(self) -> None:
        """Draw nothing: the model fills the parameters from its own generator."""


class Embedding(nn.Embedding):
    """An embedding that leaves its initialisation to the model, and so the global generator alone."""

    def reset_parameters(self) -> None:
        """Draw nothing: the model fills the parameters from its own generator."""


def rotary_tables(dimension: int, tokens: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [tokens, dimension], each half repeated (RoFormer, arXiv 2104.09864)."""
    half = dimension // 2
    frequencies = base ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies).repeat(1, 2)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of `x` [batch, heads, tokens, dimension] by its position."""
    first, second = x.chunk(2, dim=-1)
    rotated = x * cosine + torch.cat((-second, first), dim=-1) * sine
    return rotated.to(x.dtype)
