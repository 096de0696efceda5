"""The whole optimizer: against the float64 reference, its routing, its state and its refusals."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.model import Transformer, TransformerConfig
from trimtab_trainer.optim import MuonClip, MuonClipConfig, NonFiniteLogitsError
from trimtab_trainer.optim.adamw import AdamW
from trimtab_trainer.optim.coefficients import QUINTIC
from trimtab_trainer.optim.muonclip_reference import (
    MatrixState,
    OtherState,
    adamw_step,
    clip_head,
    muon_step,
)
from trimtab_trainer.optim.routing import routing_table
from trimtab_trainer.optim.weights import Weight

SHAPE = TransformerConfig(width=16, layers=2, heads=2, sequence=12, vocab_size=32, bias=True)
EXACT = MuonClipConfig(newton_schulz_dtype="float64", qk_clip_threshold=0.015)


def tokens(seed: int) -> Tensor:
    return torch.randint(0, 32, (3, 13), generator=torch.Generator().manual_seed(seed))


def forward_backward(model: Transformer, seed: int) -> Tensor:
    model.zero_grad()
    windows = tokens(seed)
    output = model(windows[:, :-1], windows[:, 1:], exact=True)
    output.loss.backward()
    return output.attention.max_logit


def optimizer_of(model: Transformer, config: MuonClipConfig = EXACT) -> MuonClip:
    return MuonClip(model.named_parameters(), model.attention_heads(), config)


def train(model: Transformer, optimizer: MuonClip, first: int, last: int) -> None:
    for seed in range(first, last):
        optimizer.step(forward_backward(model, seed))


def reference_steps(
    model: Transformer, config: MuonClipConfig, gradients: list[dict[str, Tensor]], logits: list[Tensor]
) -> dict[str, Tensor]:
    """Apply the reference to given gradients and logits, starting from the parameters of `model`."""
    hidden = {name for name, p in model.named_parameters() if name.startswith("blocks") and p.ndim == 2}
    states: dict[str, Any] = {
        name: MatrixState(p.detach().clone(), torch.zeros_like(p))
        if name in hidden
        else OtherState(p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p))
        for name, p in model.named_parameters()
    }
    for count, (gradient, largest) in enumerate(zip(gradients, logits, strict=True), start=1):
        for name, state in states.items():
            if name in hidden:
                states[name] = muon_step(state, gradient[name], config.muon_lr, config, QUINTIC)
            else:
                states[name] = adamw_step(state, gradient[name], config.adamw_lr, count, config)
        for layer, row in enumerate(largest.tolist()):
            for head, value in enumerate(row):
                for side in ("query.weight", "query.bias", "key.weight", "key.bias"):
                    name = f"blocks.{layer}.attention.{side}"
                    weight = clip_head(states[name].weight, head, 2, value, config.qk_clip_threshold)
                    states[name] = replace(states[name], weight=weight)
    return {name: state.weight for name, state in states.items()}


@pytest.mark.parametrize("nesterov", [False, True])
def test_four_steps_equal_the_reference(nesterov: bool) -> None:
    config = replace(EXACT, nesterov=nesterov)
    model = Transformer(SHAPE, seed=1).double()
    start = copy.deepcopy(model)
    optimizer = optimizer_of(model, config)
    gradients: list[dict[str, Tensor]] = []
    logits: list[Tensor] = []
    gammas: list[Tensor] = []
    for seed in range(4):
        logits.append(forward_backward(model, seed))
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        gammas.append(optimizer.step(logits[-1]).qk_clip_gamma)
    assert 0 < (torch.stack(gammas) < 1).sum() < 16, "the threshold must clip some heads and spare others"
    expected = reference_steps(start, config, gradients, logits)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-9, atol=1e-12, msg=name)


def test_single_precision_stays_near_the_reference() -> None:
    config = MuonClipConfig(qk_clip_threshold=0.015)
    model = Transformer(SHAPE, seed=1)
    start = copy.deepcopy(model).double()
    optimizer = optimizer_of(model, config)
    logits = [forward_backward(model, 0)]
    gradients = [{name: p.grad.double() for name, p in model.named_parameters()}]
    optimizer.step(logits[0])
    expected = reference_steps(start, config, gradients, logits)
    initial = dict(start.named_parameters())
    for name, parameter in model.named_parameters():
        step = (expected[name] - initial[name]).norm()
        # Key biases get no gradient (the softmax ignores them), so AdamW normalises pure rounding there.
        if not name.endswith("key.bias"):
            assert (parameter - expected[name]).norm() <= 1e-3 * step, name


def test_a_clipped_head_meets_the_threshold_on_the_same_batch() -> None:
    config = replace(EXACT, muon_lr=1e-300, adamw_lr=1e-300)
    model = Transformer(replace(SHAPE, layers=1), seed=1).double()
    logits = forward_backward(model, 0)
    threshold = logits.mean().item()
    optimizer_of(model, replace(config, qk_clip_threshold=threshold)).step(logits)
    after = forward_backward(model, 0)
    hot = logits > threshold
    assert hot.sum() == 1
    assert ((after[hot] / threshold - 1).abs() < 1e-13).all()
    assert torch.equal(after[~hot], logits[~hot])


def test_embeddings_head_gains_and_biases_go_to_adamw_and_hidden_matrices_to_muon() -> None:
    routes = {route.name: route.optimizer for route in optimizer_of(Transformer(SHAPE)).routes}
    assert {name for name, kind in routes.items() if kind == "muon"} == {
        f"blocks.{layer}.{matrix}.weight"
        for layer in range(2)
        for matrix in ("attention.query", "attention.key", "attention.value", "attention.out", "up", "down")
    }
    assert {"embedding.weight", "head.weight", "norm.weight", "blocks.0.up.bias"} <= {
        name for name, kind in routes.items() if kind == "adamw"
    }


def test_the_routing_table_has_one_line_per_parameter() -> None:
    model = Transformer(SHAPE)
    lines = routing_table(optimizer_of(model).routes).splitlines()
    assert len(lines) == len(list(model.parameters()))
    assert lines[0].split() == ["embedding.weight", "32x16", "adamw", "looks", "tokens", "up"]
    assert any(line.split()[:3] == ["blocks.0.up.weight", "64x16", "muon"] for line in lines)


def test_a_tied_head_is_updated_once_by_adamw() -> None:
    model = Transformer(replace(SHAPE, tied_head=True))
    names = [route.name for route in optimizer_of(model).routes if "head" in route.name or "embedding" in route.name]
    assert names == ["embedding.weight"]


def test_half_precision_masters_are_refused_by_name() -> None:
    with pytest.raises(InvalidFields, match=r"embedding\.weight: torch\.bfloat16 must be torch\.float32"):
        optimizer_of(Transformer(SHAPE).bfloat16())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_stops_before_anything_changes(bad: float) -> None:
    model = Transformer(SHAPE)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 2)
    logits = forward_backward(model, 2)
    logits[1, 0] = bad
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(NonFiniteLogitsError):
        optimizer.step(logits)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict(), state, rtol=0, atol=0)


def test_a_restored_run_continues_bit_for_bit() -> None:
    model = Transformer(SHAPE)
    optimizer = optimizer_of(model, MuonClipConfig(qk_clip_threshold=0.015))
    train(model, optimizer, 0, 3)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 3, 6)

    resumed = Transformer(SHAPE, seed=99)
    resumed.load_state_dict(weights)
    other = optimizer_of(resumed, MuonClipConfig(qk_clip_threshold=0.015))
    other.load_state_dict(state)
    train(resumed, other, 3, 6)
    torch.testing.assert_close(resumed.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("lost", ["count", "muon_momentum", "adamw_first_moment", "adamw_second_moment"])
def test_every_part_of_the_state_matters(lost: str) -> None:
    model = Transformer(SHAPE)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 3)
    fresh = optimizer_of(Transformer(SHAPE)).state_dict()
    other = copy.deepcopy(model)
    resumed = optimizer_of(other)
    resumed.load_state_dict(copy.deepcopy({**optimizer.state_dict(), lost: fresh[lost]}))
    train(model, optimizer, 3, 4)
    train(other, resumed, 3, 4)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_keys_of_the_state_do_not_depend_on_steps_taken() -> None:
    model = Transformer(SHAPE)
    optimizer = optimizer_of(model)
    before = {kind: list(value) for kind, value in optimizer.state_dict().items() if isinstance(value, dict)}
    train(model, optimizer, 0, 1)
    after = {kind: list(value) for kind, value in optimizer.state_dict().items() if isinstance(value, dict)}
    assert after == before
    assert sum(map(len, before.values())) == 12 + 2 * (len(list(model.parameters())) - 12)


def test_a_state_that_does_not_fit_is_refused_whole_with_every_problem() -> None:
    model = Transformer(SHAPE)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 1)
    kept = copy.deepcopy(optimizer.state_dict())
    state = copy.deepcopy(kept)
    state["version"] = 2
    state["count"] = None
    state["adamw_first_moment"].pop("norm.weight")
    state["adamw_second_moment"]["norm.gain"] = torch.zeros(16)
    state["muon_momentum"]["blocks.0.up.weight"] = torch.zeros(16, 64)
    state["master_weights"] = {"norm.weight": torch.zeros(16)}
    with pytest.raises(InvalidFields) as caught:
        optimizer.load_state_dict(state)
    assert caught.value.problems == (
        "version: 2 must be 1",
        "count: None must be a whole number from 0 on",
        "master_weights: unknown",
        "muon_momentum.blocks.0.up.weight: (16, 64) torch.float32 must be (64, 16) torch.float32",
        "adamw_first_moment.norm.weight: missing",
        "adamw_second_moment.norm.gain: unknown",
    )
    torch.testing.assert_close(optimizer.state_dict(), kept, rtol=0, atol=0)


def test_the_rate_scales_both_optimizers() -> None:
    def change(scale: float) -> dict[str, float]:
        model = Transformer(SHAPE).double()
        before = copy.deepcopy(dict(model.named_parameters()))
        optimizer = optimizer_of(model, replace(EXACT, qk_clip_threshold=None, decay=0.0))
        optimizer.set_lr(scale)
        assert optimizer.step(forward_backward(model, 0)).lr == pytest.approx(0.01 * scale)
        return {name: (p - before[name]).norm().item() for name, p in model.named_parameters()}

    full, half = change(1.0), change(0.5)
    for name in ("blocks.0.up.weight", "embedding.weight", "norm.weight"):
        assert half[name] == pytest.approx(full[name] / 2, rel=1e-9)


def test_telemetry_reports_the_update_and_the_clipping() -> None:
    model = Transformer(TransformerConfig(width=64, layers=2, heads=2, sequence=12, vocab_size=32))
    logits = forward_backward(model, 0)
    telemetry = optimizer_of(model, MuonClipConfig(qk_clip_threshold=logits.min().item())).step(logits)
    assert telemetry.count == 1
    assert 0.1 <= telemetry.update_rms <= 0.23
    torch.testing.assert_close(telemetry.qk_clip_gamma, logits.min() / logits)


def test_without_a_threshold_no_head_is_clipped() -> None:
    model = Transformer(SHAPE)
    telemetry = optimizer_of(model, replace(EXACT, qk_clip_threshold=None)).step(forward_backward(model, 0))
    assert telemetry.qk_clip_gamma.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_the_first_step_of_adamw_is_computed_by_hand() -> None:
    parameter = torch.tensor([[2.0]], dtype=torch.float64, requires_grad=True)
    parameter.grad = torch.tensor([[0.5]], dtype=torch.float64)
    AdamW([Weight("w", parameter, decay=0.1)], MuonClipConfig()).step(0.01, 1)
    # 2 (1 - 0.01 x 0.1) - 0.01 x 0.5 / (0.5 + 1e-8)
    assert parameter.item() == pytest.approx(1.9880000002, abs=1e-13)


def test_adamw_follows_pytorch() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    mine = AdamW([Weight("w", ours, decay=0.1)], MuonClipConfig())
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for count in range(1, 6):
        ours.grad = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        theirs.grad = ours.grad.clone()
        mine.step(0.01, count)
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-14)


def test_adamw_decays_matrices_but_not_gains() -> None:
    parameters = {"embedding": torch.ones(2, 2, requires_grad=True), "gain": torch.ones(2, requires_grad=True)}
    MuonClip(parameters.items(), (), MuonClipConfig(decay=0.1, adamw_lr=0.01)).step(torch.zeros(0, 0))
    assert torch.equal(parameters["embedding"].detach(), torch.full((2, 2), 1 - 0.01 * 0.1))
    assert torch.equal(parameters["gain"].detach(), torch.ones(2))


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(InvalidFields) as caught:
        MuonClipConfig(muon_lr=0, momentum=1.0, decay=-1, beta2=float("nan"), qk_clip_threshold=0)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "muon_lr", "momentum", "decay", "beta2", "qk_clip_threshold",
    ]  # fmt: skip
