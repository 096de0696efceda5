"""Named sets of Newton-Schulz polynomials `a x + b x^3 + c x^5`, one triple (a, b, c) for each iteration.

All trade a result of exactly 1 for few iterations: what matters to Muon is that small singular values get up, not that
large ones end at 1. Only `cubic` and `deepseek_v4` converge to 1.
"""

from typing import Final

from trimtab_trainer.optim.config import CoefficientSet

Polynomials = tuple[tuple[float, float, float], ...]

QUINTIC: Final[Polynomials] = ((3.4445, -4.7750, 2.0315),) * 5
"""Jordan et al., Muon (2024). Steep at zero; ends between about 0.68 and 1.13, not at 1."""

TUNED_QUINTIC: Final[Polynomials] = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""You Jiacheng, for the NanoGPT speed run (2025): a polynomial of its own for each iteration."""

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

DEEPSEEK_V4: Final[Polynomials] = ((3.4445, -4.7750, 2.0315),) * 8 + ((2.0, -1.5, 0.5),) * 2
"""DeepSeek-V4: eight steep iterations, then two that converge to 1; twice the work of the others."""

CUBIC: Final[Polynomials] = ((1.5, -0.5, 0.0),) * 20
"""Newton and Schulz's own: convergence to 1 from 0.001 on, slowly; for comparisons, not for training. Five iterations
of it, as some recipes have it, bring a singular value of 0.01 to 0.076 only."""

COEFFICIENT_SETS: Final[dict[CoefficientSet, Polynomials]] = {
    "quintic": QUINTIC,
    "tuned_quintic": TUNED_QUINTIC,
    "polar_express": POLAR_EXPRESS,
    "deepseek_v4": DEEPSEEK_V4,
    "cubic": CUBIC,
}
