"""The learning rate as a function of the step, and gradient clipping by global norm."""

import math

import pytest
import torch
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.optim import RateOverride, Schedule, clip_gradients, first_non_finite

SCHEDULE = Schedule(warmup_steps=10, total_steps=110, final_ratio=0.1)


@pytest.mark.parametrize(
    ("step", "factor"), [(1, 0.1), (5, 0.5), (10, 1.0), (60, 0.55), (110, 0.1), (111, 0.1), (10_000, 0.1)]
)
def test_the_rate_rises_linearly_and_falls_by_half_a_cosine(step: int, factor: float) -> None:
    assert SCHEDULE.factor(step) == pytest.approx(factor, abs=1e-15)


def test_without_warm_up_the_first_step_is_already_on_the_cosine() -> None:
    assert Schedule(warmup_steps=0, total_steps=2, final_ratio=0.0).factor(1) == pytest.approx(0.5)


def test_an_override_scales_up_to_and_including_its_last_step() -> None:
    override = RateOverride(scale=0.5, until_step=60)
    assert SCHEDULE.factor(60, override) == pytest.approx(0.275)
    assert SCHEDULE.factor(61, override) == SCHEDULE.factor(61)


def test_every_wrong_field_of_a_schedule_is_named_at_once() -> None:
    with pytest.raises(InvalidFields) as caught:
        Schedule(warmup_steps=-1, total_steps=0, final_ratio=2.0)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "warmup_steps", "total_steps", "final_ratio",
    ]  # fmt: skip
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
