"""Optimizers of PyTorch as a checkpoint holds them: complete before the first step, and restored in place."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.integrations.optimizer_state import ResumableOptimizer


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def update(of: nn.Module, optimizer: Optimizer, number: int) -> None:
    """One step on numbers that only its own number decides."""
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(number)
    of(torch.randn(16, 4, generator=generator)).square().mean().backward()
    optimizer.step()


def tensors(state: TrainingState) -> dict[str, Tensor]:
    return {name: value for name, value in state.flat().items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("make", [AdamW, lambda p: SGD(p, lr=0.1, momentum=0.9)], ids=["adamw", "momentum"])
def test_a_state_made_at_once_trains_as_one_made_by_the_first_step(make: Any) -> None:
    early, late = model(), model()
    prepared, plain = make(early.parameters()), make(late.parameters())
    ResumableOptimizer(prepared, None, early)
    assert all(torch.equal(a, b) for a, b in zip(early.parameters(), late.parameters(), strict=True))
    for number in range(3):
        update(early, prepared, number)
        update(late, plain, number)
    assert all(torch.equal(a, b) for a, b in zip(early.parameters(), late.parameters(), strict=True))


def test_the_names_of_a_state_do_not_change_with_the_first_step() -> None:
    net = model()
    optimizer = AdamW(net.parameters())
    state = TrainingState(net, ResumableOptimizer(optimizer, None, net))
    before = tensors(state).keys()
    update(net, optimizer, 0)
    assert tensors(state).keys() == before
    assert "optimizer.state.1.weight.exp_avg" in before


@pytest.mark.parametrize("cosine", [False, True])
def test_a_restored_state_goes_on_as_if_nothing_had_happened_since(cosine: bool) -> None:
    net = model()
    optimizer = AdamW(net.parameters(), lr=0.1)
    schedule = CosineAnnealingLR(optimizer, 10) if cosine else LambdaLR(optimizer, lambda step: 1 / (step + 1))
    resumable = ResumableOptimizer(optimizer, schedule, net)
    state = TrainingState(net, resumable)

    def go(first: int, last: int) -> list[float]:
        rates: list[float] = []
        for number in range(first, last):
            update(net, optimizer, number)
            rates.append(optimizer.param_groups[0]["lr"])
            schedule.step()
            resumable.count += 1
        return rates

    go(0, 3)
    saved = copy.deepcopy(state.flat())
    rates, weights = go(3, 6), copy.deepcopy(net.state_dict())
    state.replace(saved)
    assert resumable.count == 3
    assert go(3, 6) == rates
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())


def test_an_optimizer_whose_first_state_is_not_zero_is_refused() -> None:
    class Remembering(Optimizer):
        """Keeps the parameter it has met first."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter].setdefault("anchor", parameter.detach().clone())

    net = model()
    with pytest.raises(InvalidFields, match=r"Remembering starts 0\.weight with anchor other than 0"):
        ResumableOptimizer(Remembering(net.parameters()), None, net)


def test_a_parameter_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidFields, match="a parameter that is not the model's"):
        ResumableOptimizer(AdamW(model().parameters()), None, model())
