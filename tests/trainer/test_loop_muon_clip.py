"""MuonClip with QK-Clip as an optimizer of PyTorch, on models of Hugging Face and on PyTorch's own transformer."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.integrations.attention_layers import attention_layers
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.integrations.optimizer_state import ResumableOptimizer
from trimtab_trainer.optim import (
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    ThresholdPoint,
    parameter_groups,
    separate_projections,
)
from watched_llama import HEADS, STILL, exactly, llama, tokens, whole_matrix


def test_a_head_at_or_below_the_threshold_is_bounded_and_what_is_clipped_has_the_same_bits_either_way() -> None:
    models = llama(), llama()
    expected = whole_matrix(models[0], tokens())
    threshold = float(expected.flatten().sort().values[3:5].mean())
    settings = MuonClipConfig(
        qk_clip_threshold=threshold / 2,
        qk_clip_schedule=(ThresholdPoint(update=1, factor=2.0), ThresholdPoint(update=3, factor=1.0)),
    )
    gated, close = MuonClipOptimizer(models[0], settings), exactly(models[1], settings)
    models[0](input_ids=tokens())
    found = gated.take_logits()
    assert found.record_name == "qk_max_logit_bound"
    assert torch.equal(found.exact, expected > threshold)
    torch.testing.assert_close(found.max_logit[found.exact].double(), expected[found.exact], rtol=2e-5, atol=1e-5)
    assert ((found.max_logit >= expected) & (found.max_logit <= threshold))[~found.exact].all()

    opened: list[int] = []
    for number in range(4):
        for model, optimizer in zip(models, (gated, close), strict=True):
            optimizer.zero_grad()
            model(input_ids=tokens(number), labels=tokens(number)).loss.backward()
            taken = optimizer.take_logits()
            opened += [int(taken.exact.sum())]
            optimizer.agreed_logits = taken.max_logit
            optimizer.step()
            # As a framework does that restores its groups: the threshold is that of the next update.
            optimizer.param_groups[0]["updates"] = optimizer.param_groups[1]["updates"] = number + 1
        assert gated.telemetry is not None
        assert close.telemetry is not None
        assert torch.equal(gated.telemetry.qk_clip_gamma, close.telemetry.qk_clip_gamma)
        assert (gated.telemetry.qk_clip_gamma < 1).any()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert opened[1::2] == [2 * HEADS] * 4
    assert min(opened[::2]) < 2 * HEADS


def test_the_threshold_is_that_of_the_update_which_the_groups_say_is_next() -> None:
    points = (ThresholdPoint(update=1, factor=4.0), ThresholdPoint(update=4, factor=1.0))
    optimizer = MuonClipOptimizer(llama(), MuonClipConfig(qk_clip_threshold=10.0, qk_clip_schedule=points))
    assert optimizer.lowest_threshold == 40.0
    for group in optimizer.param_groups:
        group["updates"] = 2
    assert optimizer.lowest_threshold == 20.0
    assert optimizer.muon_clip.count == 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_hot_heads_of_the_first_layer_meet_the_threshold_on_the_same_batch_and_others_keep_every_bit(
    key_heads: int, bias: bool
) -> None:
    model = llama(key_heads, attention_bias=bias).double()
    model(input_ids=tokens())
    before = whole_matrix(model, tokens())
    threshold = before[0].sort().values[1:3].mean().item()
    optimizer = MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=threshold, **STILL))
    query = model.model.layers[0].self_attn.q_proj.weight.detach().clone().unflatten(0, (HEADS, -1))
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    hot = before[0] > threshold
    after = whole_matrix(model, tokens())[0]
    torch.testing.assert_close(after[hot], torch.full_like(after[hot], threshold), rtol=1e-9, atol=0)
    torch.testing.assert_close(after[~hot], before[0][~hot], rtol=1e-12, atol=0)
    scaled = model.model.layers[0].self_attn.q_proj.weight.unflatten(0, (HEADS, -1))
    assert torch.equal((scaled != query).any(2).any(1), hot)


def test_an_update_is_that_of_muon_clip_with_both_rates_of_the_schedule() -> None:
    theirs, plain = llama(), llama()
    settings = MuonClipConfig(muon_lr=0.02, adamw_lr=0.003, qk_clip_threshold=1.5)
    optimizer = MuonClipOptimizer(theirs, settings)
    schedule = CosineAnnealingLR(optimizer, 7, eta_min=0.001)
    groups = parameter_groups(plain)
    layers = [
        separate_projections(str(number), one.self_attn.q_proj, one.self_attn.k_proj, heads=HEADS, key_heads=2)
        for number, one in enumerate(plain.model.layers)
    ]
    reference = MuonClip(plain.named_parameters(), layers, MuonClipConfig(
        muon_lr=0.02, adamw_lr=0.003, qk_clip_threshold=1.5, groups=groups
    ))  # fmt: skip
    for number in range(4):
        cosine = (1 + math.cos(math.pi * number / 7)) / 2
        rates = [0.001 + (rate - 0.001) * cosine for rate in (0.02, 0.003)]
        reference.set_lr(rates[0] / 0.02, rates[1] / 0.003)
        for model in (theirs, plain):
            model.zero_grad()
            model(input_ids=tokens(number), labels=tokens(number)).loss.backward()
        told = reference.step(whole_matrix(plain, tokens(number)).float())
        optimizer.step()
        schedule.step()
        assert optimizer.telemetry is not None
        assert optimizer.telemetry.count == told.count == number + 1
        assert (told.qk_clip_gamma < 1).any()
    for mine, other in zip(theirs.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_without_a_gradient_nothing_moves_and_no_head_is_clipped() -> None:
    model = llama()
    optimizer = MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=0.1))
    before = copy.deepcopy(model.state_dict())
    model(input_ids=tokens())
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.telemetry is None


def test_a_restored_state_goes_on_as_if_nothing_had_happened_since() -> None:
    model = llama()
    optimizer = MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=1.0))
    schedule = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    # As frameworks do, which put the state where the model is.
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumable = ResumableOptimizer(optimizer, schedule, model)
    state = TrainingState(model, resumable)
    before = {name for name, value in state.flat().items() if isinstance(value, Tensor)}

    def go(first: int, last: int) -> None:
        for number in range(first, last):
            optimizer.zero_grad()
            model(input_ids=tokens(number), labels=tokens(number)).loss.backward()
            optimizer.step()
            schedule.step()
            resumable.count += 1

    go(0, 3)
    saved = copy.deepcopy(state.flat())
    go(3, 6)
    weights, momentum = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    state.replace(saved)
    go(3, 6)
    assert {name for name, value in state.flat().items() if isinstance(value, Tensor)} == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(optimizer.state_dict(), momentum, rtol=0, atol=0)


def test_a_state_of_another_optimizer_or_with_other_copies_is_refused_and_changes_nothing() -> None:
    single = MuonClipOptimizer(llama())
    half = MuonClipOptimizer(llama().bfloat16(), MuonClipConfig(master_weights=True))
    kept = copy.deepcopy(single.state_dict())
    with pytest.raises(InvalidFields, match=r"^master_weights: unknown$"):
        single.load_state_dict(half.state_dict())
    with pytest.raises(InvalidFields, match=r"^master_weights\.\S+: missing; "):
        half.load_state_dict(single.state_dict())
    model = llama()
    other = torch.optim.AdamW(model.parameters())
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    other.step()
    with pytest.raises(InvalidFields, match=r"count: None must be .*; exp_avg: unknown; .*weight: missing"):
        single.load_state_dict(other.state_dict())
    torch.testing.assert_close(single.state_dict(), kept, rtol=0, atol=0)


def test_a_model_whose_elements_are_moved_between_two_steps_is_followed() -> None:
    still, moved = llama(), llama()
    optimizers = [MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=1.0)) for model in (still, moved)]
    for number in range(4):
        # Another name of the same place: frameworks give it to each process, and PyTorch copies for it.
        moved.to(torch.device("cpu", 0))
        for model, optimizer in zip((still, moved), optimizers, strict=True):
            optimizer.zero_grad()
            model(input_ids=tokens(number), labels=tokens(number)).loss.backward()
            optimizer.step()
    before = llama().state_dict()
    for name, value in moved.state_dict().items():
        assert not torch.equal(value, before[name])
        torch.testing.assert_close(value, still.get_parameter(name), rtol=1e-5, atol=1e-6)
    assert optimizers[1].state[moved.lm_head.weight]["adamw_first_moment"].any()


def test_what_is_not_trained_is_left_alone_and_groups_of_ones_own_come_first() -> None:
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    own = ParameterGroup(pattern="*.mlp.*", optimizer="adamw")
    optimizer = MuonClipOptimizer(model, MuonClipConfig(groups=(own,)))
    before = model.model.embed_tokens.weight.clone()
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    assert torch.equal(before, model.model.embed_tokens.weight)
    table = optimizer.routing
    assert "embed_tokens" not in table
    assert "pattern *.mlp.*" in table


def test_pytorchs_transformer_is_watched_and_clipped() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, HEADS, 32, 0.0, batch_first=True)
    model = nn.ModuleDict({"layers": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)})
    optimizer = MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=0.05))
    assert list(attention_layers(model)) == ["layers.layers.0.self_attn", "layers.layers.1.self_attn"]
    model["layers"](torch.randn(2, 5, 16)).square().mean().backward()
    optimizer.step()
    assert optimizer.telemetry is not None
    assert optimizer.telemetry.qk_clip_gamma.shape == (2, HEADS)
    assert (optimizer.telemetry.qk_clip_gamma < 1).any()
