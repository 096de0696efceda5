"""The model: what it promises about losses, determinism, causality, telemetry and dropout."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.max_logits import AttentionTelemetry
from trimtab_trainer.model import Transformer, TransformerConfig
from trimtab_trainer.model.attention import AttentionResult, causal_attention
from trimtab_trainer.model.dropout import keyed_dropout

SHAPE = TransformerConfig(width=32, layers=2, heads=2, sequence=16, vocab_size=64)


def tokens(batch: int = 4, seed: int = 0, length: int = 17) -> Tensor:
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_the_demo_model_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in Transformer(TransformerConfig()).parameters()) == 853_120


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = Transformer(SHAPE, seed=5), Transformer(SHAPE, seed=5), Transformer(SHAPE, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied_head", [False, True])
def test_every_parameter_is_initialised_and_gets_a_gradient(bias: bool, tied_head: bool) -> None:
    model = Transformer(replace(SHAPE, bias=bias, tied_head=tied_head))
    windows = tokens()
    model(windows[:, :-1], windows[:, 1:]).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.abs().max() <= 1, name
        assert parameter.grad is not None, name
        # A constant added to all keys of a query changes no softmax, so key biases have only rounding there.
        assert parameter.grad.abs().max() > (0 if not name.endswith("key.bias") else -1), name


def test_an_untrained_model_knows_nothing() -> None:
    windows = tokens()
    loss = Transformer(SHAPE)(windows[:, :-1], windows[:, 1:]).loss
    assert loss.item() == pytest.approx(math.log(64), abs=0.1)
    assert loss.dtype == torch.float32


def test_losses_per_window_average_to_the_loss_and_do_not_depend_on_company() -> None:
    model, windows = Transformer(SHAPE).double(), tokens()
    single = model(windows[:, :-1], windows[:, 1:], reduction="none").loss
    assert single.shape == (4,)
    torch.testing.assert_close(single.mean(), model(windows[:, :-1], windows[:, 1:]).loss)
    alone = model(windows[2:3, :-1], windows[2:3, 1:], reduction="none").loss
    torch.testing.assert_close(alone, single[2:3], rtol=1e-12, atol=1e-12)


def test_the_loss_is_the_cross_entropy_of_the_logits() -> None:
    model, windows = Transformer(SHAPE).double(), tokens()
    output = model(windows[:, :-1])
    assert output.loss is None
    probabilities = output.logits.log_softmax(-1)
    expected = -probabilities.gather(-1, windows[:, 1:, None]).mean()
    torch.testing.assert_close(model(windows[:, :-1], windows[:, 1:]).loss, expected)


def test_a_token_changes_no_earlier_logit() -> None:
    model, windows = Transformer(SHAPE), tokens(length=16)
    changed = windows.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 64
    before, after = model(windows).logits, model(changed).logits
    torch.testing.assert_close(after[:, :9], before[:, :9])
    assert (after[:, 9:] - before[:, 9:]).abs().amax((0, 2)).min() > 1e-6


def test_positions_matter() -> None:
    model = Transformer(SHAPE).double()
    model.blocks[0].attention.query.weight.data *= 50
    model.blocks[0].attention.key.weight.data *= 50
    windows = tokens(length=4)
    swapped = windows[:, [1, 0, 2, 3]]
    assert (model(windows).logits[:, 3] - model(swapped).logits[:, 3]).abs().max() > 1e-4


def test_rotary_logits_depend_on_distance_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def spy(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> AttentionResult:
        seen.extend((query[0], key[0]))
        return causal_attention(query, key, value, **settings)

    monkeypatch.setattr("trimtab_trainer.model.self_attention.causal_attention", spy)
    Transformer(replace(SHAPE, layers=1)).double()(torch.full((1, 16), 7))
    scores = seen[0] @ seen[1].mT
    for offset in range(-8, 9):
        diagonal = scores.diagonal(offset, -2, -1)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal), rtol=1e-5, atol=1e-8)
    assert (scores[:, 8, 8] - scores[:, 8, 0]).abs().min() > 1e-6


def test_gating_and_exactness_change_no_gradient_bit() -> None:
    model, windows = Transformer(SHAPE), tokens()
    gradients: list[list[Tensor]] = []
    for settings in ({}, {"exact": True}, {"qk_threshold": 1e-3}):
        model.zero_grad()
        model(windows[:, :-1], windows[:, 1:], **settings).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_telemetry_calls_a_bound_a_bound() -> None:
    model, windows = Transformer(SHAPE), tokens()
    bound = model(windows[:, :-1], windows[:, 1:]).attention
    exact = model(windows[:, :-1], windows[:, 1:], exact=True).attention
    assert (bound.record_name, exact.record_name) == ("qk_max_logit_bound", "qk_max_logit")
    assert bound.max_logit.shape == exact.max_logit.shape == (2, 2)
    assert (bound.max_logit >= exact.max_logit).all()
    mixed = AttentionTelemetry(bound.max_logit, torch.tensor([[True, True], [True, False]]))
    assert mixed.record_name == "qk_max_logit_bound"


@pytest.mark.parametrize("config", [SHAPE, TransformerConfig(vocab_size=64)])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("side", ["query", "key"])
def test_a_flipped_exponent_bit_in_a_query_or_key_weight_is_not_finite_though_the_loss_is(
    side: str, exact: bool, config: TransformerConfig
) -> None:
    model, windows = Transformer(config), tokens(length=config.sequence + 1)
    weight = model.get_parameter(f"blocks.0.attention.{side}.weight")
    weight.data.view(torch.int32)[3, 5] ^= 1 << 30
    output = model(windows[:, :-1], windows[:, 1:], exact=exact, qk_threshold=30.0)
    assert output.loss.isfinite()
    assert (~output.attention.max_logit.isfinite()).nonzero().tolist() == [[0, 0]]


def test_too_long_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens: a window of 17 is longer than sequence \(16\)"):
        Transformer(SHAPE)(tokens())


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(InvalidFields) as caught:
        TransformerConfig(vocab_size=1, width=12, heads=4, layers=0, dropout=1.0, norm_epsilon=0.0)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "vocab_size", "layers", "dropout", "norm_epsilon", "width",
    ]  # fmt: skip


def drop(x: Tensor, ids: list[int], *, seed: int = 1, site: int = 0, probability: float = 0.25) -> Tensor:
    return keyed_dropout(x, probability=probability, seed=seed, sample_ids=torch.tensor(ids), site=site)


def test_a_sample_meets_the_same_mask_in_any_batch() -> None:
    x = torch.ones(3, 8, 16)
    together = drop(x, [10, 11, 12])
    apart = torch.cat([drop(x[:1], [12]), drop(x[:2], [10, 11])])
    assert torch.equal(apart, together[[2, 0, 1]])


def test_masks_differ_by_sample_seed_and_site() -> None:
    x = torch.ones(1, 64, 64)
    masks = [drop(x, [1]), drop(x, [2]), drop(x, [1], seed=2), drop(x, [1], site=1), drop(x, [1 << 40])]
    for first in range(len(masks)):
        for second in range(first):
            agreement = (masks[first] == masks[second]).double().mean().item()
            assert agreement == pytest.approx(0.25**2 + 0.75**2, abs=0.03)


def test_dropout_drops_the_asked_share_and_keeps_the_mean() -> None:
    dropped = drop(torch.ones(4, 128, 128), [0, 1, 2, 3], probability=0.3)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.015)
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]


def test_training_with_dropout_is_keyed_and_evaluation_is_not_dropped() -> None:
    model, windows, ids = Transformer(replace(SHAPE, dropout=0.2)), tokens(), torch.arange(4)

    def losses(sample_ids: Tensor | None) -> Tensor:
        with torch.no_grad():
            return model(windows[:, :-1], windows[:, 1:], reduction="none", sample_ids=sample_ids).loss

    with pytest.raises(ValueError, match="sample_ids"):
        losses(None)
    before = torch.get_rng_state()
    first = losses(ids)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(losses(ids), first)
    assert not torch.equal(losses(ids + 1), first)
    plain = copy.deepcopy(model).eval()
    with torch.no_grad():
        evaluated = plain(windows[:, :-1], windows[:, 1:], reduction="none").loss
    undropped = Transformer(SHAPE)(windows[:, :-1], windows[:, 1:], reduction="none").loss
    assert torch.equal(evaluated, undropped)
    assert not torch.equal(first, evaluated)
