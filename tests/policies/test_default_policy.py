"""The policy that jobs get by default: quiet on what recovers, quick on what does not."""

import math
import random
from collections.abc import Callable

import pytest
from judged_runs import record
from library_policies import Act, acts, curve, run, shipped, strongest
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.rules import Action

DEFAULT = [shipped("default")]


def found(records: list[MetricRecord]) -> dict[int, Act]:
    return acts(DEFAULT, records)


def rolled_back(records: list[MetricRecord]) -> tuple[int, str] | None:
    """The first step at which a rollback is decided, and by which rule."""
    steps = ((step, rule) for step, (action, rule) in found(records).items() if action is Action.ROLLBACK)
    return min(steps, default=None)


def heavy_tailed(count: int, seed: int) -> list[float]:
    noise = random.Random(seed)
    return [1.0 + 0.3 * (noise.expovariate(1) - 1) for _ in range(count)]


def sawtooth(count: int, seed: int) -> list[float]:
    """A cycling learning rate: the loss rises by a tenth at each restart and falls again."""
    noise = random.Random(seed)
    return [2.0 + 0.2 * (1 - step % 300 / 300) + noise.gauss(0, 0.02) for step in range(count)]


def near_zero(count: int, seed: int) -> list[float]:
    """A fine-tuned floor: 0.001, with values a hundred times as high."""
    noise = random.Random(seed)
    return [0.001 * math.exp(noise.gauss(0, 1.5)) for _ in range(count)]


def epochs(count: int, seed: int) -> list[float]:
    """A staircase: each epoch over a small data set lies below the one before."""
    noise = random.Random(seed)
    return [2.0 * 0.6 ** (step // 400) + noise.gauss(0, 0.1) for step in range(count)]


def brain_float(count: int, seed: int) -> list[float]:
    """Quantised to steps of 1/64, as bfloat16 has them around 2."""
    return [round(value * 64) / 64 for value in curve(count, seed)]


@pytest.mark.parametrize("shape", [curve, heavy_tailed, sawtooth, near_zero, epochs, brain_float])
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_is_never_acted_upon(shape: Callable[[int, int], list[float]], seed: int) -> None:
    assert strongest(found(run(shape(3000, seed)))) in {None, Action.RECORD}


@pytest.mark.parametrize("length", [1, 2])
def test_a_spike_that_recovers_within_two_records_is_recorded_and_nothing_else(length: int) -> None:
    losses = curve(600)
    losses[399 : 399 + length] = [6.4] * length
    assert found(run(losses))[400] == (Action.RECORD, "loss-lone-spike")
    assert strongest(found(run(losses))) is Action.RECORD


def test_damaged_batches_roll_back_at_the_third() -> None:
    losses = curve(600)
    losses[320:326] = [11.5, 10.0, 8.1, 6.8, 6.6, 6.3]
    assert rolled_back(run(losses)) == (323, "loss-spike")


def test_a_level_shift_in_the_first_steps_is_seen_before_the_spike_rule_is_armed() -> None:
    losses = curve(150)
    losses[120:] = [level + 3 for level in losses[120:]]
    step, rule = rolled_back(run(losses)) or (0, "")
    assert (121 <= step <= 125, rule) == (True, "loss-divergence")


def test_a_slow_climb_rolls_back_within_five_records_of_a_fifth_above_the_best_level() -> None:
    noise = random.Random(5)
    best = [2.0 + noise.gauss(0, 0.01) for _ in range(500)]
    climb = [2.0 + 0.01 * step + noise.gauss(0, 0.01) for step in range(1, 120)]
    visible = next(step for step, loss in enumerate(best + climb, 1) if loss > 2.4)
    step, rule = rolled_back(run(best + climb)) or (0, "")
    assert (visible <= step <= visible + 4, rule) == (True, "loss-divergence")


def test_a_slow_climb_in_a_very_noisy_loss_rolls_back_too() -> None:
    noise = random.Random(7)
    losses = [1.0 + 0.2 * noise.gauss(0, 1) + max(0, step - 1000) * 0.004 for step in range(1500)]
    step, rule = rolled_back(run(losses)) or (0, "")
    assert (1000 < step < 1400, rule) == (True, "loss-divergence-noisy")


def test_a_run_that_falls_out_of_its_warm_up_and_climbs_again_rolls_back() -> None:
    """Sixty steps in all, down from 40 and up again: too short for any baseline of a hundred."""
    fall = [40.0 - step for step in range(29)]
    climb = [11.0 + 8 * (1 - math.exp(-step / 20)) for step in range(40)]
    assert rolled_back(run(fall + climb)) is not None


def test_a_non_finite_step_rolls_back_at_once_also_in_the_first_steps() -> None:
    records = [*run(curve(4)), record(5, loss=math.nan, nonfinite=1, skipped_update=1)]
    assert found(records) == {5: (Action.ROLLBACK, "non-finite")}


def test_a_loss_that_stays_nan_rolls_back_where_no_count_of_non_finite_values_is_published() -> None:
    records = [record(step, loss=2.0 if step < 4 else math.nan) for step in range(1, 7)]
    assert rolled_back(records) == (5, "loss-non-finite")


def test_one_infinite_loss_that_is_gone_on_the_next_step_is_not_acted_upon() -> None:
    losses = curve(600)
    losses[399] = math.inf
    records = [record(step, loss=loss) for step, loss in enumerate(losses, 1)]
    assert found(records)[400] == (Action.RECORD, "loss-lone-spike")
    assert strongest(found(records)) is Action.RECORD


def test_nan_gradients_behind_a_loss_that_a_trainer_prints_as_zero_roll_back() -> None:
    records = [
        record(step, loss=0.0 if step > 60 else 1.0, grad_norm=math.nan if step > 60 else 0.5) for step in range(1, 80)
    ]
    assert rolled_back(records) == (65, "grad-norm-non-finite")


def test_the_overflows_with_which_dynamic_loss_scaling_begins_are_not_acted_upon() -> None:
    records = [record(step, loss=9.0, grad_norm=math.inf if step <= 16 else 4.0) for step in range(1, 80)]
    assert found(records) == {}


def test_a_replica_that_differs_rolls_back_at_once() -> None:
    records = [*run(curve(49), replica_mismatch=0), record(50, loss=2.0, nonfinite=0, replica_mismatch=1)]
    assert found(records) == {50: (Action.ROLLBACK, "replica-mismatch")}


def test_a_head_clipped_for_twenty_records_is_notified() -> None:
    def gammas(step: int) -> dict[str, Vector]:
        return {"qk_clip_gamma": Vector.pack((4, 4), [0.9 if step > 10 and head == 5 else 1.0 for head in range(16)])}

    records = [record(step, loss=2.0, nonfinite=0, vectors=gammas(step)) for step in range(1, 31)]
    assert found(records) == {30: (Action.NOTIFY, "qk-clip-sustained")}


def test_clipping_all_over_but_never_long_in_one_head_is_notified() -> None:
    def gammas(step: int) -> dict[str, Vector]:
        return {"qk_clip_gamma": Vector.pack((4, 8), [0.9 if (head + step) % 3 else 1.0 for head in range(32)])}

    records = [record(step, loss=2.0, nonfinite=0, vectors=gammas(step)) for step in range(1, 21)]
    assert found(records) == {20: (Action.NOTIFY, "qk-clip-widespread")}
