"""QK-Clip brings a hot head exactly to the threshold and leaves every other head's bits alone."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from trimtab_trainer.optim.muonclip_reference import clip_head, largest_logits
from trimtab_trainer.optim.qk_clip import (
    NonFiniteLogitsError,
    qk_clip,
    qk_clip_gamma,
    require_finite,
    scale_query_key,
)

HEADS, DIMENSION, WIDTH = 4, 6, 24
THRESHOLD = 30.0

Scale = Callable[[list[Tensor], list[Tensor], Tensor], None]
Gamma = Callable[[Tensor, float], Tensor]


def gaussian(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Heads:
    """Queries and keys of one layer in float64, two of whose four heads are hot."""

    def __init__(self, bias: bool) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = gaussian(generator, 3, 10, WIDTH)
        gains = torch.tensor([0.3, 3.0, 2.0, 0.5], dtype=torch.float64).repeat_interleave(DIMENSION)
        shapes = [(HEADS * DIMENSION, WIDTH)] + [(HEADS * DIMENSION,)] * bias
        self.query, self.key = (
            [gaussian(generator, *shape) * gains.view(-1, *[1] * (len(shape) - 1)) for shape in shapes]
            for _ in range(2)
        )

    def logits(self) -> Tensor:
        query, key = (
            torch.nn.functional.linear(self.inputs, *parameters).unflatten(-1, (HEADS, DIMENSION)).transpose(1, 2)
            for parameters in (self.query, self.key)
        )
        return largest_logits(query, key)


def check_scaling(scale: Scale) -> None:
    for bias in (False, True):
        layer = Heads(bias)
        before = layer.logits()
        hot = before > THRESHOLD
        assert hot.tolist() == [False, True, True, False]
        cold_rows = (~hot).repeat_interleave(DIMENSION)
        cold = [parameter[cold_rows].clone() for parameter in (*layer.query, *layer.key)]
        scale(layer.query, layer.key, qk_clip_gamma(before, THRESHOLD))
        after = layer.logits()
        assert ((after[hot] / THRESHOLD - 1).abs() <= 2e-15).all()
        assert torch.equal(after[~hot], before[~hot])
        for parameter, bits in zip((*layer.query, *layer.key), cold, strict=True):
            assert torch.equal(parameter[cold_rows], bits)
        # Both sides carry the same share: sqrt(gamma) each, not gamma on one.
        ratio = layer.query[0].norm() / layer.key[0].norm()
        fresh = Heads(bias)
        gamma = qk_clip_gamma(before, THRESHOLD).sqrt().repeat_interleave(DIMENSION)[:, None]
        expected = (fresh.query[0] * gamma).norm() / (fresh.key[0] * gamma).norm()
        assert ratio == pytest.approx(expected.item(), rel=1e-12)


def check_gamma(gamma: Gamma) -> None:
    largest = torch.tensor([[-5.0, 200.0, THRESHOLD - 0.5], [THRESHOLD, THRESHOLD * 1.5, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.15, 1.0], [1.0, 1 / 1.5, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(gamma(largest, THRESHOLD), expected, rtol=1e-15, atol=0)


def gamma_on_both(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    scale_query_key(query, key, gamma.square())


def gamma_on_the_query(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    scale_query_key(query, [], gamma.square())


def root_on_the_query_only(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    scale_query_key(query, [], gamma)


def one_factor_for_all_heads(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    scale_query_key(query, key, gamma.amin().expand_as(gamma))


def biases_forgotten(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    scale_query_key(query[:1], key[:1], gamma)


def weights_clamped(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    for parameter in (*query, *key):
        parameter.clamp_(-3, 3)


def heads_interleaved(query: list[Tensor], key: list[Tensor], gamma: Tensor) -> None:
    for parameter in (*query, *key):
        parameter.view(DIMENSION, HEADS, -1).mul_(gamma.sqrt()[None, :, None])


def minimum_of_one(largest: Tensor, threshold: float) -> Tensor:
    return (threshold / largest).clamp(max=1)


def inverse(largest: Tensor, threshold: float) -> Tensor:
    return 1 / qk_clip_gamma(largest, threshold)


def at_or_above_three_quarters(largest: Tensor, threshold: float) -> Tensor:
    return torch.where(largest > 0.75 * threshold, 0.75 * threshold / largest, 1.0)


def test_a_hot_head_lands_on_the_threshold_and_other_heads_keep_every_bit() -> None:
    check_scaling(scale_query_key)


def test_only_heads_strictly_above_the_threshold_are_clipped() -> None:
    check_gamma(qk_clip_gamma)


@pytest.mark.parametrize(
    "mutant",
    [
        gamma_on_both,
        gamma_on_the_query,
        root_on_the_query_only,
        one_factor_for_all_heads,
        biases_forgotten,
        weights_clamped,
        heads_interleaved,
    ],
)
def test_the_scaling_check_refuses(mutant: Scale) -> None:
    with pytest.raises(AssertionError):
        check_scaling(mutant)


@pytest.mark.parametrize("mutant", [minimum_of_one, inverse, at_or_above_three_quarters])
def test_the_gamma_check_refuses(mutant: Gamma) -> None:
    with pytest.raises(AssertionError):
        check_gamma(mutant)


def test_a_negative_largest_logit_beside_a_hot_head_stays_finite() -> None:
    query, key = [torch.ones(4, 3)], [torch.ones(4, 3)]
    gamma = qk_clip([(query, key)], torch.tensor([[-3.0, 60.0]]), THRESHOLD)
    assert gamma.tolist() == [[1.0, 0.5]]
    assert torch.equal(query[0][:2], torch.ones(2, 3))
    torch.testing.assert_close(query[0][2:], torch.full((2, 3), math.sqrt(0.5)))


def test_the_layers_agree_with_the_reference() -> None:
    layers = [Heads(bias=False), Heads(bias=False)]
    logits = torch.stack([layer.logits() * factor for layer, factor in zip(layers, (1.0, 0.7), strict=True)])
    expected: list[Tensor] = []
    for layer, row in zip(layers, logits, strict=True):
        for parameter in (layer.query[0], layer.key[0]):
            weight = parameter.clone()
            for head, largest in enumerate(row.tolist()):
                weight = clip_head(weight, head, HEADS, largest, THRESHOLD)
            expected.append(weight)
    qk_clip([(layer.query, layer.key) for layer in layers], logits, THRESHOLD)
    clipped = [parameter for layer in layers for parameter in (layer.query[0], layer.key[0])]
    torch.testing.assert_close(clipped, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_refused_by_layer_and_head(bad: float) -> None:
    logits = torch.zeros(3, 2)
    require_finite(logits)
    logits[2, 1] = bad
    with pytest.raises(NonFiniteLogitsError, match="layer 2, head 1"):
        require_finite(logits)
