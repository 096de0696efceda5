"""Products in half precision, masters in float32, and a loss scale whose overflows nobody takes for a fault."""

from collections.abc import Iterator

import pytest
import torch
from scripted_session import lone_world, snapshot, train_steps
from torch import Tensor
from trimtab_trainer.collectives import World
from trimtab_trainer.config import read_config
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.mixed_precision import LARGEST_SCALE, LossScaleConfig, LossScaler, Precision

MLP = "blocks.1.down.weight"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with lone_world() as joined:
        yield joined


def nothing(_: dict[str, Tensor]) -> None:
    """Leave the model as it is."""


def scaler(initial: float = 1024.0, interval: int = 3) -> LossScaler:
    return LossScaler("float16", LossScaleConfig(initial=initial, growth_interval=interval))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_like_float32_and_every_master_stays_float32(world: World, precision: Precision) -> None:
    half = train_steps(world, nothing, 4, precision=precision, gradient_accumulation_steps=2)
    full = train_steps(world, nothing, 4)
    assert half.bad == [None] * 4
    for ours, theirs in zip(half.scalars, full.scalars, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=2e-2)
        assert ours["nonfinite"] == ours["skipped_update"] == 0
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=5e-2)
    assert half.scalars[0]["loss"] != full.scalars[0]["loss"]
    tensors = {name: value for name, value in snapshot(half.trainee).items() if isinstance(value, Tensor)}
    assert {value.dtype for name, value in tensors.items() if not name.startswith("scaler.")} == {torch.float32}
    assert ("loss_scale" in half.scalars[0]) == (precision == "float16")
    # Largest logits are computed in float32: in bfloat16 they would be off by more than a threshold's margin.
    largest = torch.stack([value for vectors in half.vectors for name, value in vectors.items() if "logit" in name])
    assert not torch.equal(largest, largest.bfloat16().float())


def test_an_overflow_of_the_scale_costs_a_repetition_and_is_no_fault(world: World) -> None:
    session = train_steps(world, nothing, precision="float16", loss_scale=LossScaleConfig(initial=LARGEST_SCALE))
    assert session.repeated >= 1
    assert session.bad == [None, None]
    assert [(one["nonfinite"], one["skipped_update"]) for one in session.scalars] == [(0, 0), (0, 0)]
    assert session.scalars[0]["loss_scale"] < LARGEST_SCALE
    assert session.trainee.optimizer.count == 2


def test_a_gradient_that_no_scale_makes_finite_is_a_fault_in_its_own_step_and_leaves_the_scale(world: World) -> None:
    def poison(parameters: dict[str, Tensor]) -> None:
        parameters[MLP].register_hook(lambda gradient: gradient * torch.nan)  # pyright: ignore[reportUnknownMemberType]

    session = train_steps(world, poison, precision="float16", loss_scale=LossScaleConfig(initial=16.0))
    assert session.repeated == 4
    assert session.bad == [None, f"gradient of {MLP}"]
    assert session.scalars[1]["nonfinite"] > 0
    assert session.scalars[1]["skipped_update"] == 1
    assert session.trainee.scaler.scale == 16.0
    after = snapshot(session.trainee)
    assert all(torch.equal(after[name], value) for name, value in session.before.items() if isinstance(value, Tensor))


def test_the_scale_changes_no_bit_of_a_gradient() -> None:
    gradient = torch.randn(100)
    scaled = gradient * 1024.0
    scaler().unscale([scaled])
    assert torch.equal(scaled, gradient)


def test_the_scale_grows_after_a_row_of_good_steps_and_up_to_a_bound() -> None:
    one = scaler(initial=LARGEST_SCALE / 2)
    seen: list[float] = []
    for step in range(9):
        one.begin()
        if step == 2:
            assert one.back_off()
        one.settle(updated=True)
        seen.append(one.scale / LARGEST_SCALE)
    assert seen == [0.5, 0.5, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0, 1.0]
    for _ in range(6):
        one.settle(updated=True)
    assert one.scale == LARGEST_SCALE


def test_without_float16_nothing_is_scaled_and_nothing_is_stored() -> None:
    for precision in ("float32", "bfloat16"):
        idle = LossScaler(precision, LossScaleConfig())
        assert (idle.scale, idle.state_dict(), idle.scalars(), idle.back_off()) == (1.0, {}, {}, False)


def test_precision_and_scale_that_cannot_be_are_refused_by_name() -> None:
    text = (
        "{steps: 50, globalBatch: 8, data: {path: /d}, precision: fp8, lossScale: {initial: 1000, growthInterval: 0}}"
    )
    with pytest.raises(InvalidFields) as caught:
        read_config(text)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "precision",
        "lossScale.initial",
        "lossScale.growthInterval",
    ]
