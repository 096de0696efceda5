"""Groups with a learning rate scale of their own: by hand, against the float64 reference, and what it leaves alone."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.optim import MuonClip, MuonClipConfig, ParameterGroup, routing_table
from trimtab_trainer.optim.coefficients import QUINTIC
from trimtab_trainer.optim.muonclip_reference import MatrixState, OtherState, adamw_step, muon_step

NO_LOGITS = torch.zeros(0, 0)
ROUTER, EXPERT = "layers.0.router.weight", "layers.0.experts.0.up.weight"
SCALES = {ROUTER: 0.1, EXPERT: 0.25}
EXACT = MuonClipConfig(
    newton_schulz_dtype="float64",
    decay=0.3,
    groups=(
        ParameterGroup(pattern="*.router.weight", learning_rate_scale=SCALES[ROUTER]),
        ParameterGroup(pattern="*.experts.*", learning_rate_scale=SCALES[EXPERT]),
    ),
)


def steps(parameters: dict[str, Tensor], gradients: list[dict[str, Tensor]], config: MuonClipConfig) -> MuonClip:
    optimizer = MuonClip(parameters.items(), (), config)
    for one in gradients:
        for name, parameter in parameters.items():
            parameter.grad = one[name].clone()
        optimizer.step(NO_LOGITS)
    return optimizer


def drawn(shapes: dict[str, tuple[int, int]], count: int = 1, kind: torch.dtype = torch.float64) -> Any:
    """Parameters, and as many gradients."""
    generator = torch.Generator().manual_seed(4)
    first, *rest = (
        {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(kind) for name, shape in shapes.items()}
        for _ in range(count + 1)
    )
    return first, rest


def test_one_update_of_two_groups_is_the_one_computed_by_hand() -> None:
    parameters = {ROUTER: torch.tensor([[2.0, -1.0]]).double(), EXPERT: 3.0 * torch.eye(2).double()}
    gradients = {ROUTER: torch.tensor([[0.5, -4.0]]).double(), EXPERT: torch.eye(2).double()}
    steps(parameters, [gradients], EXACT)

    # AdamW's first update is g / (|g| + epsilon), which is the sign: 1 and -1.
    rate, decay = 0.005, 0.3
    expected = [2.0 - 0.1 * rate * 1.0 - rate * decay * 2.0, -1.0 + 0.1 * rate * 1.0 - rate * decay * -1.0]
    assert parameters[ROUTER][0].tolist() == pytest.approx(expected, abs=1e-10)
    # The identity over its norm has both singular values at the root of a half; the polynomials move them alike.
    value = math.sqrt(0.5)
    for a, b, c in QUINTIC:
        value = a * value + b * value**3 + c * value**5
    rate, update = 0.01, value * 0.2 * math.sqrt(2)
    expected = 3.0 - 0.25 * rate * update - rate * decay * 3.0
    torch.testing.assert_close(parameters[EXPERT], expected * torch.eye(2).double(), rtol=1e-12, atol=1e-12)


def test_several_updates_equal_the_reference() -> None:
    shapes = {ROUTER: (4, 8), EXPERT: (16, 8), "layers.0.query.weight": (8, 8), "embedding.weight": (9, 8)}
    parameters, gradients = drawn(shapes, 4)
    states: dict[str, Any] = {
        name: MatrixState(value.clone(), torch.zeros_like(value))
        if name in {EXPERT, "layers.0.query.weight"}
        else OtherState(value.clone(), torch.zeros_like(value), torch.zeros_like(value))
        for name, value in parameters.items()
    }
    for count, gradient in enumerate(gradients, start=1):
        for name, state in states.items():
            scale = SCALES.get(name, 1.0)
            if isinstance(state, MatrixState):
                states[name] = muon_step(state, gradient[name], EXACT.muon_lr, EXACT, QUINTIC, scale)
            else:
                states[name] = adamw_step(state, gradient[name], EXACT.adamw_lr, count, EXACT, scale)
    steps(parameters, gradients, EXACT)
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter, states[name].weight, rtol=1e-9, atol=1e-12, msg=name)


def test_the_decay_stays_on_the_base_rate() -> None:
    parameters, _ = drawn({ROUTER: (4, 8), EXPERT: (16, 8)})
    before = {name: value.clone() for name, value in parameters.items()}
    steps(parameters, [{name: torch.zeros_like(value) for name, value in parameters.items()}], EXACT)
    for name, rate in ((ROUTER, EXACT.adamw_lr), (EXPERT, EXACT.muon_lr)):
        torch.testing.assert_close(parameters[name], before[name] * (1 - rate * EXACT.decay), rtol=1e-14, atol=0)


def test_matrices_of_one_shape_keep_their_own_scales() -> None:
    """Their products are shared where everything else is alike."""
    shapes = {f"layers.{layer}.up.weight": (8, 8) for layer in range(4)}
    parameters, gradients = drawn(shapes, 2, torch.float32)
    groups = tuple(
        ParameterGroup(pattern=name, learning_rate_scale=scale)
        for name, scale in zip(shapes, (1, 0.5, 2, 0.5), strict=True)
    )
    alone = {name: value.clone() for name, value in parameters.items()}
    steps(parameters, gradients, MuonClipConfig(groups=groups))
    for name, group in zip(shapes, groups, strict=True):
        steps({name: alone[name]}, gradients, MuonClipConfig(groups=(group,)))
        torch.testing.assert_close(parameters[name], alone[name], rtol=1e-5, atol=1e-7)


def test_a_scale_of_one_changes_no_bit() -> None:
    shapes = {ROUTER: (4, 8), EXPERT: (16, 8), "layers.0.up.weight": (16, 8)}
    values: list[dict[str, Tensor]] = []
    for groups in ((), (ParameterGroup(pattern="layers.*", learning_rate_scale=1.0),)):
        parameters, gradients = drawn(shapes, 3, torch.float32)
        steps(parameters, gradients, MuonClipConfig(groups=groups))
        values.append(parameters)
    assert all(torch.equal(value, values[1][name]) for name, value in values[0].items())


def test_float32_copies_of_bfloat16_weights_move_at_the_scaled_rate() -> None:
    shapes = {ROUTER: (4, 8), EXPERT: (16, 8)}
    parameters, gradients = drawn(shapes, 2, torch.bfloat16)
    wide = {name: value.float() for name, value in parameters.items()}
    settings: dict[str, Any] = {"groups": EXACT.groups, "decay": 0.3}
    optimizer = steps(parameters, gradients, MuonClipConfig(master_weights=True, **settings))
    steps(wide, [{name: one.float() for name, one in each.items()} for each in gradients], MuonClipConfig(**settings))
    for name, master in optimizer.tensors()["master_weights"].items():
        torch.testing.assert_close(master, wide[name], rtol=1e-6, atol=1e-7)


def test_the_table_shows_what_is_not_the_default() -> None:
    groups = (
        ParameterGroup(pattern="*.router.weight", learning_rate_scale=0.1, gradient_clip=0.3),
        ParameterGroup(pattern="*.up.weight", optimizer="muon", heads=2, learning_rate_scale=2.0),
        ParameterGroup(pattern="*.down.weight", decay=0.0, learning_rate_scale=1.0),
    )
    names = ("layers.0.router.weight", "layers.0.up.weight", "layers.0.down.weight")
    optimizer = MuonClip([(name, torch.zeros(8, 8)) for name in names], (), MuonClipConfig(groups=groups))
    assert [" ".join(line.split()[2:]) for line in routing_table(optimizer.routes).splitlines()] == [
        "adamw scores experts; 0.1 times the learning rate; gradient clipped to 0.3 with its group",
        "muon pattern *.up.weight; 2 matrices of 4 rows; 2.0 times the learning rate",
        "muon hidden matrix",
    ]


def test_as_an_optimizer_of_pytorch_it_scales_the_rates_that_a_schedule_sets() -> None:
    moved: list[Tensor] = []
    for scale in (1.0, 0.25):
        torch.manual_seed(0)
        model = nn.Linear(8, 8, bias=False)
        groups = (ParameterGroup(pattern="weight", learning_rate_scale=scale),)
        optimizer = MuonClipOptimizer(model, MuonClipConfig(groups=groups, decay=0.0), lambda _: {})
        optimizer.param_groups[0]["lr"] *= 3
        before = model.weight.detach().clone()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
        moved.append(model.weight.detach() - before)
    torch.testing.assert_close(moved[1], 0.25 * moved[0], rtol=1e-4, atol=1e-6)
