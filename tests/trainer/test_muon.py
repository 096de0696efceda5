"""Muon's update: momentum, scale and decay by hand, and wrong variants that the same checks refuse."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from trimtab_trainer.optim.coefficients import COEFFICIENT_SETS, QUINTIC
from trimtab_trainer.optim.config import CoefficientSet, MuonClipConfig
from trimtab_trainer.optim.muon import Muon, apply_updates, directions, orthogonal_updates
from trimtab_trainer.optim.newton_schulz import newton_schulz
from trimtab_trainer.optim.weights import Weight
from trimtab_trainer.tensors import row_pieces

EXACT = MuonClipConfig(newton_schulz_dtype="float64", momentum=0.9, nesterov=False, decay=0.1)

Updates = Callable[[Tensor, Tensor, MuonClipConfig], Tensor]
Apply = Callable[[list[Tensor], Tensor, float, float], object]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def muon_updates(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    return orthogonal_updates(directions(gradients.unbind(), momentum.unbind(), config), config)


def weights(parameters: dict[str, Tensor], decay: float = 0.1) -> list[Weight]:
    return [Weight(name, parameter, decay=decay) for name, parameter in parameters.items()]


def check_momentum(updates: Updates) -> None:
    """After G1 and G2 the momentum is mu G1 + G2, whatever was made of it in between."""
    for nesterov in (False, True):
        config = replace(EXACT, nesterov=nesterov)
        first, second, momentum = gaussian(2, 8, 6, seed=1), gaussian(2, 8, 6, seed=2), torch.zeros(2, 8, 6).double()
        updates(first, momentum, config)
        torch.testing.assert_close(momentum, first, rtol=0, atol=0)
        updates(second, momentum, config)
        torch.testing.assert_close(momentum, 0.9 * first + second, rtol=1e-15, atol=1e-15)


def check_direction(updates: Updates) -> None:
    """The update orthogonalises M, and with Nesterov G + mu M, at 0.2 sqrt(max(rows, columns))."""
    for nesterov in (False, True):
        config = replace(EXACT, nesterov=nesterov)
        gradient, momentum = gaussian(1, 8, 24, seed=1), gaussian(1, 8, 24, seed=2)
        advanced = 0.9 * momentum + gradient
        direction = gradient + 0.9 * advanced if nesterov else advanced
        expected = newton_schulz(direction, QUINTIC, torch.float64) * 0.2 * math.sqrt(24)
        torch.testing.assert_close(updates(gradient, momentum, config), expected, rtol=1e-12, atol=1e-13)


def check_decay(apply: Apply) -> None:
    """W - lr (O + decay W): the decay uses the base rate, and a zero update leaves W (1 - lr decay) exactly."""
    weight, update = gaussian(4, 3), gaussian(1, 4, 3, seed=1)
    changed = weight.clone()
    apply([changed], update, 0.01, 0.1)
    torch.testing.assert_close(changed, weight - 0.01 * (update[0] + 0.1 * weight), rtol=1e-14, atol=1e-15)
    decayed = weight.clone()
    apply([decayed], torch.zeros(1, 4, 3).double(), 0.01, 0.1)
    assert torch.equal(decayed, weight * (1 - 0.01 * 0.1))


def aliased_momentum(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    result = muon_updates(gradients, momentum, config)
    if not config.nesterov:
        momentum.div_(momentum.norm())
    return result


def averaged_momentum(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    momentum.lerp_(gradients, 1 - config.momentum)
    return muon_updates(torch.zeros_like(gradients), momentum.clone(), config)


def scaled_by_the_smaller_side(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    rows, columns = gradients.shape[-2:]
    return muon_updates(gradients, momentum, config) * math.sqrt(min(rows, columns) / max(rows, columns))


def without_the_factor(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    return muon_updates(gradients, momentum, config) / 0.2


def never_nesterov(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    return muon_updates(gradients, momentum, replace(config, nesterov=False))


def clamped_updates(gradients: Tensor, momentum: Tensor, config: MuonClipConfig) -> Tensor:
    return muon_updates(gradients, momentum, config).clamp(-0.3, 0.3)


def decay_at_the_scaled_rate(parameters: list[Tensor], updates: Tensor, lr: float, decay: float) -> None:
    apply_updates(parameters, updates, lr, decay * 0.2 * math.sqrt(4))


def decay_not_times_the_rate(parameters: list[Tensor], updates: Tensor, lr: float, decay: float) -> None:
    apply_updates(parameters, updates, lr, decay / lr)


def test_momentum_is_the_running_sum_and_nothing_else_writes_to_it() -> None:
    check_momentum(muon_updates)


def test_updates_are_the_scaled_orthogonal_direction() -> None:
    check_direction(muon_updates)


def test_decay_is_decoupled_and_uses_the_base_rate() -> None:
    check_decay(apply_updates)


@pytest.mark.parametrize("shape", [(300, 512), (5, 1 << 15), ((1 << 15) + 10, 4)])
def test_a_matrix_of_several_pieces_is_updated_like_one_in_one_piece(shape: tuple[int, int]) -> None:
    gradient, momentum, weight = (gaussian(*shape, seed=seed) for seed in (1, 2, 3))
    pieces = list(row_pieces(gradient))
    assert len({len(piece) for (piece,) in pieces}) == 2, "the last one is shorter"
    direction = gradient + 0.9 * momentum
    updates = directions([gradient], [momentum], EXACT)
    torch.testing.assert_close(momentum, direction, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(updates[0], direction / direction.norm(), rtol=1e-12, atol=1e-14)
    changed = weight.clone()
    norms = apply_updates([changed], updates, 0.01, 0.1)
    torch.testing.assert_close(changed, weight - 0.01 * (updates[0] + 0.1 * weight), rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(norms, torch.ones(1).double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("mutant", [aliased_momentum, averaged_momentum])
def test_the_momentum_check_refuses(mutant: Updates) -> None:
    with pytest.raises(AssertionError):
        check_momentum(mutant)


@pytest.mark.parametrize(
    "mutant",
    [scaled_by_the_smaller_side, without_the_factor, never_nesterov, clamped_updates, averaged_momentum],
)
def test_the_direction_check_refuses(mutant: Updates) -> None:
    with pytest.raises(AssertionError):
        check_direction(mutant)


@pytest.mark.parametrize("mutant", [decay_at_the_scaled_rate, decay_not_times_the_rate])
def test_the_decay_check_refuses(mutant: Apply) -> None:
    with pytest.raises(AssertionError):
        check_decay(mutant)


@pytest.mark.parametrize("nesterov", [False, True])
def test_bfloat16_products_leave_the_float32_momentum_alone(nesterov: bool) -> None:
    config = MuonClipConfig(momentum=0.9, nesterov=nesterov, newton_schulz_dtype="bfloat16")
    momentum = torch.zeros(1, 8, 5)
    muon_updates(torch.ones(1, 8, 5), momentum, config)
    assert torch.equal(momentum, torch.ones(1, 8, 5))
    muon_updates(torch.zeros(1, 8, 5), momentum, config)
    assert torch.equal(momentum, torch.full((1, 8, 5), 0.9))


@pytest.mark.parametrize("shape", [(128, 128), (128, 512), (512, 128)])
def test_full_rank_updates_have_a_root_mean_square_near_a_fifth(shape: tuple[int, int]) -> None:
    gradient = gaussian(1, *shape).float()
    update = muon_updates(gradient, torch.zeros_like(gradient), MuonClipConfig())
    assert 0.13 <= update.square().mean().sqrt() <= 0.23


def test_a_low_rank_update_is_smaller() -> None:
    gradient = (gaussian(1, 128, 8) @ gaussian(1, 8, 128, seed=1)).float()
    update = muon_updates(gradient, torch.zeros_like(gradient), MuonClipConfig())
    assert update.square().mean().sqrt() < 0.08


def test_the_first_step_follows_pytorch_muon() -> None:
    weight, gradient = gaussian(32, 48).float(), gaussian(32, 48, seed=1).float()
    theirs = torch.nn.Parameter(weight.clone())
    theirs.grad = gradient.clone()
    torch.optim.Muon(
        [theirs], lr=0.01, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
    ).step()
    ours = weight.clone().requires_grad_()
    ours.grad = gradient.clone()
    Muon(weights({"w": ours}), MuonClipConfig(momentum=0.95, nesterov=True)).step(0.01)
    step = (theirs - weight).norm()
    assert (ours - theirs).norm() / step < 0.02


def test_one_large_matrix_at_a_time_equals_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Tensor]:
        parameters = {name: gaussian(24, 16, seed=seed).requires_grad_() for seed, name in enumerate("abc")}
        for seed, parameter in enumerate(parameters.values()):
            parameter.grad = gaussian(24, 16, seed=10 + seed)
        Muon(weights(parameters), EXACT).step(0.1)
        return [parameter.detach() for parameter in parameters.values()]

    stacked = run()
    monkeypatch.setattr("trimtab_trainer.optim.muon.SLAB_BYTES", 8)
    torch.testing.assert_close(run(), stacked, rtol=1e-12, atol=1e-13)


def test_a_missing_gradient_counts_as_zero() -> None:
    def run(gradient: Tensor | None) -> Tensor:
        parameter = gaussian(6, 4).requires_grad_()
        muon = Muon(weights({"w": parameter}), EXACT)
        parameter.grad = gaussian(6, 4, seed=1)
        muon.step(0.1)
        parameter.grad = gradient
        muon.step(0.1)
        return parameter.detach()

    assert torch.equal(run(None), run(torch.zeros(6, 4).double()))


@pytest.mark.parametrize("coefficients", ["quintic", "tuned_quintic", "polar_express", "deepseek_v4", "cubic"])
def test_the_scale_folded_into_the_last_polynomial_is_the_scale_of_the_result(coefficients: CoefficientSet) -> None:
    matrices = gaussian(2, 8, 24)
    expected = newton_schulz(matrices, COEFFICIENT_SETS[coefficients], torch.float64) * 0.2 * math.sqrt(24)
    normalised = matrices / matrices.norm(dim=(-2, -1), keepdim=True)
    scaled = orthogonal_updates(normalised, replace(EXACT, coefficients=coefficients))
    torch.testing.assert_close(scaled, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_nothing_of_a_step_writes_to_the_momentum_or_the_gradient(nesterov: bool, kind: torch.dtype) -> None:
    """The trap of PyTorch 2.13: a gradient in bfloat16 and no Nesterov left 0.158 in place of 0.1."""
    parameter = torch.zeros(8, 5).to(kind).requires_grad_()
    parameter.grad = torch.ones(8, 5).to(kind)
    master = None if kind == torch.float32 else torch.zeros(8, 5)
    config = MuonClipConfig(momentum=0.9, nesterov=nesterov, newton_schulz_dtype="bfloat16")
    muon = Muon([Weight("w", parameter, master)], config)
    muon.step(0.1)
    assert torch.equal(muon.momentum()["w"], torch.ones(8, 5))
    assert torch.equal(parameter.grad, torch.ones(8, 5).to(kind))
    parameter.grad.zero_()
    muon.step(0.1)
    assert torch.equal(muon.momentum()["w"], torch.full((8, 5), 0.9))


def stepped(parameters: list[Weight]) -> list[Tensor]:
    """The values after two steps on gradients that depend on shapes and names alone."""
    muon = Muon(parameters, EXACT)
    for seed in (1, 2):
        for weight in parameters:
            weight.parameter.grad = gaussian(*weight.parameter.shape, seed=seed)
        muon.step(0.1)
    return [weight.value.detach() for weight in parameters]


@pytest.mark.parametrize("rows", [(8, 8, 8), (12, 6, 6)])
def test_a_fused_matrix_is_updated_as_its_parts_would_be(rows: tuple[int, ...]) -> None:
    start, gradients = gaussian(24, 16), [gaussian(24, 16, seed=seed) for seed in (1, 2)]
    fused = start.clone().requires_grad_()
    parts = [part.clone().requires_grad_() for part in start.split(rows)]
    together = Muon([Weight("qkv", fused, decay=0.1, rows=rows)], EXACT)
    apart = Muon(weights({str(index): part for index, part in enumerate(parts)}), EXACT)
    for gradient in gradients:
        fused.grad = gradient.clone()
        for part, own in zip(parts, gradient.split(rows), strict=True):
            part.grad = own.clone()
        together.step(0.1)
        apart.step(0.1)
    torch.testing.assert_close(fused, torch.cat(parts), rtol=1e-12, atol=1e-13)
    (mixed,) = stepped([Weight("qkv", start.clone(), decay=0.1)])
    assert (mixed - fused).norm() > 1e-2 * (fused - start).norm(), "the update of the whole matrix mixes its parts"


def test_a_stack_of_matrices_is_updated_matrix_by_matrix() -> None:
    start = gaussian(3, 8, 6)
    stack = start.clone().requires_grad_()
    alone = {str(index): matrix.clone().requires_grad_() for index, matrix in enumerate(start)}
    stack.grad = gaussian(3, 8, 6, seed=1)
    for matrix, gradient in zip(alone.values(), stack.grad, strict=True):
        matrix.grad = gradient
    Muon([Weight("experts", stack, decay=0.1)], EXACT).step(0.1)
    Muon(weights(alone), EXACT).step(0.1)
    torch.testing.assert_close(stack, torch.stack(list(alone.values())), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1)])
def test_a_single_row_or_column_is_normalised(shape: tuple[int, int]) -> None:
    (value,) = stepped([Weight("w", torch.zeros(shape, dtype=torch.float64))])
    assert value.isfinite().all()
    assert value.any()


@pytest.mark.parametrize("nesterov", [False, True])
def test_several_steps_follow_pytorch_muon(nesterov: bool) -> None:
    """Its momentum is an average where ours is a sum; orthogonalised, both are the same direction."""
    start = [gaussian(32, 48).float(), gaussian(48, 32, seed=1).float()]
    theirs = [torch.nn.Parameter(weight.clone()) for weight in start]
    ours = [weight.clone().requires_grad_() for weight in start]
    pytorch = torch.optim.Muon(
        theirs, lr=0.01, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
    )
    config = MuonClipConfig(momentum=0.95, nesterov=nesterov, newton_schulz_dtype="bfloat16")
    muon = Muon(weights({"wide": ours[0], "tall": ours[1]}), config)
    for seed in range(2, 7):
        for their, our in zip(theirs, ours, strict=True):
            their.grad = gaussian(*their.shape, seed=seed).float()
            our.grad = their.grad.clone()
        pytorch.step()
        muon.step(0.01)
    for before, their, our in zip(start, theirs, ours, strict=True):
        assert (our - their).norm() / (their - before).norm() < 0.03
