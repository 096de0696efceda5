"""Newton-Schulz against the scalar polynomial, the singular value decomposition and higher precision."""

import pytest
import torch
from torch import Tensor
from trimtab_trainer.optim import newton_schulz as newton_schulz_module
from trimtab_trainer.optim.coefficients import (
    COEFFICIENT_SETS,
    CUBIC,
    DEEPSEEK_V4,
    POLAR_EXPRESS,
    QUINTIC,
    TUNED_QUINTIC,
    Polynomials,
)
from trimtab_trainer.optim.muonclip_reference import orthogonalise
from trimtab_trainer.optim.newton_schulz import GRAM_ASPECT, newton_schulz

SHAPES = [(64, 64), (96, 64), (64, 96), (128, 512)]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scalar_map(value: float, polynomials: Polynomials) -> float:
    for a, b, c in polynomials:
        value = a * value + b * value**3 + c * value**5
    return value


@pytest.mark.parametrize(("value", "mapped"), [(1.0, 0.6964), (0.1, 0.7121), (0.01, 0.6989), (1e-3, 0.4705)])
def test_the_quintic_maps_singular_values_as_computed_by_hand(value: float, mapped: float) -> None:
    assert scalar_map(value, QUINTIC) == pytest.approx(mapped, abs=5e-5)
    # A second singular value completes the norm to 1, so that the iteration starts at `value`.
    matrix = torch.diag(torch.tensor([value, (1 - value**2) ** 0.5], dtype=torch.float64))
    result = newton_schulz(matrix[None], QUINTIC, torch.float64)[0, 0, 0].item()
    assert result == pytest.approx(mapped, abs=5e-5)


@pytest.mark.parametrize(
    ("polynomials", "smallest", "low", "high"),
    [
        (QUINTIC, 0.01, 0.68, 1.135),
        (TUNED_QUINTIC, 0.01, 0.977, 1.032),
        (POLAR_EXPRESS, 0.001, 0.84, 1.13),
        (DEEPSEEK_V4, 0.001, 0.999, 1.001),
        (CUBIC, 0.001, 0.999, 1.001),
    ],
)
def test_every_coefficient_set_brings_singular_values_near_one(
    polynomials: Polynomials, smallest: float, low: float, high: float
) -> None:
    values = [scalar_map(smallest ** (exponent / 1000), polynomials) for exponent in range(1001)]
    assert min(values) > low
    assert max(values) < high


def test_a_diagonal_matrix_gives_the_published_values() -> None:
    result = newton_schulz(torch.diag(torch.tensor([3.0, 1.0]).double())[None], QUINTIC, torch.float64)[0]
    expected = torch.diag(torch.tensor([0.7530334535662773, 1.1337062282349244], dtype=torch.float64))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-14)


def test_bfloat16_gives_the_published_values_of_a_diagonal_matrix() -> None:
    result = newton_schulz(torch.diag(torch.tensor([3.0, 1.0]))[None], QUINTIC, torch.bfloat16)[0]
    assert result.diag().tolist() == [0.75, 1.1328125]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("polynomials", COEFFICIENT_SETS.values(), ids=COEFFICIENT_SETS.keys())
def test_products_agree_with_polynomials_of_the_singular_values(
    shape: tuple[int, int], polynomials: Polynomials
) -> None:
    matrices = gaussian(3, *shape)
    results = newton_schulz(matrices, polynomials, torch.float64)
    expected = torch.stack([orthogonalise(matrix, polynomials) for matrix in matrices])
    torch.testing.assert_close(results, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_result_points_where_the_polar_factor_points(shape: tuple[int, int]) -> None:
    matrix = gaussian(*shape)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    polar = left @ right
    result = newton_schulz(matrix[None], QUINTIC, torch.float64)[0]
    cosine = (result * polar).sum() / (result.norm() * polar.norm())
    assert cosine >= 0.975
    assert (result - polar).abs().max() <= 0.15
    assert 0.15 <= (result - polar).norm() / polar.norm() <= 0.30


def test_singular_values_away_from_zero_end_in_the_published_range() -> None:
    values = torch.linalg.svdvals(newton_schulz(gaussian(1, 128, 512), QUINTIC, torch.float64)[0])
    assert values.min() >= 0.67
    assert values.max() <= 1.21


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_stays_within_three_percent_of_float64(shape: tuple[int, int]) -> None:
    matrices = gaussian(2, *shape)
    exact = newton_schulz(matrices, QUINTIC, torch.float64)
    rounded = newton_schulz(matrices.float(), QUINTIC, torch.bfloat16).double()
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("exponent", [-10, 10])
def test_a_power_of_two_changes_no_bit(dtype: torch.dtype, exponent: int) -> None:
    matrices = gaussian(2, 48, 32).float()
    scaled = newton_schulz(matrices * 2.0**exponent, QUINTIC, dtype)
    assert torch.equal(scaled, newton_schulz(matrices, QUINTIC, dtype))


def test_other_scales_and_row_orders_change_the_result_only_by_rounding() -> None:
    matrices = gaussian(1, 96, 64).float()
    result = newton_schulz(matrices, QUINTIC, torch.bfloat16)
    scaled = newton_schulz(matrices * 3.7, QUINTIC, torch.bfloat16)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(0))
    permuted = newton_schulz(matrices[:, order], QUINTIC, torch.bfloat16)
    assert (scaled - result).norm() / result.norm() < 0.03
    assert (permuted - result[:, order]).norm() / result.norm() < 0.01


def test_a_zero_matrix_stays_zero() -> None:
    assert not newton_schulz(torch.zeros(2, 8, 16), QUINTIC, torch.bfloat16).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stack_gives_what_its_matrices_give_alone(shape: tuple[int, int]) -> None:
    matrices = gaussian(4, *shape)
    stacked = newton_schulz(matrices, QUINTIC, torch.float64)
    alone = torch.cat([newton_schulz(matrix[None], QUINTIC, torch.float64) for matrix in matrices])
    torch.testing.assert_close(stacked, alone, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("polynomials", COEFFICIENT_SETS.values(), ids=COEFFICIENT_SETS.keys())
@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (32, 160)])
def test_the_gram_form_gives_the_same_result_by_other_products(
    shape: tuple[int, int], polynomials: Polynomials
) -> None:
    assert max(shape) >= GRAM_ASPECT * min(shape)
    matrices = gaussian(2, *shape)
    plain = newton_schulz(matrices, polynomials, torch.float64)
    gram = newton_schulz(matrices, polynomials, torch.float64, gram=True)
    assert not torch.equal(gram, plain)
    torch.testing.assert_close(gram, plain, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(newton_schulz(matrices[:1], polynomials, torch.float64, gram=True), gram[:1])


def test_nearly_square_matrices_are_iterated_plainly_even_when_the_gram_form_is_asked_for() -> None:
    matrices = gaussian(2, 64, 64)
    plain = newton_schulz(matrices, QUINTIC, torch.float64)
    assert torch.equal(newton_schulz(matrices, QUINTIC, torch.float64, gram=True), plain)


@pytest.mark.parametrize("polynomials", [QUINTIC, TUNED_QUINTIC, POLAR_EXPRESS], ids=["quintic", "tuned", "polar"])
def test_the_gram_form_in_bfloat16_stays_within_four_percent_of_float64(polynomials: Polynomials) -> None:
    matrices = gaussian(2, 128, 384)
    exact = newton_schulz(matrices, polynomials, torch.float64)
    rounded = newton_schulz(matrices.float(), polynomials, torch.bfloat16, gram=True).double()
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.04


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("polynomials", COEFFICIENT_SETS.values(), ids=COEFFICIENT_SETS.keys())
def test_singular_values_far_apart_or_zero_give_no_singular_value_above_the_polynomials(
    polynomials: Polynomials, gram: bool
) -> None:
    """What a Gram matrix rounded to bfloat16 cannot hold, squares below a thousandth, must not blow up."""
    left, right = torch.linalg.qr(gaussian(64, 64)).Q, torch.linalg.qr(gaussian(160, 64, seed=1)).Q
    for values in (torch.logspace(0, -8, 64, dtype=torch.float64), torch.tensor([1.0] * 4 + [0.0] * 60).double()):
        matrix = (left @ torch.diag(values) @ right.T).float()[None]
        result = torch.linalg.svdvals(newton_schulz(matrix, polynomials, torch.bfloat16, gram=gram)[0].double())
        assert result.isfinite().all()
        assert result.max() < 1.35


def test_the_result_shares_no_memory_with_the_matrix() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        matrix = gaussian(1, 8, 16).to(dtype)
        kept = matrix.clone()
        newton_schulz(matrix, (), dtype).zero_()
        assert torch.equal(matrix, kept)


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("shape", [(16, 16), (17, 40), (40, 23), (50, 50)])
def test_products_in_stripes_are_those_of_the_reference(
    shape: tuple[int, int], gram: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of symmetric products only what lies above the diagonal is computed; the last stripe may be a short one."""
    monkeypatch.setattr(newton_schulz_module, "STRIPE_ROWS", 8)
    matrix = gaussian(*shape)
    found = newton_schulz(matrix[None], QUINTIC, torch.float64, gram=gram)[0]
    torch.testing.assert_close(found, orthogonalise(matrix, QUINTIC), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(600, 600), (512, 1100), (1100, 530)])
def test_stripes_change_no_more_than_rounding_does(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = gaussian(*shape)[None]
    striped = newton_schulz(matrix, QUINTIC, dtype).double()
    monkeypatch.setattr(newton_schulz_module, "STRIPE_ROWS", 1 << 20)
    whole = newton_schulz(matrix, QUINTIC, dtype).double()
    exact = orthogonalise(matrix[0], QUINTIC)
    error, allowed = (float((found[0] - exact).norm()) for found in (striped, whole))
    assert error <= 1.05 * allowed
