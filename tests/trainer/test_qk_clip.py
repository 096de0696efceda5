"""QK-Clip brings a hot head exactly to the threshold and leaves every other head's bits alone.

The oracle is a forward pass in float64 before and after, on the same input, for every kind of attention; the mutants
are recipes that circulate, and the same check must refuse each of them.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from trimtab_trainer.head_parameters import AttentionHeads, AttentionKind, HeadParameter, LogitPart
from trimtab_trainer.optim.config import GroupedQueryRule
from trimtab_trainer.optim.muonclip_reference import clip_head, largest_logits
from trimtab_trainer.optim.qk_clip import NonFiniteLogitsError, qk_clip, qk_clip_gamma, require_finite, scale_heads

HEADS, GROUPS, DIMENSION, ROTARY, WIDTH = 4, 2, 6, 4, 24
THRESHOLD = 30.0
GAINS = (0.1, 3.0, 2.0, 0.15)
"""Of the queries of the four heads: the two in the middle are hot."""

SIDES: dict[AttentionKind, dict[LogitPart, tuple[int, int]]] = {
    "multiHead": {LogitPart.QUERY: (HEADS, DIMENSION), LogitPart.KEY: (HEADS, DIMENSION)},
    "groupedQuery": {LogitPart.QUERY: (HEADS, DIMENSION), LogitPart.SHARED_KEY: (GROUPS, DIMENSION)},
    "latent": {
        LogitPart.CONTENT_QUERY: (HEADS, DIMENSION),
        LogitPart.CONTENT_KEY: (HEADS, DIMENSION),
        LogitPart.ROTARY_QUERY: (HEADS, ROTARY),
        LogitPart.SHARED_KEY: (1, ROTARY),
    },
}
"""Of each kind the parts of a logit: number of heads and rows of each."""

KINDS: list[tuple[AttentionKind, GroupedQueryRule]] = [
    ("multiHead", "query"),
    ("latent", "query"),
    ("groupedQuery", "query"),
    ("groupedQuery", "balanced"),
]
"""What leaves innocent heads alone."""

Scale = Callable[[AttentionHeads, Tensor, GroupedQueryRule], None]
Gamma = Callable[[Tensor, float], Tensor]


def gaussian(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Layer:
    """What makes the logits of one layer, in float64; two of its four heads are hot."""

    def __init__(self, kind: AttentionKind, *, bias: bool) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = gaussian(generator, 3, 10, WIDTH)
        self.sides = SIDES[kind]
        parameters: list[HeadParameter] = []
        for part, (heads, rows) in self.sides.items():
            # Latent logits are a sum of two products, whose factors must not make up for each other.
            gains = torch.tensor(GAINS if heads == HEADS and "uery" in part else [1.0] * heads, dtype=torch.float64)
            for suffix, shape in (("weight", (heads * rows, WIDTH)), ("bias", (heads * rows,)))[: 1 + bias]:
                values = gaussian(generator, *shape).unflatten(0, (heads, rows))
                values = values * gains.view(-1, *[1] * (values.ndim - 1))
                parameters.append(HeadParameter(f"{part}.{suffix}", values.flatten(0, 1), part, heads))
        self.heads = AttentionHeads(kind, HEADS, tuple(parameters))

    def logits(self) -> Tensor:
        """The largest logit of each head [heads]."""
        made = {part: self._made(part) for part in self.sides}
        if LogitPart.CONTENT_QUERY in made:
            query = torch.cat((made[LogitPart.CONTENT_QUERY], made[LogitPart.ROTARY_QUERY]), -1)
            shared = made[LogitPart.SHARED_KEY].expand(-1, HEADS, -1, -1)
            return largest_logits(query, torch.cat((made[LogitPart.CONTENT_KEY], shared), -1))
        key = made.get(LogitPart.KEY)
        if key is None:
            key = made[LogitPart.SHARED_KEY].repeat_interleave(HEADS // GROUPS, dim=1)
        return largest_logits(made[LogitPart.QUERY], key)

    def _made(self, part: LogitPart) -> Tensor:
        parameters = [each.parameter for each in self.heads.of(part)]
        return torch.nn.functional.linear(self.inputs, *parameters).unflatten(-1, self.sides[part]).transpose(1, 2)

    def bits(self) -> list[Tensor]:
        return [each.parameter.clone() for each in self.heads.parameters]


def check_scaling(scale: Scale, kind: AttentionKind, rule: GroupedQueryRule) -> None:
    for bias in (False, True):
        layer, fresh = Layer(kind, bias=bias), Layer(kind, bias=bias)
        before = layer.logits()
        hot = before > THRESHOLD
        assert hot.tolist() == [False, True, True, False]
        gamma = qk_clip_gamma(before, THRESHOLD)
        scale(layer.heads, gamma, rule)
        after = layer.logits()
        assert ((after[hot] / THRESHOLD - 1).abs() <= 4e-15).all()
        if rule == "balanced":  # Its factors on innocent heads multiply to 1 up to rounding.
            torch.testing.assert_close(after[~hot], before[~hot], rtol=1e-14, atol=0)
        else:
            assert torch.equal(after[~hot], before[~hot])
        for changed, original in zip(layer.heads.parameters, fresh.heads.parameters, strict=True):
            blocks, kept = (each.parameter.unflatten(0, (each.heads, -1)) for each in (changed, original))
            if changed.part is LogitPart.SHARED_KEY and rule != "balanced":
                assert torch.equal(blocks, kept), "what other heads use must keep every bit"
            if changed.heads == HEADS and rule != "balanced":
                assert torch.equal(blocks[~hot], kept[~hot])
            if changed.part in {LogitPart.QUERY, LogitPart.KEY} and kind == "multiHead":
                # Both sides carry the same share: the root of gamma each, not gamma on one.
                torch.testing.assert_close(
                    blocks, kept * gamma.sqrt().view(-1, *[1] * (kept.ndim - 1)), rtol=1e-15, atol=0
                )


def check_gamma(gamma: Gamma) -> None:
    largest = torch.tensor([[-5.0, 200.0, THRESHOLD - 0.5], [THRESHOLD, THRESHOLD * 1.5, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.15, 1.0], [1.0, 1 / 1.5, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(gamma(largest, THRESHOLD), expected, rtol=1e-15, atol=0)


def renamed(layer: AttentionHeads, names: dict[LogitPart, LogitPart]) -> AttentionHeads:
    return replace(
        layer, parameters=tuple(replace(each, part=names.get(each.part, each.part)) for each in layer.parameters)
    )


def gamma_on_everything(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    scale_heads(layer, gamma.square(), rule)


def root_of_gamma_on_everything(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    scale_heads(layer, gamma.sqrt(), rule)


def root_on_the_rotary_query(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    scale_heads(renamed(layer, {LogitPart.ROTARY_QUERY: LogitPart.CONTENT_QUERY}), gamma, rule)


def shared_key_scaled(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    scale_heads(layer, gamma, rule)
    for each in layer.of(LogitPart.SHARED_KEY):
        each.parameter.mul_(gamma.amin().sqrt())


def one_factor_for_all_heads(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    scale_heads(layer, gamma.amin().expand_as(gamma), rule)


def biases_forgotten(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    scale_heads(replace(layer, parameters=tuple(p for p in layer.parameters if p.parameter.ndim == 2)), gamma, rule)


def weights_clamped(layer: AttentionHeads, _gamma: Tensor, _rule: GroupedQueryRule) -> None:
    for each in layer.parameters:
        each.parameter.clamp_(-3, 3)


def heads_interleaved(layer: AttentionHeads, gamma: Tensor, _rule: GroupedQueryRule) -> None:
    for each in layer.parameters:
        if each.heads == HEADS:
            each.parameter.view(-1, HEADS, *each.parameter.shape[1:]).mul_(
                gamma.sqrt().view(1, -1, *[1] * (each.parameter.ndim - 1))
            )


def keys_forgotten(layer: AttentionHeads, gamma: Tensor, rule: GroupedQueryRule) -> None:
    keys = {LogitPart.KEY, LogitPart.CONTENT_KEY}
    scale_heads(replace(layer, parameters=tuple(p for p in layer.parameters if p.part not in keys)), gamma, rule)


def whole_group(layer: AttentionHeads, gamma: Tensor, _rule: GroupedQueryRule) -> None:
    scale_heads(layer, gamma, "group")


def roots_in_the_group(layer: AttentionHeads, gamma: Tensor, _rule: GroupedQueryRule) -> None:
    scale_heads(layer, gamma, "roots")


def minimum_of_one(largest: Tensor, threshold: float) -> Tensor:
    return (threshold / largest).clamp(max=1)


def inverse(largest: Tensor, threshold: float) -> Tensor:
    return 1 / qk_clip_gamma(largest, threshold)


def at_or_above_three_quarters(largest: Tensor, threshold: float) -> Tensor:
    return torch.where(largest > 0.75 * threshold, 0.75 * threshold / largest, 1.0)


@pytest.mark.parametrize(("kind", "rule"), KINDS)
def test_a_hot_head_lands_on_the_threshold_and_other_heads_keep_every_bit(
    kind: AttentionKind, rule: GroupedQueryRule
) -> None:
    check_scaling(scale_heads, kind, rule)


def test_only_heads_strictly_above_the_threshold_are_clipped() -> None:
    check_gamma(qk_clip_gamma)


@pytest.mark.parametrize(
    ("kind", "mutant"),
    [
        ("multiHead", gamma_on_everything),
        ("multiHead", root_of_gamma_on_everything),
        ("multiHead", keys_forgotten),
        ("multiHead", one_factor_for_all_heads),
        ("multiHead", biases_forgotten),
        ("multiHead", weights_clamped),
        ("multiHead", heads_interleaved),
        ("latent", gamma_on_everything),
        ("latent", root_on_the_rotary_query),
        ("latent", shared_key_scaled),
        ("latent", keys_forgotten),
        ("latent", one_factor_for_all_heads),
        ("latent", biases_forgotten),
        ("latent", weights_clamped),
        ("groupedQuery", gamma_on_everything),
        ("groupedQuery", root_of_gamma_on_everything),
        ("groupedQuery", shared_key_scaled),
        ("groupedQuery", whole_group),
        ("groupedQuery", roots_in_the_group),
        ("groupedQuery", biases_forgotten),
        ("groupedQuery", weights_clamped),
    ],
)
def test_the_scaling_check_refuses(kind: AttentionKind, mutant: Scale) -> None:
    with pytest.raises(AssertionError):
        check_scaling(mutant, kind, "query")


@pytest.mark.parametrize("mutant", [minimum_of_one, inverse, at_or_above_three_quarters])
def test_the_gamma_check_refuses(mutant: Gamma) -> None:
    with pytest.raises(AssertionError):
        check_gamma(mutant)


@pytest.mark.parametrize("rule", ["query", "balanced", "roots", "group"])
def test_the_rules_for_grouped_queries_share_gamma_out_as_documented(rule: GroupedQueryRule) -> None:
    gamma = torch.tensor([1.0, 0.25, 0.64, 0.64], dtype=torch.float64)
    layer = Layer("groupedQuery", bias=False).heads
    before = [each.parameter.clone() for each in layer.parameters]
    scale_heads(layer, gamma, rule)
    query, key = (
        (changed.parameter / original).unflatten(0, (changed.heads, -1)).mean((1, 2)).tolist()
        for changed, original in zip(layer.parameters, before, strict=True)
    )
    expected = {
        "query": ([1.0, 0.25, 0.64, 0.64], [1.0, 1.0]),
        "balanced": ([2.0, 0.5, 0.8, 0.8], [0.5, 0.8]),
        "roots": ([1.0, 0.5, 0.8, 0.8], [0.5, 0.8]),
        "group": ([0.5, 0.5, 0.8, 0.8], [0.5, 0.8]),
    }[rule]
    assert query == pytest.approx(expected[0])
    assert key == pytest.approx(expected[1])


@pytest.mark.parametrize("rule", ["roots", "group"])
def test_rules_that_shrink_innocent_heads_still_bring_hot_heads_down(rule: GroupedQueryRule) -> None:
    layer = Layer("groupedQuery", bias=True)
    before = layer.logits()
    scale_heads(layer.heads, qk_clip_gamma(before, THRESHOLD), rule)
    assert (layer.logits() <= THRESHOLD * (1 + 1e-14)).all()
    assert (layer.logits()[before <= THRESHOLD] < before[before <= THRESHOLD]).any()


def test_a_negative_largest_logit_beside_a_hot_head_stays_finite() -> None:
    query, key = torch.ones(4, 3), torch.ones(4, 3)
    layer = AttentionHeads(
        "multiHead",
        2,
        (HeadParameter("q", query, LogitPart.QUERY, 2), HeadParameter("k", key, LogitPart.KEY, 2)),
    )
    gamma = qk_clip([layer], torch.tensor([[-3.0, 60.0]]), [THRESHOLD])
    assert gamma.tolist() == [[1.0, 0.5]]
    assert torch.equal(query[:2], torch.ones(2, 3))
    torch.testing.assert_close(query[2:], torch.full((2, 3), math.sqrt(0.5)))


def test_each_layer_is_clipped_at_its_own_threshold_as_the_reference_does() -> None:
    layers = [Layer("multiHead", bias=False), Layer("multiHead", bias=False)]
    logits, thresholds = torch.stack([layer.logits() for layer in layers]), (THRESHOLD, 2 * THRESHOLD)
    expected: list[Tensor] = []
    for layer, row, threshold in zip(layers, logits, thresholds, strict=True):
        for weight in layer.bits():
            for head, largest in enumerate(row.tolist()):
                weight = clip_head(weight, head, HEADS, largest, threshold)  # noqa: PLW2901
            expected.append(weight)
    qk_clip([layer.heads for layer in layers], logits, thresholds)
    clipped = [parameter for layer in layers for parameter in layer.bits()]
    torch.testing.assert_close(clipped, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_refused_by_layer_and_head(bad: float) -> None:
    logits = torch.zeros(3, 2)
    require_finite(logits)
    logits[2, 1] = bad
    with pytest.raises(NonFiniteLogitsError, match="layer 2, head 1"):
        require_finite(logits)


@pytest.mark.parametrize("bad", [1e36, -1e36, 2.0**24 * 1.01])
def test_a_logit_that_only_a_fault_makes_scales_no_head_away(bad: float) -> None:
    logits = torch.full((3, 2), 2.0**24)
    require_finite(logits)
    logits[1, 0] = bad
    with pytest.raises(NonFiniteLogitsError, match="at layer 1, head 0, beyond ±16777216"):
        require_finite(logits)
