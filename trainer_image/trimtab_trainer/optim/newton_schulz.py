"""Orthogonalisation by Newton-Schulz iteration: from G = U S V^T to about U V^T, with products only.

One iteration is the odd polynomial `a x + b x^3 + c x^5` on every singular value. With A = X X^T that is
X <- (a I + b A + c A^2) X for a wide matrix, and with A = X^T X the same from the right for a tall one: always the
smaller Gram matrix, which has the same spectrum but for zeros and costs less, and never a transposed copy.
"""

from collections.abc import Iterator
from itertools import accumulate, chain, pairwise, repeat
from typing import Final

import torch
from torch import Tensor

from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS, Polynomials
from trimtab_trainer.optim.config import CoefficientSet, ComputeType
from trimtab_trainer.tensors import frobenius_norms, transposed

COMPUTE_TYPES: Final[dict[ComputeType, torch.dtype]] = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

SMALLEST_NORM: Final = 1e-7
"""Keeps a zero matrix zero instead of dividing by nothing."""

GRAM_ASPECT: Final = 1.5
"""From this ratio of sides on, the Gram form needs fewer products than the plain one."""

STRIPE_ROWS: Final = 256
"""Of a symmetric product on the CPU so many rows are computed at once, each stripe from the diagonal on."""

GRAM_ITERATIONS: Final = (2, 3)
"""Iterations of the Gram form between two looks at the matrix itself; the last number is repeated. The first ones must
be few: they lift singular values whose squares a rounded Gram matrix does not hold."""


def newton_schulz(matrices: Tensor, polynomials: Polynomials, dtype: torch.dtype, *, gram: bool = False) -> Tensor:
    """Orthogonalise each of `matrices` [count, rows, columns]; the result has type `dtype` and memory of its own.

    The norm is taken before rounding to `dtype` and only clamped, so scaling by a power of two changes no bit of the
    result. With `gram`, matrices that are long enough are iterated in the Gram form.
    """
    rounded = normalise(matrices.to(dtype, copy=True), frobenius_norms(matrices))
    return orthogonalised(rounded, polynomials, gram=gram)


def normalise(rounded: Tensor, norms: Tensor) -> Tensor:
    """Divide each of `rounded` [count, rows, columns] in place by its norm [count, 1, 1], which is only clamped."""
    # A norm of the same type divides several times faster. No type here has a smaller range than float32.
    return rounded.div_(norms.clamp(min=SMALLEST_NORM).to(rounded.dtype))


def orthogonalised(normalised: Tensor, polynomials: Polynomials, *, gram: bool = False) -> Tensor:
    """Orthogonalise each of `normalised` [count, rows, columns], whose Frobenius norms are at most 1, in its own type.

    Without polynomials the result is `normalised` itself.
    """
    if len(normalised) == 1:
        # A product of two matrices is far faster than one of two stacks of one, which copies what is transposed.
        return _iterated(normalised[0], polynomials, gram=gram)[None]
    return _iterated(normalised, polynomials, gram=gram)


def multiplications(rows: int, columns: int, coefficients: CoefficientSet, *, gram: bool) -> int:
    """How many multiplications of two numbers `newton_schulz` takes for one matrix, if none is saved by symmetry."""
    iterations = len(COEFFICIENT_SETS[coefficients])
    side, length = min(rows, columns), max(rows, columns)
    small, long = side**3, side * side * length
    if gram and _is_long(rows, columns):
        # For n iterations: A and the product with X are long; n squares, n - 1 factors, and n - 1 times P A P are not.
        return sum(2 * long + (4 * count - 3) * small for count in _segments(iterations))
    return iterations * (2 * long + small)


def _is_long(rows: int, columns: int) -> bool:
    return max(rows, columns) >= GRAM_ASPECT * min(rows, columns)


def _iterated(x: Tensor, polynomials: Polynomials, *, gram: bool) -> Tensor:
    """One matrix [rows, columns], or a stack [count, rows, columns]."""
    rows, columns = x.shape[-2:]
    if gram and _is_long(rows, columns):
        return _gram_form(x, polynomials)
    for a, b, c in polynomials:
        even = _even_part(_gram(x), b, c)
        x = _multiply_add(x, even, x, beta=a) if rows <= columns else _multiply_add(x, x, even, beta=a)
    return x


def _gram_form(x: Tensor, polynomials: Polynomials) -> Tensor:
    """Iterate the Gram matrix in place of `x`, which is multiplied once for several iterations.

    An iteration with the factor P = a I + b A + c A^2 turns A into P A P, and the factors of several iterations
    multiply to one. All are polynomials of the same matrix, so they commute and stay symmetric. The multiple of the
    identity is added to each factor, not kept apart: apart, numbers of about 40 would cancel to about 1.
    """
    for start, stop in pairwise((0, *accumulate(_segments(len(polynomials))))):
        factor = _product_of_factors(_gram(x), polynomials[start:stop])
        x = factor @ x if x.shape[-2] <= x.shape[-1] else x @ factor
    return x


def _segments(iterations: int) -> Iterator[int]:
    """GRAM_ITERATIONS, its last number repeated, until they add up to `iterations`."""
    for length in chain(GRAM_ITERATIONS, repeat(GRAM_ITERATIONS[-1])):
        if iterations <= 0:
            return
        yield min(length, iterations)
        iterations -= length


def _product_of_factors(gram: Tensor, polynomials: Polynomials) -> Tensor:
    """Return the matrix that one iteration after the other multiplies with."""
    product: Tensor | None = None
    for index, (a, b, c) in enumerate(polynomials):
        factor = _even_part(gram, b, c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else _symmetric(factor, product)
        if index < len(polynomials) - 1:
            gram = _symmetric(factor, _symmetric(gram, factor))
    assert product is not None
    return product


def _gram(x: Tensor) -> Tensor:
    """The smaller of X X^T and X^T X."""
    return _symmetric(x, transposed(x)) if x.shape[-2] <= x.shape[-1] else _symmetric(transposed(x), x)


def _even_part(gram: Tensor, b: float, c: float) -> Tensor:
    """b A + c A^2."""
    return _symmetric(gram, gram, added=gram, beta=b, alpha=c)


def _symmetric(
    left: Tensor, right: Tensor, *, added: Tensor | None = None, beta: float = 0.0, alpha: float = 1.0
) -> Tensor:
    """left @ right, or beta * added + alpha * left @ right, of which it is known that the exact result is symmetric.

    What lies below the diagonal is copied from above it where that pays: about half of the multiplications are left
    out, and the result is symmetric to the last bit.
    """
    side = left.shape[-2]
    if left.ndim > 2 or side < 2 * STRIPE_ROWS or left.device.type != "cpu":
        return left @ right if added is None else _multiply_add(added, left, right, beta=beta, alpha=alpha)
    result = left.new_empty(side, side)
    for start in range(0, side, STRIPE_ROWS):
        rows, onward = slice(start, start + STRIPE_ROWS), slice(start, None)
        if added is None:
            torch.mm(left[rows], right[:, onward], out=result[rows, onward])
        else:
            torch.addmm(
                added[rows, onward], left[rows], right[:, onward], beta=beta, alpha=alpha, out=result[rows, onward]
            )
        result[rows, :start] = transposed(result[:start, rows])
    return result


def _multiply_add(added: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float = 1.0) -> Tensor:
    """beta * added + alpha * left @ right, rounded once."""
    multiply_add = torch.addmm if added.ndim == 2 else torch.baddbmm
    return multiply_add(added, left, right, beta=beta, alpha=alpha)
