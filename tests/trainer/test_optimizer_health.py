"""What is told of weights and optimizer: norms against hand and SVD, what is not finite, and where QK-Clip acted."""

import math

import pytest
import torch
from torch import Tensor
from trimtab_trainer.optim import MuonClip, MuonClipConfig
from trimtab_trainer.optim.health import clip_activity, nonfinite_elements, optimizer_health, spectral_norms


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(24, 24), (16, 64), (64, 16), (3, 16, 8)])
def test_the_spectral_norm_comes_close_to_the_largest_singular_value_from_below(shape: tuple[int, ...]) -> None:
    matrices = gaussian(*shape)
    largest = torch.linalg.svdvals(matrices).amax(-1)
    ratio = spectral_norms(matrices) / largest
    assert (ratio <= 1 + 1e-12).all()
    assert (ratio >= 0.9).all()
    torch.testing.assert_close(spectral_norms(matrices, 400), largest, rtol=1e-6, atol=0)


def test_a_singular_value_that_stands_out_is_found_at_once() -> None:
    matrix = 100 * torch.outer(gaussian(12), gaussian(20, seed=1)) + gaussian(12, 20, seed=2)
    assert spectral_norms(matrix).item() == pytest.approx(torch.linalg.svdvals(matrix)[0].item(), rel=1e-9)


def test_zero_and_broken_matrices_have_no_surprising_spectral_norm() -> None:
    assert spectral_norms(torch.zeros(4, 6)).item() == 0.0
    assert math.isnan(spectral_norms(torch.full((4, 6), math.nan)).item())


@pytest.mark.parametrize("masters", [False, True])
def test_every_parameter_is_looked_at_with_its_momentum_and_nothing_changes(masters: bool) -> None:
    kind = torch.bfloat16 if masters else torch.float32
    parameters = {
        "hidden.weight": (3 * torch.eye(4)).to(kind).requires_grad_(),
        "embedding.weight": torch.ones(2, 8).to(kind).requires_grad_(),
        "norm.weight": torch.ones(4).to(kind).requires_grad_(),
    }
    config = MuonClipConfig(muon_lr=1e-30, adamw_lr=1e-30, decay=0.0, beta1=0.5, master_weights=masters)
    optimizer = MuonClip(parameters.items(), (), config)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(torch.zeros(0, 0))
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    hidden, embedding, norm = optimizer_health(optimizer)
    assert (hidden.name, hidden.nonfinite) == ("hidden.weight", 0)
    assert (hidden.norm, hidden.spectral_norm, hidden.momentum_norm) == pytest.approx((6.0, 3.0, 4.0))
    assert (embedding.norm, embedding.spectral_norm, embedding.momentum_norm) == pytest.approx((4.0, 4.0, 2.0))
    assert (norm.norm, norm.spectral_norm, norm.momentum_norm) == pytest.approx((2.0, None, 1.0))
    assert all(torch.equal(parameters[name].detach(), before) for name, before in kept.items())


def test_elements_that_are_not_finite_are_counted_in_weights_and_state() -> None:
    parameters = {"a.weight": torch.ones(4, 4, requires_grad=True), "b": torch.ones(3, requires_grad=True)}
    optimizer = MuonClip(parameters.items(), (), MuonClipConfig())
    state = optimizer.state_dict()
    with torch.no_grad():
        parameters["a.weight"][0, :2] = math.inf
        state["muon_momentum"]["a.weight"][3, 3] = math.nan
        state["adamw_second_moment"]["b"][1] = -math.inf
    assert [(each.nonfinite, each.nonfinite_state) for each in optimizer_health(optimizer)] == [(2, 1), (0, 1)]


def test_finite_elements_whose_sum_overflows_are_none_that_is_not_finite() -> None:
    assert nonfinite_elements([torch.full((4,), 3e38), torch.tensor([1.0, math.nan, -math.inf])]) == 2


def test_clipping_is_summed_up_over_steps_by_head() -> None:
    gammas = torch.tensor([[[1.0, 0.5], [1.0, 1.0]], [[1.0, 0.25], [0.9, 1.0]]])
    activity = clip_activity(gammas)
    assert activity.share.tolist() == [[0.0, 1.0], [0.5, 0.0]]
    torch.testing.assert_close(activity.smallest, torch.tensor([[1.0, 0.25], [0.9, 1.0]]))
    assert activity.heads_ever == 0.5
