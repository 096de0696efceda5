"""How weights and optimizer are doing: norms, spectral norms, what is not finite, and where QK-Clip acted.

Pure functions that look and change nothing; every figure costs one pass over the weights or a few, so that a run takes
them every so many steps, not in every one.
"""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor

from trimtab_trainer.optim.gradients import count_non_finite
from trimtab_trainer.optim.muon_clip import MuonClip
from trimtab_trainer.tensors import frobenius_norms, transposed

POWER_ITERATIONS: Final = 8
"""Enough for a few per cent where the largest singular values lie close together, and exact where one stands out."""


@dataclass(frozen=True, slots=True)
class WeightHealth:
    """One parameter, or its float32 copy where there is one, and its momentum (AdamW's first moment)."""

    name: str
    norm: float
    """Euclidean norm of all elements."""

    spectral_norm: float | None
    """An estimate, from below, of the largest singular value; of a stack that of its largest matrix. None where there
    is no matrix, or none was asked for."""

    momentum_norm: float
    nonfinite: int
    """Elements of the parameter that are not finite."""

    nonfinite_state: int
    """Elements of its momentum and of AdamW's second moment that are not finite."""

    update_norm: float | None
    """Euclidean norm of its last update before the learning rate; None where AdamW updates it, or nobody has yet."""

    elements: int


@dataclass(frozen=True, slots=True)
class ClipActivity:
    """Where QK-Clip acted over some steps; tensors are [layers, heads]."""

    share: Tensor
    """Share of the steps in which a head was clipped."""

    smallest: Tensor
    """Smallest factor on the head's logits; 1 where it was never clipped."""

    @property
    def heads_ever(self) -> float:
        """Share of the heads that were clipped at least once."""
        return float((self.share > 0).double().mean())


@torch.no_grad()
def optimizer_health(
    optimizer: MuonClip,
    *,
    iterations: int = POWER_ITERATIONS,
    spectral_of: Container[str] | None = None,
    only: Container[str] | None = None,
) -> tuple[WeightHealth, ...]:
    """Look at every parameter of an optimizer, or those named in `only`, in its order.

    Spectral norms, which cost most, are estimated of the parameters named in `spectral_of`: of all where it is None.
    """
    state = optimizer.state_dict()
    momenta: dict[str, Tensor] = {**state["muon_momentum"], **state["adamw_first_moment"]}
    variances: dict[str, Tensor] = state["adamw_second_moment"]
    masters: dict[str, Tensor] = state.get("master_weights", {})
    updates = optimizer.update_norms()
    found: list[WeightHealth] = []
    for route in optimizer.routes:
        if only is not None and route.name not in only:
            continue
        weight, momentum = masters.get(route.name, route.parameter), momenta[route.name]
        kept = (momentum, *(variances[name] for name in (route.name,) if name in variances))
        estimated = weight.ndim in {2, 3} and (spectral_of is None or route.name in spectral_of)
        found.append(
            WeightHealth(
                name=route.name,
                norm=_norm(weight),
                spectral_norm=float(spectral_norms(weight, iterations).max()) if estimated else None,
                momentum_norm=_norm(momentum),
                nonfinite=nonfinite_elements((weight,)),
                nonfinite_state=nonfinite_elements(kept),
                update_norm=updates.get(route.name),
                elements=weight.numel(),
            )
        )
    return tuple(found)


@torch.no_grad()
def spectral_norms(matrices: Tensor, iterations: int = POWER_ITERATIONS) -> Tensor:
    """Estimate the largest singular value of each of `matrices` [..., rows, columns] by power iteration.

    The start is the longest row, which cannot be orthogonal to all that matters, so that equal weights give equal
    numbers. The estimate never exceeds the value; a zero matrix gives 0, one that is not finite NaN.
    """
    matrices = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    longest = frobenius_norms(matrices[..., None, :])[..., 0, 0].argmax(-1)
    vector = _unit(transposed(torch.take_along_dim(matrices, longest[..., None, None], dim=-2)))
    value = frobenius_norms(vector)
    for _ in range(iterations):
        image = matrices @ vector
        value = frobenius_norms(image)
        vector = _unit(transposed(matrices) @ image)
    return value[..., 0, 0]


def _unit(vectors: Tensor) -> Tensor:
    return vectors / frobenius_norms(vectors).clamp(min=torch.finfo(vectors.dtype).tiny)


@torch.no_grad()
def nonfinite_elements(tensors: Iterable[Tensor]) -> int:
    """Return how many elements are NaN or infinite, in one pass over each tensor whose elements are all finite."""
    # A sum of finite elements may overflow, and then they are counted: a hint, and no more.
    return count_non_finite(tensor for tensor in tensors if not math.isfinite(float(tensor.sum())))


def nonfinite_state(optimizer: MuonClip) -> int:
    """Return how many elements of an optimizer's whole state are NaN or infinite."""
    state = optimizer.state_dict().values()
    kinds = (cast("Mapping[str, Tensor]", value) for value in state if isinstance(value, Mapping))
    return sum(nonfinite_elements(kind.values()) for kind in kinds)


def clip_activity(gammas: Tensor) -> ClipActivity:
    """Sum up the factors of some steps, [steps, layers, heads], as `StepTelemetry` reports them."""
    return ClipActivity(share=(gammas < 1).double().mean(0), smallest=gammas.amin(0))


def _norm(tensor: Tensor) -> float:
    return float(frobenius_norms(tensor.flatten()[None]))
