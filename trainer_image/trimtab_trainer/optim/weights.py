"""A parameter as an optimizer sees it: what it updates, from which gradient, and cut into which matrices."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, and the float32 copy that is updated in its place where it has too few bits for small changes."""

    name: str
    parameter: Tensor
    master: Tensor | None = None
    decay: float = 0.0
    """Decoupled weight decay, multiplied by the base learning rate."""

    rows: tuple[int, ...] = ()
    """Rows of the matrices that lie one below the other in the parameter; one matrix if empty."""

    learning_rate_scale: float = 1.0
    """Multiplies the learning rate of the update, and not that of the decay."""

    @property
    def value(self) -> Tensor:
        """What is updated."""
        return self.parameter if self.master is None else self.master

    def gradient(self) -> Tensor:
        """The gradient in the type it has; zeros where there is none."""
        return self.parameter.grad if self.parameter.grad is not None else torch.zeros_like(self.parameter)

    def matrices(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Cut a tensor of this shape into the matrices that are orthogonalised apart, as views.

        Three dimensions are a stack of matrices, such as those of the experts of a layer.
        """
        stack = tensor.unbind() if tensor.ndim == 3 else (tensor,)
        bounds = tuple(pairwise((0, *accumulate(self.rows or (tensor.shape[-2],)))))
        return tuple(matrix[start:stop] for matrix in stack for start, stop in bounds)


def in_master(tensor: Tensor, masters: Mapping[Tensor, Tensor]) -> Tensor:
    """The same elements in the master copy: of a parameter, or of a view of one; `tensor` itself without a master."""
    if tensor in masters:
        return masters[tensor]
    base = tensor._base  # noqa: SLF001
    if base is None or base not in masters:
        return tensor
    return masters[base].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset() - base.storage_offset())
