"""The loss that a checkpoint tells of: measured by the step behind it, or else by a forward pass of its own."""

import time
from collections.abc import Callable
from typing import cast

import pytest
import torch
from probed_rank import STEP, alone, periodic, runtime, train
from stored_slices import manifest_of
from trimtab_contract.data_position import SkipLedger
from trimtab_trainer.loop import Trainee
from trimtab_trainer.restoration import restore
from trimtab_trainer.runtime import Runtime

__all__ = ["alone", "runtime"]


def forward_passes(runtime: Runtime, act: Callable[[], object]) -> int:
    """How often the model was run while something was done."""
    model, seen = cast("Trainee", runtime.trainee).model, list[int]()
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    act()
    handle.remove()
    return len(seen)


def test_the_step_behind_a_periodic_save_measures_it_and_no_forward_pass_does(runtime: Runtime) -> None:
    train(runtime, STEP)
    assert forward_passes(runtime, lambda: runtime.save("Periodic")) == 0
    with pytest.raises(TimeoutError):
        until_saved(runtime, 0.5)
    losses = list[float]()
    assert forward_passes(runtime, lambda: losses.extend(train(runtime, 1))) == 1
    until_saved(runtime, 30)
    recorded = manifest_of(runtime.store, periodic(runtime)).evaluation
    assert (recorded.mode, recorded.window, recorded.losses) == ("Training", STEP, tuple(losses))
    train(runtime, 2)
    restore(runtime, periodic(runtime), SkipLedger())
    assert runtime.state.step == STEP


def until_saved(runtime: Runtime, within: float) -> None:
    """Wait until a checkpoint is known to be stored, without telling the save anything."""
    deadline = time.monotonic() + within
    while runtime.last_saved is None:
        runtime.collect_checkpoint_events()
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint was stored")
        time.sleep(0.02)


@pytest.mark.parametrize("told", ["nothing", "another window"])
def test_a_loop_that_does_not_say_its_loss_costs_a_forward_pass_and_gets_the_same(runtime: Runtime, told: str) -> None:
    train(runtime, STEP)
    runtime.save("Periodic")
    loss = None if told == "nothing" else torch.tensor(1.0)
    assert forward_passes(runtime, lambda: runtime.step_computed(STEP + 1, loss)) == 1
    recorded = manifest_of(runtime.store, periodic(runtime)).evaluation
    assert recorded.losses == tuple(train(runtime, 1))


def test_what_waits_to_be_measured_is_measured_before_anybody_waits_for_the_save(runtime: Runtime) -> None:
    train(runtime, STEP)
    runtime.save("Periodic")
    assert forward_passes(runtime, lambda: periodic(runtime)) == 1
    runtime.save("Suspect")
    assert forward_passes(runtime, runtime.wait_for_saves) == 0


def test_a_step_that_was_not_finite_says_nothing_of_the_checkpoint_before_it(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    train(runtime, STEP)
    runtime.save("Periodic")
    runtime.step_computed(STEP, torch.tensor(torch.nan))
    reference = periodic(runtime)
    assert manifest_of(runtime.store, reference).evaluation.losses == (None,)
    restore(runtime, reference, SkipLedger())
    assert "nothing is known of the loss behind step 7" in caplog.text
