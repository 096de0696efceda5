"""The mixture of experts: what the router promises, and that experts without tokens disturb nobody."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.model import ExpertsConfig, Transformer, TransformerConfig
from trimtab_trainer.model.experts import Experts
from trimtab_trainer.optim import MuonClip, MuonClipConfig, parameter_checksum

WIDTH, COUNT = 16, 4
MIXTURE = TransformerConfig(
    width=WIDTH, layers=2, heads=2, sequence=12, vocab_size=32, mlp_ratio=2, experts=ExpertsConfig(count=COUNT)
)


def built(config: TransformerConfig = MIXTURE) -> Transformer:
    model = Transformer(config, seed=4).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("router.weight"):
                parameter.mul_(40.0)
    return model


def windows(batch: int = 4) -> Tensor:
    return torch.randint(0, 32, (batch, 13), generator=torch.Generator().manual_seed(2))


def trained(model: Transformer, batch: Tensor) -> Any:
    output = model(batch[:, :-1], batch[:, 1:])
    output.objective.backward()
    return output


def layer(**settings: Any) -> Experts:
    experts = Experts(ExpertsConfig(count=COUNT, **settings), WIDTH, 2 * WIDTH, bias=True).double()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return experts


def inputs(batch: int = 3, tokens: int = 20) -> Tensor:
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def one_by_one(experts: Experts, x: Tensor, room: int) -> Tensor:
    """Each token on its own: its best experts, weighted by their renormalised probabilities, while they have room."""
    output = torch.zeros_like(x)
    for window in range(len(x)):
        taken = [0] * COUNT
        for position, token in enumerate(x[window]):
            probabilities = (experts.router.weight @ token).softmax(-1).detach()
            best = sorted(range(COUNT), key=lambda number: -float(probabilities[number]))[: experts.top_k]
            total = sum(probabilities[number] for number in best)
            for number in best:
                taken[number] += 1
                if taken[number] <= room:
                    share = probabilities[number] / total
                    output[window, position] += share * experts.experts[number](token)
    return output


@pytest.mark.parametrize("top_k", [1, 2, COUNT])
@pytest.mark.parametrize("capacity", [None, 0.5, 1.0])
def test_a_mixture_is_what_its_tokens_are_one_by_one(top_k: int, capacity: float | None) -> None:
    experts, x = layer(top_k=top_k, capacity_factor=capacity), inputs()
    room = 20 if capacity is None else math.ceil(capacity * 20 * top_k / COUNT)
    mixed, routing = experts(x)
    torch.testing.assert_close(mixed, one_by_one(experts, x, room), rtol=1e-12, atol=1e-12)
    chosen = F.linear(x, experts.router.weight).topk(top_k, -1).indices
    sent = torch.stack([(chosen == number).sum((1, 2)) for number in range(COUNT)])
    assert routing.dropped.item() == pytest.approx(float((sent - room).clamp(min=0).sum() / sent.sum()), abs=1e-6)


def test_losses_and_telemetry_follow_their_definitions() -> None:
    experts, x = layer(top_k=2), inputs()
    routing = experts(x)[1]
    logits = F.linear(x, experts.router.weight)
    probabilities = logits.detach().softmax(-1)
    balance, load = 0.0, torch.zeros(COUNT, dtype=torch.float64)
    for window in probabilities:
        sent = torch.zeros(COUNT, dtype=torch.float64)
        for token in window:
            sent[token.topk(2).indices] += 1 / (2 * len(window))
        balance += COUNT * float((sent * window.mean(0)).sum()) / len(x)
        load += COUNT * sent / len(x)
    entropy = -(probabilities * probabilities.log()).sum(-1).mean() / math.log(COUNT)
    assert routing.balance_loss.item() == pytest.approx(balance, rel=1e-12)
    torch.testing.assert_close(routing.load, load, rtol=1e-12, atol=1e-12)
    assert routing.entropy.item() == pytest.approx(entropy.item(), rel=1e-12)
    expected = torch.stack([token.exp().sum().log() ** 2 for window in logits for token in window]).mean()
    assert routing.z_loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_an_even_router_has_load_loss_and_entropy_one() -> None:
    experts = layer(top_k=COUNT)
    torch.nn.init.zeros_(experts.router.weight)
    routing = experts(inputs())[1]
    assert routing.load.tolist() == [1.0] * COUNT
    assert routing.balance_loss.item() == pytest.approx(1.0)
    assert routing.entropy.item() == pytest.approx(1.0)


def test_without_experts_the_model_is_the_one_it_was() -> None:
    output = Transformer(replace(MIXTURE, experts=None))(windows()[:, :-1], windows()[:, 1:])
    assert output.experts is None
    assert output.objective is output.loss


def test_an_expert_without_tokens_has_a_gradient_of_zero_and_no_load() -> None:
    model = built(replace(MIXTURE, experts=ExpertsConfig(count=COUNT, top_k=1)))
    torch.nn.init.zeros_(model.blocks[0].mixture.router.weight)
    output = trained(model, windows())
    # Equal probabilities: one expert is chosen for all tokens.
    load = output.experts.load[0]
    assert sorted(load.tolist()) == [0.0, 0.0, 0.0, float(COUNT)]
    for number, expert in enumerate(model.blocks[0].mixture.experts):
        for parameter in expert.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.any()) is bool(load[number])


def test_it_does_not_matter_how_a_batch_is_cut() -> None:
    config = replace(MIXTURE, experts=ExpertsConfig(count=COUNT, capacity_factor=0.8))
    together, apart, batch = built(config), built(config), windows()
    whole = trained(together, batch)
    parts = [apart(part[:, :-1], part[:, 1:]) for part in batch.chunk(2)]
    sum(part.objective / 2 for part in parts).backward()
    for (name, one), other in zip(together.named_parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-13, msg=name)
    for what in ("load", "entropy", "dropped", "z_loss"):
        mean = sum(getattr(part.experts, what) for part in parts) / 2
        torch.testing.assert_close(mean, getattr(whole.experts, what), rtol=1e-12, atol=1e-13)


def test_full_experts_let_no_token_see_the_future() -> None:
    model = built(replace(MIXTURE, experts=ExpertsConfig(count=COUNT, capacity_factor=0.5)))
    batch = windows()[:, :-1]
    other = batch.clone()
    other[:, 7] = (other[:, 7] + 1) % 32
    before, after = model(batch).logits, model(other).logits
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=1e-12, atol=1e-13)
    assert (after[:, 7:] - before[:, 7:]).abs().amax() > 1e-6


def test_checkpointed_activations_change_no_bit_of_a_mixture() -> None:
    gradients: list[list[Tensor | None]] = []
    for checkpointing in (False, True):
        model = built(replace(MIXTURE, activation_checkpointing=checkpointing))
        trained(model, windows())
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def optimizer_of(model: Transformer) -> MuonClip:
    return MuonClip(model.named_parameters(), model.attention_heads(), MuonClipConfig())


def test_routers_go_to_adamw_and_every_matrix_of_an_expert_to_muon() -> None:
    routes = {route.name: route.optimizer for route in optimizer_of(Transformer(MIXTURE)).routes}
    for block in range(2):
        assert routes[f"blocks.{block}.mixture.router.weight"] == "adamw"
        for number in range(COUNT):
            for matrix in ("up", "down"):
                assert routes[f"blocks.{block}.mixture.experts.{number}.{matrix}.weight"] == "muon"


def test_an_expert_without_a_gradient_is_updated_like_one_with_a_gradient_of_zero() -> None:
    def updated(idle: Callable[[Tensor], Tensor | None]) -> dict[str, Tensor]:
        model = Transformer(MIXTURE, seed=1)
        optimizer, expert = optimizer_of(model), model.blocks[1].mixture.experts[2]
        optimizer.step(trained(model, windows()).attention.max_logit)
        model.zero_grad()
        output = trained(model, windows())
        for parameter in expert.parameters():
            parameter.grad = idle(parameter)
        before = expert.up.weight.detach().clone()
        optimizer.step(output.attention.max_logit)
        # Muon goes on along its momentum, whose size it forgets.
        assert (expert.up.weight - before).abs().max() > 1e-3
        return model.state_dict()

    torch.testing.assert_close(updated(lambda _: None), updated(torch.zeros_like), rtol=0, atol=0)


def test_a_mixture_learns_and_comes_back_from_its_state_bit_for_bit() -> None:
    model = Transformer(MIXTURE, seed=1)
    optimizer, batch = optimizer_of(model), windows(8)

    def step(model: Transformer, optimizer: MuonClip) -> float:
        model.zero_grad()
        output = trained(model, batch)
        optimizer.step(output.attention.max_logit)
        return output.loss.item()

    losses = [step(model, optimizer) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5
    state = {name: copy.deepcopy(value) for name, value in TrainingState(model, optimizer).flat().items()}
    other = Transformer(MIXTURE, seed=2)
    second = optimizer_of(other)
    TrainingState(other, second).replace(state)
    assert parameter_checksum(other.named_parameters()) == parameter_checksum(model.named_parameters())
    assert step(other, second) == step(model, optimizer)
    assert parameter_checksum(other.named_parameters()) == parameter_checksum(model.named_parameters())


def test_every_wrong_field_of_a_mixture_is_named_at_once() -> None:
    text = "{steps: 5, globalBatch: 2, data: {path: x}, schedule: {warmupSteps: 1}, model: {experts: %s}}"
    with pytest.raises(InvalidFields) as caught:
        read_config(text % "{count: 1, topK: 0, mlpRatio: 0, capacityFactor: 0.0, balanceLoss: -1.0, zLoss: .inf}")
    assert [problem.split(":")[0].removeprefix("model.experts.") for problem in caught.value.problems] == [
        "count", "topK", "mlpRatio", "capacityFactor", "balanceLoss", "zLoss",
    ]  # fmt: skip
    with pytest.raises(InvalidFields, match=r"model\.experts\.topK: 5 must be at most count \(4\)"):
        read_config(text % "{count: 4, topK: 5}")
    assert read_config(text % "{count: 4}").model.experts == ExpertsConfig(count=4)
