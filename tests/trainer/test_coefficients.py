"""The named polynomials: the published numbers, where they come from, and what they do to singular values."""

import math

import pytest
import torch
from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS, POLAR_EXPRESS, Polynomials
from trimtab_trainer.optim.config import CoefficientSet

SAFETY = 1.01
"""Of the Polar Express: singular values that rounding brought above 1 stay where the polynomials hold."""

JORDAN = (3.4445, -4.7750, 2.0315)
"""Keller Jordan et al., Muon (2024), kellerjordan.github.io/posts/muon."""

PUBLISHED: dict[CoefficientSet, Polynomials] = {
    "quintic": (JORDAN,) * 5,
    # You Jiacheng, for the NanoGPT speed run (2025).
    "tuned_quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    # Amsel et al. (arXiv 2505.16932), the list in its code, before the safety factor.
    "polar_express": (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    ),
    "deepseek_v4": (*(JORDAN,) * 8, *((2.0, -1.5, 0.5),) * 2),
    "cubic": ((1.5, -0.5, 0.0),) * 20,
}


def scalar_map(value: float, polynomials: Polynomials) -> float:
    for a, b, c in polynomials:
        value = a * value + b * value**3 + c * value**5
    return value


def without_safety(polynomials: Polynomials) -> Polynomials:
    return tuple((a * SAFETY, b * SAFETY**3, c * SAFETY**5) for a, b, c in polynomials)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_coefficients_are_the_published_ones(name: CoefficientSet) -> None:
    found = without_safety(COEFFICIENT_SETS[name]) if name == "polar_express" else COEFFICIENT_SETS[name]
    assert len(found) == len(PUBLISHED[name])
    for ours, published in zip(found, PUBLISHED[name], strict=True):
        assert ours == pytest.approx(published, rel=1e-14), name


def test_no_set_is_without_its_source_here() -> None:
    assert PUBLISHED.keys() == COEFFICIENT_SETS.keys()


MAPPED: dict[CoefficientSet, tuple[float, ...]] = {
    "quintic": (0.6964, 0.7654, 0.7121, 0.6989, 0.4705),
    "tuned_quintic": (0.9783, 0.9859, 1.0190, 1.0180, 0.4750),
    "polar_express": (1.0288, 0.9343, 0.8749, 1.0660, 0.8462),
    "deepseek_v4": (1.0000, 1.0002, 1.0001, 1.0000, 1.0000),
    "cubic": (1.0000, 1.0000, 1.0000, 1.0000, 0.9999),
}
"""Where singular values of 1, 0.5, 0.1, 0.01 and 0.001 end."""


@pytest.mark.parametrize("name", MAPPED)
def test_singular_values_end_where_the_published_coefficients_bring_them(name: CoefficientSet) -> None:
    found = [scalar_map(value, COEFFICIENT_SETS[name]) for value in (1.0, 0.5, 0.1, 0.01, 0.001)]
    assert found == pytest.approx(MAPPED[name], abs=6e-5)


@pytest.mark.parametrize(
    ("name", "smallest", "low", "high"),
    [
        ("quintic", 0.01, 0.6818, 1.1344),
        ("tuned_quintic", 0.01, 0.9778, 1.0318),
        ("polar_express", 0.001, 0.8462, 1.1236),
    ],
)
def test_the_range_in_which_singular_values_end_is_the_documented_one(
    name: CoefficientSet, smallest: float, low: float, high: float
) -> None:
    values = [scalar_map(smallest ** (exponent / 5000), COEFFICIENT_SETS[name]) for exponent in range(5001)]
    assert (min(values), max(values)) == pytest.approx((low, high), abs=6e-5)


def nearest_to_one(low: float, high: float) -> tuple[float, float, float]:
    """The a, b, c whose `a x + b x^3 + c x^5` is nearest to 1 in [low, high], by Remez's exchange.

    At the best polynomial the error is equally large, of changing sign, at both ends and at the extrema between.
    """
    inner = [(3 * low + high) / 4, (low + 3 * high) / 4]
    for _ in range(60):
        points = (low, *inner, high)
        equations = [[x, x**3, x**5, sign] for x, sign in zip(points, (1.0, -1.0, 1.0, -1.0), strict=True)]
        system = torch.tensor(equations, dtype=torch.float64)
        a, b, c, _ = torch.linalg.solve(system, torch.ones(4, dtype=torch.float64)).tolist()
        root = math.sqrt(9 * b * b - 20 * a * c)
        inner = [math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1)]
    return a, b, c


def test_the_polar_express_has_the_best_polynomial_of_each_iteration_for_singular_values_from_a_thousandth_on() -> None:
    low, high = 0.001, 1.0
    for a, b, c in without_safety(POLAR_EXPRESS):
        # The paper's cushion: a wider range would cost the large values too much. Then both ends lie as far from 1.
        best = nearest_to_one(max(low, 0.02407327424182761 * high), high)
        centred = 2 / (scalar_map(low, (best,)) + scalar_map(high, (best,)))
        assert (a, b, c) == pytest.approx([each * centred for each in best], rel=1e-12)
        low = scalar_map(low, ((a, b, c),))
        high = 2 - low
