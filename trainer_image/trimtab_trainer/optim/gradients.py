"""Gradient clipping by global norm, and the search for what is not finite."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab_trainer.tensors import global_norm


@dataclass(frozen=True, slots=True)
class GradientClip:
    """Global norm before clipping, and the factor that was applied (1 where nothing was)."""

    norm: float
    ratio: float

    @property
    def finite(self) -> bool:
        """Whether every gradient element is finite: float64 squares of float32 values cannot overflow."""
        return math.isfinite(self.norm)


@torch.no_grad()
def clip_gradients(gradients: Sequence[Tensor], max_norm: float, norm: float | None = None) -> GradientClip:
    """Scale `gradients` in place so that their global norm is at most `max_norm`.

    `norm` is given where other ranks have other parts of the gradient. Gradients that are not finite are left as they
    are, for `first_non_finite` to name.
    """
    norm = global_norm(gradients) if norm is None else norm
    if not math.isfinite(norm) or norm <= max_norm:
        return GradientClip(norm=norm, ratio=1.0)
    ratio = max_norm / norm
    for gradient in gradients:
        gradient.mul_(ratio)
    return GradientClip(norm=norm, ratio=ratio)


def count_non_finite(tensors: Iterable[Tensor]) -> int:
    """Return how many elements are NaN or infinite."""
    return sum(int((~tensor.isfinite()).sum()) for tensor in tensors)


def first_non_finite(named_tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinity, or None."""
    return next((name for name, tensor in named_tensors if not bool(tensor.isfinite().all())), None)
