"""Operations on many tensors at once: on an accelerator one launch does for all what would be a launch for each.

On the CPU they are the same operations, one tensor after the other, and give the same bits. PyTorch's own names for
them are public only in its newest versions.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

_operators = cast("Any", torch)


def add(left: Sequence[Tensor], right: Sequence[Tensor], *, alpha: float) -> list[Tensor]:
    """Return left + alpha * right of every pair."""
    return list(_operators._foreach_add(left, right, alpha=alpha))  # noqa: SLF001


def add_to(targets: Sequence[Tensor], others: Sequence[Tensor], *, alpha: float = 1.0) -> None:
    """Add alpha * other to each target, in place."""
    _operators._foreach_add_(targets, others, alpha=alpha)


def scale(targets: Sequence[Tensor], factor: float) -> None:
    """Multiply every target, in place."""
    _operators._foreach_mul_(targets, factor)


def copy_to(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, in the target's type."""
    _operators._foreach_copy_(targets, sources)


def move_towards(targets: Sequence[Tensor], ends: Sequence[Tensor], weight: float) -> None:
    """target + weight * (end - target) of every pair, in place."""
    _operators._foreach_lerp_(targets, ends, weight)


def add_products(targets: Sequence[Tensor], left: Sequence[Tensor], right: Sequence[Tensor], factor: float) -> None:
    """target + factor * left * right of every three, in place."""
    _operators._foreach_addcmul_(targets, left, right, value=factor)


def add_quotients(targets: Sequence[Tensor], left: Sequence[Tensor], right: Sequence[Tensor], factor: float) -> None:
    """target + factor * left / right of every three, in place."""
    _operators._foreach_addcdiv_(targets, left, right, value=factor)


def scaled_roots(tensors: Sequence[Tensor], divisor: float, added: float) -> list[Tensor]:
    """Return sqrt(tensor) / divisor + added of every tensor."""
    roots = list(_operators._foreach_sqrt(tensors))  # noqa: SLF001
    _operators._foreach_div_(roots, divisor)
    _operators._foreach_add_(roots, added)
    return roots


def norms(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the Euclidean norm of every tensor [count], summed up in `dtype`."""
    return torch.stack(list(_operators._foreach_norm(tensors, 2, dtype=dtype)))  # noqa: SLF001
