"""The learning rate as a function of the step, and gradient clipping by global norm."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.optim import RateOverride, Schedule, clip_gradients, first_non_finite
from trimtab_trainer.optim.schedule import Shape

SCHEDULE = Schedule(warmup_steps=10, total_steps=110, final_ratio=0.1)


@pytest.mark.parametrize(
    ("step", "factor"), [(1, 0.1), (5, 0.5), (10, 1.0), (60, 0.55), (110, 0.1), (111, 0.1), (10_000, 0.1)]
)
def test_the_rate_rises_linearly_and_falls_by_half_a_cosine(step: int, factor: float) -> None:
    assert SCHEDULE.factor(step) == pytest.approx(factor, abs=1e-15)


def test_without_warm_up_the_first_step_is_already_on_the_cosine() -> None:
    unwarmed = Schedule(warmup_steps=0, total_steps=2, final_ratio=0.0)
    # PyTorch's LambdaLR asks for step 0 when it is made.
    assert [unwarmed.factor(step) for step in (0, 1)] == [0.0, pytest.approx(0.5)]


def test_an_override_scales_up_to_and_including_its_last_step() -> None:
    override = RateOverride(scale=0.5, until_step=60)
    assert SCHEDULE.factor(60, override) == pytest.approx(0.275)
    assert SCHEDULE.factor(61, override) == SCHEDULE.factor(61)


SHAPES: dict[Shape, list[tuple[int, float]]] = {
    "linear": [(10, 1.0), (60, 0.55), (110, 0.1)],
    "wsd": [(11, 1.0), (90, 1.0), (100, 0.55), (110, 0.1)],
    "k2": [(60, 1.0), (74, 1.0), (110, 0.1)],
    "moonlight": [(10, 1.0), (101, 0.1), (102, 0.2215), (106, 0.1206), (110, 0.0)],
}
"""After 10 steps of warm-up, 100 more."""

TOLERANCE: dict[Shape, float] = {"linear": 1e-12, "wsd": 1e-12, "k2": 1e-12, "moonlight": 6e-4}


@pytest.mark.parametrize("shape", SHAPES)
def test_named_shapes_go_through_the_points_computed_by_hand(shape: Shape) -> None:
    schedule = replace(SCHEDULE, shape=shape)
    for step, factor in SHAPES[shape]:
        assert schedule.factor(step) == pytest.approx(factor, abs=TOLERANCE[shape]), step
    assert schedule.factor(5) == 0.5
    assert schedule.factor(10_000) == schedule.factor(110)


def test_kimi_k2_is_constant_for_10_of_15_5_trillion_tokens_and_then_half_a_cosine() -> None:
    """Section 2.5 of its report: 2e-4 for the first 10 trillion, then down to 2e-5 over the 5.5 that are left."""
    schedule = Schedule(warmup_steps=500, total_steps=2_050, final_ratio=0.1, shape="k2")
    assert {schedule.factor(step) for step in range(500, 1_501)} == {1.0}
    assert schedule.factor(1_501) < 1.0
    quarter, half = 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 0.55
    assert schedule.factor(1_775) == pytest.approx(half, abs=1e-12)
    assert schedule.factor(1_637) > quarter > schedule.factor(1_638)
    assert schedule.factor(2_050) == pytest.approx(0.1, abs=1e-12)


def test_restarts_are_cosines_of_equal_length_and_the_run_ends_where_one_does() -> None:
    schedule = replace(SCHEDULE, shape="cosine_restarts", cycles=4)
    single = Schedule(warmup_steps=0, total_steps=25, final_ratio=0.1)
    for step in range(11, 111):
        assert schedule.factor(step) == pytest.approx(single.factor((step - 11) % 25 + 1)), step
    assert [schedule.factor(step) for step in (35, 60, 85, 110)] == pytest.approx([0.1] * 4)
    assert schedule.factor(36) > 0.99


def test_a_decay_of_the_whole_run_is_a_straight_line() -> None:
    whole, line = (replace(SCHEDULE, shape="wsd", decay_share=1.0), replace(SCHEDULE, shape="linear"))
    assert [whole.factor(step) for step in range(1, 120)] == pytest.approx(
        [line.factor(step) for step in range(1, 120)]
    )


@pytest.mark.parametrize("shape", ["cosine", "cosine_restarts", "linear", "wsd", "k2", "moonlight"])
def test_no_shape_leaves_the_range_or_jumps_up_at_once(shape: Shape) -> None:
    schedule = Schedule(warmup_steps=100, total_steps=10_000, final_ratio=0.1, shape=shape)
    factors = [schedule.factor(step) for step in range(1, 10_001)]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    assert max(later - earlier for earlier, later in pairwise(factors)) <= 0.0101


def test_every_wrong_field_of_a_schedule_is_named_at_once() -> None:
    with pytest.raises(InvalidFields) as caught:
        Schedule(warmup_steps=-1, total_steps=0, final_ratio=2.0)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "warmup_steps", "total_steps", "final_ratio",
    ]  # fmt: skip
    with pytest.raises(InvalidFields) as caught:
        Schedule(warmup_steps=0, total_steps=10, cycles=2, decay_share=0.0)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["cycles", "decay_share"]
    with pytest.raises(InvalidFields, match="cycles: 11 must be at least 1 and leave each cycle a step"):
        Schedule(warmup_steps=0, total_steps=10, shape="cosine_restarts", cycles=11)
    with pytest.raises(InvalidFields, match=r"warmup_steps: 20 must be below total_steps \(20\)"):
        Schedule(warmup_steps=20, total_steps=20)


def test_gradients_above_the_limit_are_scaled_to_it() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    clip = clip_gradients(gradients, 1.0)
    assert (clip.norm, clip.ratio, clip.finite) == (5.0, 0.2, True)
    torch.testing.assert_close(gradients, [torch.tensor([0.6, 0.0]), torch.tensor([[0.8]])])


def test_gradients_within_the_limit_keep_every_bit() -> None:
    gradients = [torch.tensor([3.0, 0.1]), torch.tensor([4.0])]
    kept = [gradient.clone() for gradient in gradients]
    clip = clip_gradients(gradients, 5.1)
    assert clip.ratio == 1.0
    assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_not_finite_are_left_as_they_are(bad: float) -> None:
    gradients = [torch.tensor([3.0, bad]), torch.tensor([4.0])]
    clip = clip_gradients(gradients, 1.0)
    assert (clip.finite, clip.ratio) == (False, 1.0)
    assert gradients[1].item() == 4.0


def test_large_finite_gradients_have_a_finite_norm() -> None:
    clip = clip_gradients([torch.full((4,), 3e38)], 1.0)
    assert clip.finite
    assert clip.norm == pytest.approx(6e38, rel=1e-6)


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, math.nan])
    assert first_non_finite([("a", good), ("b", bad), ("c", bad)]) == "b"
    assert first_non_finite([("a", good)]) is None
