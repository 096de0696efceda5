"""Gradient clipping by global norm, of groups each by its own, and the search for what is not finite."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab_trainer import tensor_lists
from trimtab_trainer.fields import raise_if_any
from trimtab_trainer.optim.config import ParameterGroup
from trimtab_trainer.optim.routing import first_match, unused
from trimtab_trainer.tensors import global_norm

Norms = Callable[[Sequence[Sequence[Tensor]]], Sequence[float]]
"""The Euclidean norm of each of several parts of the gradient."""


@dataclass(frozen=True, slots=True)
class GradientClip:
    """Global norm before clipping, and the factor that was applied (1 where nothing was)."""

    norm: float
    ratio: float
    groups: "tuple[GradientClip, ...]" = ()
    """The same of each group that is clipped by itself; its gradients are in no other norm."""

    @property
    def finite(self) -> bool:
        """Whether every gradient element is finite: float64 squares of float32 values cannot overflow."""
        return math.isfinite(self.norm) and all(group.finite for group in self.groups)


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
    tensor_lists.scale(gradients, ratio)
    return GradientClip(norm=norm, ratio=ratio)


def gradient_norms(parts: Sequence[Sequence[Tensor]]) -> list[float]:
    """Return the Euclidean norm of each of `parts`; that of no tensors is 0."""
    return [global_norm(part) if part else 0.0 for part in parts]


def forget_gradients(parameters: Iterable[Tensor], *, keep: bool) -> None:
    """Leave every parameter without a gradient, or, to `keep` its memory, with one of zeros."""
    for parameter in parameters:
        if keep and parameter.grad is not None:
            parameter.grad = torch.zeros_like(parameter.grad)
        else:
            parameter.grad = None


class GradientClipping:
    """Which gradients are clipped together, and to what: groups with a `gradient_clip` each by itself, then the rest.

    Raises:
        InvalidFields: `max_norm` is not above 0, or a group's pattern matches no name that an earlier one left.
    """

    def __init__(self, names: Iterable[str], groups: Sequence[ParameterGroup], max_norm: float) -> None:
        """`names` are those of all parameters; as everywhere, the first of `groups` that matches a name counts."""
        chosen = [first_match(name, groups) for name in names]
        bounds = {number: group.gradient_clip for number, group in enumerate(groups) if group.gradient_clip is not None}
        raise_if_any(
            (
                None if max_norm > 0 else f"max_norm: {max_norm} must be above 0",
                *(unused(number, groups[number]) for number in bounds if number not in chosen),
            )
        )
        self._bounds = (max_norm, *bounds.values())
        self._places = [
            [place for place, number in enumerate(chosen) if number not in bounds],
            *([place for place, number in enumerate(chosen) if number == bound] for bound in bounds),
        ]

    @torch.no_grad()
    def clip(self, gradients: Sequence[Tensor | None], norms: Norms = gradient_norms) -> GradientClip:
        """Scale `gradients`, in the order of the names, in place so that no norm is above its bound.

        `norms` is given where other ranks have other parts of the gradient; it is called once, with as many parts on
        every rank, whichever gradients are None there. If any is not finite, all are left as they are, for
        `first_non_finite` to name.

        Raises:
            InvalidFields: there are more or fewer gradients than names; nothing was changed.
        """
        count = sum(map(len, self._places))
        wrong = f"gradients: {len(gradients)} must be one for each of the {count} names, or None where there is none"
        raise_if_any((None if len(gradients) == count else wrong,))
        first = next((gradient for gradient in gradients if gradient is not None), torch.empty(0))
        # A norm is summed up in an order that the number of its terms decides: one of zero stays among them.
        present = [first.new_empty(0) if gradient is None else gradient for gradient in gradients]
        parts = [[present[place] for place in places] for places in self._places]
        found = norms(parts)
        if all(math.isfinite(norm) for norm in found):
            clips = [clip_gradients(*each) for each in zip(parts, self._bounds, found, strict=True)]
        else:
            clips = [GradientClip(norm=norm, ratio=1.0) for norm in found]
        return replace(clips[0], groups=tuple(clips[1:]))


def count_non_finite(tensors: Iterable[Tensor]) -> int:
    """Return how many elements are NaN or infinite."""
    return sum(int((~tensor.isfinite()).sum()) for tensor in tensors)


def first_non_finite(named_tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinity, or None."""
    return next((name for name, tensor in named_tensors if not bool(tensor.isfinite().all())), None)
