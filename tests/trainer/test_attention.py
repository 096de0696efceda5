"""Largest logits: exact where they matter, honest bounds elsewhere; gradients untouched by the method."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trimtab_trainer.max_logits import gate
from trimtab_trainer.model import attention
from trimtab_trainer.model.attention import AttentionResult, causal_attention, full_product_max_logit
from trimtab_trainer.model.kernels import Kernel, available_kernels
from trimtab_trainer.optim.muonclip_reference import largest_logits

Attend = Callable[[Tensor, Tensor, Tensor, float], AttentionResult]

SHAPES = [(2, 3, 16, 8), (1, 2, 37, 16), (3, 4, 130, 32), (1, 1, 1, 4), (2, 2, 257, 8)]


def heads(shape: tuple[int, ...], *gains: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Query, key and value [batch, heads, tokens, dimension]; the queries of head h are `gains[h]` times larger."""
    batch, count, tokens, dimension = shape
    generator = torch.Generator().manual_seed(sum(shape))
    tensors = [torch.randn(batch, tokens, count, dimension, generator=generator).transpose(1, 2) for _ in range(3)]
    gain = torch.tensor([*gains, *[1.0] * (count - len(gains))])
    return tuple((t * (gain[:, None, None] if i == 0 else 1.0)).to(dtype) for i, t in enumerate(tensors))


def test_this_pytorch_has_the_kernel_that_returns_the_log_sum_exp() -> None:
    assert Kernel.CPU_FLASH in available_kernels()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_full_product_is_exact(shape: tuple[int, ...]) -> None:
    query, key, _ = heads(shape)
    expected = largest_logits(query, key)
    torch.testing.assert_close(full_product_max_logit(query, key).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_future_is_not_seen() -> None:
    query = torch.zeros(1, 1, 3, 4)
    query[..., 0] = 1
    key = torch.zeros(1, 1, 3, 4)
    key[0, 0, :, 0] = torch.tensor([1.0, -8.0, 40.0])
    query[0, 0, 2, 0] = -1
    result = causal_attention(query, key, key, threshold=0.1, exact=False)
    assert result.exact.tolist() == [True]
    # Row 2 sees -1/2, 4 and -20; rows 0 and 1 see 1/2 and must not see 20.
    assert result.max_logit.tolist() == [4.0]
    assert full_product_max_logit(query, key).tolist() == [4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fraction", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_heads_above_the_threshold_are_exact_and_the_others_bounded(
    shape: tuple[int, ...], fraction: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "FULL_PRODUCT_FRACTION", fraction)
    query, key, value = heads(shape, dtype=dtype)
    query[:, 0] = 10 * key[:, 0]
    truth = largest_logits(query, key)
    threshold = truth[0].item() * 0.6
    result = causal_attention(query, key, value, threshold=threshold, exact=False)
    assert result.exact[truth > threshold].all()
    assert result.exact[0]
    torch.testing.assert_close(result.max_logit[result.exact].double(), truth[result.exact], rtol=2e-6, atol=2e-5)
    assert (result.max_logit.double() >= truth - 1e-4 * truth.abs() - 1e-4).all()
    assert (result.max_logit[~result.exact] <= threshold).all()


def check_maxima(attend: Attend) -> None:
    """Soft and hot heads: where the largest logit exceeds the threshold it is exact, elsewhere a bound below it."""
    for gain, share in ((1.0, 0.2), (3.0, 0.5), (20.0, 0.6)):
        query, key, value = heads((2, 4, 64, 16), gain, 1.5 * gain, -gain)
        key[:, :, -1] *= 4  # Only the last row may see it.
        truth = largest_logits(query, key)
        threshold = share * truth.max().item()
        result = attend(query, key, value, threshold)
        assert result.exact[truth > threshold].all()
        torch.testing.assert_close(result.max_logit[result.exact].double(), truth[result.exact], rtol=1e-6, atol=1e-5)
        assert (result.max_logit[~result.exact] >= truth[~result.exact]).all()
        assert (result.max_logit[~result.exact] <= threshold).all()


def gated(query: Tensor, key: Tensor, value: Tensor, threshold: float) -> AttentionResult:
    return causal_attention(query, key, value, threshold=threshold, exact=False)


def log_sum_exp_for_the_maximum(query: Tensor, key: Tensor, value: Tensor, threshold: float) -> AttentionResult:
    output, log_sum_exp = attention.attention_with_log_sum_exp(query, key, value)
    largest = log_sum_exp.amax((0, 2))
    return AttentionResult(output, largest, largest > threshold)


def row_of_the_largest_log_sum_exp_only(query: Tensor, key: Tensor, value: Tensor, threshold: float) -> AttentionResult:
    output, log_sum_exp = attention.attention_with_log_sum_exp(query, key, value)
    scores = (query @ key.mT / 4).masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -math.inf).amax(-1)
    chosen = log_sum_exp == log_sum_exp.amax((0, 2), keepdim=True)
    return AttentionResult(output, scores.masked_fill(~chosen, -math.inf).amax((0, 2)), torch.ones(4, dtype=torch.bool))


def from_scores(change: Callable[[Tensor], Tensor], masked: bool = True) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor, threshold: float) -> AttentionResult:
        scores = change(query @ key.mT / 4)
        if masked:
            scores = scores.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -math.inf)
        return AttentionResult(value, scores.amax((0, 2, 3)), torch.ones(4, dtype=torch.bool))

    return attend


def never_exact(query: Tensor, key: Tensor, value: Tensor, threshold: float) -> AttentionResult:
    return causal_attention(query, key, value, threshold=math.inf, exact=False)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 1.0])
def test_maxima_are_exact_where_they_matter(fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FULL_PRODUCT_FRACTION", fraction)
    check_maxima(gated)
    check_maxima(from_scores(lambda scores: scores))


@pytest.mark.parametrize(
    "mutant",
    [
        log_sum_exp_for_the_maximum,
        row_of_the_largest_log_sum_exp_only,
        never_exact,
        from_scores(lambda scores: scores, masked=False),
        from_scores(torch.abs),
        from_scores(lambda scores: scores * 4),
        from_scores(lambda scores: scores / 4),
    ],
)
def test_the_maxima_check_refuses(mutant: Attend) -> None:
    with pytest.raises(AssertionError):
        check_maxima(mutant)


def test_a_log_sum_exp_rounded_below_the_maximum_still_opens_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = heads((2, 3, 64, 16), 20.0)
    truth = largest_logits(query, key)[0].item()
    kernel = attention.attention_with_log_sum_exp

    def rounded(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        output, log_sum_exp = kernel(*tensors)
        return output, log_sum_exp.clamp(max=truth * (1 - 5e-5))

    monkeypatch.setattr(attention, "attention_with_log_sum_exp", rounded)
    result = causal_attention(query, key, value, threshold=truth * (1 - 1e-6), exact=False)
    assert result.exact[0]
    assert result.max_logit[0].item() == pytest.approx(truth, rel=1e-6)


def test_a_head_exactly_at_the_threshold_is_exact() -> None:
    query, key, value = heads((2, 3, 64, 16), 20.0)
    threshold = largest_logits(query, key).max().item()
    result = causal_attention(query, key, value, threshold=threshold, exact=False)
    assert result.exact[0]


def test_without_hot_heads_bounds_exceed_the_maximum_by_at_most_the_logarithm_of_the_length() -> None:
    query, key, value = heads((2, 3, 64, 16))
    result = causal_attention(query, key, value, threshold=1e6, exact=False)
    excess = result.max_logit.double() - largest_logits(query, key)
    assert not result.exact.any()
    assert (excess > 0).all()
    assert (excess <= math.log(64)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_means_every_head(shape: tuple[int, ...]) -> None:
    query, key, value = heads(shape)
    result = causal_attention(query, key, value, threshold=math.inf, exact=True)
    assert result.exact.all()
    torch.testing.assert_close(result.max_logit.double(), largest_logits(query, key), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_bit_equal_to_plain_attention(
    shape: tuple[int, ...], dtype: torch.dtype, exact: bool
) -> None:
    def run(plain: bool) -> list[Tensor]:
        inputs = [tensor.detach().requires_grad_() for tensor in heads(shape, 30.0, dtype=dtype)]
        if plain:
            output = F.scaled_dot_product_attention(*inputs, is_causal=True)
        else:
            output = causal_attention(*inputs, threshold=10.0, exact=exact).output
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        (output * weights).sum().backward()
        return [output, *(tensor.grad for tensor in inputs)]

    for ours, plain in zip(run(plain=False), run(plain=True), strict=True):
        assert torch.equal(ours, plain)


def test_without_the_kernel_every_head_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = heads((2, 3, 64, 16))
    with_kernel = causal_attention(query, key, value, threshold=math.inf, exact=True)
    monkeypatch.setattr(attention, "available_kernels", lambda: frozenset({Kernel.PLAIN}))
    without = causal_attention(query, key, value, threshold=math.inf, exact=False)
    assert without.exact.all()
    assert torch.equal(without.max_logit, with_kernel.max_logit)
    assert torch.equal(without.output, with_kernel.output)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("exact", [False, True])
def test_a_query_that_is_not_finite_leaves_its_head_not_finite(bad: float, exact: bool) -> None:
    query, key, value = heads((2, 3, 64, 16))
    query[1, 2, 5, 3] = bad
    result = causal_attention(query, key, value, threshold=10.0, exact=exact)
    assert result.max_logit.isfinite().tolist() == [True, True, False]


@pytest.mark.parametrize("exact", [False, True])
def test_logits_that_overflow_leave_their_head_infinite(exact: bool) -> None:
    query, key, value = heads((2, 3, 64, 16))
    query[:, 1] *= 1e30
    key[:, 1] *= 1e30
    result = causal_attention(query, key, value, threshold=10.0, exact=exact)
    assert result.max_logit.isfinite().tolist() == [True, False, True]
    # Not minus infinity: a maximum over ranks would lose that.
    assert result.max_logit[1] == math.inf


def test_the_largest_logit_carries_no_gradient() -> None:
    inputs = [tensor.requires_grad_() for tensor in heads((1, 2, 16, 8))]
    for exact in (False, True):
        assert not causal_attention(*inputs, threshold=1.0, exact=exact).max_logit.requires_grad


@pytest.mark.parametrize(("exact", "threshold"), [(True, math.inf), (False, 1.0)])
def test_what_is_measured_behind_all_layers_is_not_rounded_by_the_autocast_around_them(
    exact: bool, threshold: float
) -> None:
    query, key = (torch.randn(2, 4, 40, 16, generator=torch.Generator().manual_seed(7)) * 5 for _ in range(2))
    query, key = query.bfloat16(), key.bfloat16()
    at_once, later = (
        causal_attention(query, key, key, threshold=threshold, exact=exact, postponed=postponed)
        for postponed in (False, True)
    )
    with torch.autocast("cpu", torch.bfloat16):
        found = attention.measured_together([later], threshold, exact=exact)
    assert at_once.exact.all()
    assert torch.equal(found.max_logit[0], at_once.max_logit)
    assert not torch.equal(found.max_logit, found.max_logit.bfloat16().float())
