"""Orthogonalisation by Newton-Schulz iteration: from G = U S V^T to about U V^T, with products only.

One iteration is the odd polynomial `a x + b x^3 + c x^5` on every singular value.
"""

from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.optim.config import CoefficientSet, ComputeType
from trimtab_trainer.tensors import frobenius_norms, transposed

Polynomials = tuple[tuple[float, float, float], ...]

QUINTIC: Final[Polynomials] = ((3.4445, -4.7750, 2.0315),) * 5
"""Jordan et al., Muon (2024). Steep at zero; ends between about 0.68 and 1.13, not at 1."""

POLAR_EXPRESS: Final[Polynomials] = tuple(
    (a / 1.01, b / 1.01**3, c / 1.01**5)
    for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    )
)
"""Amsel et al., The Polar Express (arXiv 2505.16932): the best polynomial of each iteration for singular
values from 0.001 to 1, with the paper's safety factor of 1.01 against rounding."""

COEFFICIENT_SETS: Final[dict[CoefficientSet, Polynomials]] = {
    "quintic": QUINTIC,
    "polar_express": POLAR_EXPRESS,
}

COMPUTE_TYPES: Final[dict[ComputeType, torch.dtype]] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

SMALLEST_NORM: Final = 1e-7
"""Keeps a zero matrix zero instead of dividing by nothing."""


def newton_schulz(matrices: Tensor, polynomials: Polynomials, dtype: torch.dtype) -> Tensor:
    """Orthogonalise each of `matrices` [count, rows, columns]; the result has type `dtype`.

    The norm is taken before rounding to `dtype` and only clamped, so scaling by a power of two changes
    no bit of the result.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    norms = frobenius_norms(matrices)
    x = (matrices / norms.clamp(min=SMALLEST_NORM)).to(dtype)
    # The smaller Gram matrix has the same non-zero spectrum and costs less.
    x = transposed(x) if tall else x
    for a, b, c in polynomials:
        gram = x @ transposed(x)
        even = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, even, x, beta=a)
    return transposed(x) if tall else x
