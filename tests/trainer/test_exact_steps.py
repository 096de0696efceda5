"""Which steps know every head's largest logit: one in so many, and those from an event on."""

import torch
from trimtab_trainer.exact_steps import ExactSteps

CALM = torch.ones(2, 3)


def clipped(head: int) -> torch.Tensor:
    gamma = CALM.clone()
    gamma[1, head] = 0.8
    return gamma


def looked_at(
    steps: ExactSteps, first: int, last: int, gammas: dict[int, torch.Tensor | None], attempt: int = 1
) -> list[int]:
    """Train from `first` to `last`; the steps that were exact."""
    exact: list[int] = []
    for step in range(first, last + 1):
        exact += [step] * steps.due(attempt, step)
        steps.done(step, gammas.get(step, CALM))
    return exact


def test_after_the_start_one_step_in_so_many_is_exact() -> None:
    assert looked_at(ExactSteps(10), 1, 45, {}) == [*range(1, 11), 20, 30, 40]
    assert looked_at(ExactSteps(1), 1, 5, {}) == [1, 2, 3, 4, 5]


def test_steps_behind_an_update_that_was_not_made_are_exact() -> None:
    assert looked_at(ExactSteps(5), 1, 40, {22: None}) == [*range(1, 6), 10, 15, 20, *range(23, 28), 30, 35, 40]


def test_only_a_head_that_begins_to_be_clipped_is_an_event() -> None:
    # Head 1 is clipped from step 12 on, now and then; head 2 once, at step 31.
    gammas = {step: clipped(1) for step in (12, 13, 16, 20, 24, 28, 31, 33)} | {31: clipped(2)}
    assert looked_at(ExactSteps(5), 1, 45, gammas) == [
        *range(1, 6), 10, *range(13, 18), 20, 25, 30, *range(32, 37), 40, 45,
    ]  # fmt: skip


def test_a_new_attempt_at_an_earlier_step_is_an_event() -> None:
    steps = ExactSteps(5)
    looked_at(steps, 1, 33, {})
    assert looked_at(steps, 12, 30, {}, attempt=2) == [*range(12, 17), 20, 25, 30]


def test_the_same_step_computed_again_is_as_exact_as_before() -> None:
    steps = ExactSteps(5)
    looked_at(steps, 1, 11, {})
    assert [steps.due(1, 12), steps.due(1, 12), steps.due(1, 15), steps.due(1, 15)] == [False, False, True, True]
