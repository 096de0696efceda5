"""How weights and optimizer are doing: norms, spectral norms, what is not finite, and where QK-Clip acted.

Pure functions that look and change nothing; every figure costs one pass over the weights or a few, so that a run takes
them every so many steps, not in every one.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor

from trimtab_trainer.optim.gradients import count_non_finite
from trimtab_trainer.optim.muon_clip import MuonClip
from trimtab_trainer.tensors import floats, frobenius_norms, transposed

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
    looks: list[_Look] = []
    for route in optimizer.routes:
        if only is None or route.name in only:
            weight, momentum = masters.get(route.name, route.parameter), momenta[route.name]
            estimated = weight.ndim in {2, 3} and (spectral_of is None or route.name in spectral_of)
            looks.append(_Look(route.name, weight, momentum, variances.get(route.name), iterations * estimated))
    # All figures are read together: a device is waited for once.
    numbers = floats(torch.stack([number for look in looks for number in look.numbers()])) if looks else []
    updates, each = optimizer.update_norms(), len(numbers) // max(len(looks), 1)
    return tuple(
        look.health(numbers[place * each : (place + 1) * each], updates.get(look.name))
        for place, look in enumerate(looks)
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """A parameter, or its float32 copy, and its state."""

    name: str
    weight: Tensor
    momentum: Tensor
    variance: Tensor | None
    iterations: int
    """Of the power method; 0 where no spectral norm is asked for."""

    def numbers(self) -> list[Tensor]:
        """Scalars, where the tensors are."""
        nothing = self.weight.new_zeros(())
        spectral = spectral_norms(self.weight, self.iterations).max() if self.iterations else nothing
        variance = nothing if self.variance is None else self.variance.sum()
        return [
            _norm(self.weight),
            spectral,
            _norm(self.momentum),
            self.weight.sum(),
            self.momentum.sum(),
            variance,
        ]

    def health(self, numbers: Sequence[float], update_norm: float | None) -> WeightHealth:
        """What the scalars say."""
        norm, spectral, momentum_norm, of_weight, *of_state = numbers
        state = (self.momentum,) if self.variance is None else (self.momentum, self.variance)
        return WeightHealth(
            name=self.name,
            norm=norm,
            spectral_norm=spectral if self.iterations else None,
            momentum_norm=momentum_norm,
            nonfinite=_counted((self.weight,), (of_weight,)),
            nonfinite_state=_counted(state, of_state[: len(state)]),
            update_norm=update_norm,
            elements=self.weight.numel(),
        )


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
    those = tuple(tensors)
    return _counted(those, floats(torch.stack([tensor.sum() for tensor in those]))) if those else 0


def _counted(tensors: Sequence[Tensor], sums: Sequence[float]) -> int:
    # A sum of finite elements may overflow, and then they are counted: a hint, and no more.
    return count_non_finite(one for one, total in zip(tensors, sums, strict=True) if not math.isfinite(total))


def nonfinite_state(optimizer: MuonClip) -> int:
    """Return how many elements of an optimizer's whole state are NaN or infinite."""
    state = optimizer.state_dict().values()
    kinds = (cast("Mapping[str, Tensor]", value) for value in state if isinstance(value, Mapping))
    return sum(nonfinite_elements(kind.values()) for kind in kinds)


def clip_activity(gammas: Tensor) -> ClipActivity:
    """Sum up the factors of some steps, [steps, layers, heads], as `StepTelemetry` reports them."""
    return ClipActivity(share=(gammas < 1).double().mean(0), smallest=gammas.amin(0))


def _norm(tensor: Tensor) -> Tensor:
    return frobenius_norms(tensor.flatten()[None])[0, 0]
