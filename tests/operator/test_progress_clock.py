"""Whether a world hangs, on a clock that the test turns."""

import msgspec
import pytest
from run_states import ack
from trimtab_contract.directives import Ack, AckState, Action, Diagnose, Directive
from trimtab_operator.progress import (
    DIAGNOSIS_SECONDS,
    FINAL_CHECK_SECONDS,
    HELD_DEADLINE_SECONDS,
    DiagnosisClock,
    FinalCheckClock,
    ProgressClock,
)

STARTUP, PROGRESS = 600.0, 120.0


class Watch:
    """A progress clock and the time it sees."""

    def __init__(self) -> None:
        self.clock = ProgressClock(STARTUP, PROGRESS)
        self.now = 1000.0

    def after(self, seconds: float, latest: Ack | None, *, world: int = 1, answers: bool = True) -> str:
        self.now += seconds
        return self.clock.observe(self.now, world, latest, bus_answers=answers)


def running(progress: int, *, world: int = 1, attempt: int = 1) -> Ack:
    return ack(AckState.RUNNING, world=world, attempt=attempt, progress=progress)


def test_a_world_that_stands_still_hangs_after_its_deadline_and_says_where() -> None:
    watch = Watch()
    assert watch.after(0, running(7)) == ""
    assert watch.after(PROGRESS, running(7)) == ""
    assert watch.after(1, running(7)) == "no progress for 120 s in state Running at step 80"


def test_every_progress_starts_the_count_again() -> None:
    watch = Watch()
    assert [watch.after(100, running(progress)) for progress in range(20)] == [""] * 20
    assert watch.after(100, running(20, attempt=2)) == ""
    assert watch.after(100, running(20, attempt=2)) == ""
    assert watch.after(100, running(20, attempt=2)) != ""


def test_a_world_without_a_word_has_the_startup_deadline() -> None:
    watch = Watch()
    assert watch.after(0, None) == ""
    assert watch.after(STARTUP, None) == ""
    assert watch.after(1, None) == "no word from the world within the startup deadline of 600 s"


def test_the_word_of_an_earlier_world_is_none_of_this_one() -> None:
    watch = Watch()
    assert watch.after(0, running(7), world=2) == ""
    assert watch.after(STARTUP, running(8), world=2) == ""
    assert "startup" in watch.after(1, running(9), world=2)


@pytest.mark.parametrize("state", [AckState.HOLDING, AckState.FINISHED, AckState.RESTORED, AckState.DIAGNOSED])
def test_a_held_world_is_found_sooner(state: AckState) -> None:
    watch = Watch()
    held = ack(state, progress=3)
    watch.after(0, held)
    assert watch.after(HELD_DEADLINE_SECONDS, held) == ""
    assert f"no progress for 60 s in state {state}" in watch.after(1, held)


def test_only_time_in_which_redis_answered_counts() -> None:
    watch = Watch()
    watch.after(0, running(7))
    watch.after(100, running(7))
    assert watch.after(5000, running(7), answers=False) == ""
    assert watch.after(100, running(7)) == ""
    assert watch.after(PROGRESS, running(7)) == ""
    assert watch.after(1, running(7)) != ""


def test_a_deadline_that_is_edited_holds_at_once() -> None:
    watch = Watch()
    watch.after(0, running(7))
    watch.clock.progress_deadline = 10
    assert "no progress for 10 s" in watch.after(11, running(7))


def test_a_last_checkpoint_is_waited_for_from_the_last_judged_step_on_and_only_for_so_long() -> None:
    clock, finished = FinalCheckClock(), ack(AckState.FINISHED)
    assert not clock.observe(0.0, None, 80)
    assert not clock.observe(0.0, finished, 79)
    assert not clock.observe(500.0, finished, 80)
    assert not clock.observe(500.0 + FINAL_CHECK_SECONDS - 1, finished, 80)
    assert clock.observe(500.0 + FINAL_CHECK_SECONDS, finished, 80)
    assert not clock.observe(1000.0, ack(AckState.FINISHED, attempt=2), 80)


def test_a_measurement_is_late_after_its_time_counted_only_while_redis_answers() -> None:
    clock = DiagnosisClock()
    asked = Directive(
        epoch=1, seq=9, world=1, attempt=1, action=Action.HOLD, diagnose=Diagnose(windows=(3, 5), control=(1, 2))
    )
    renewed = msgspec.structs.replace(asked, epoch=2, seq=12)
    assert not clock.observe(0.0, None, waits=True, bus_answers=True)
    assert not clock.observe(0.0, asked, waits=True, bus_answers=True)
    assert not clock.observe(200.0, asked, waits=True, bus_answers=True)
    assert not clock.observe(5000.0, renewed, waits=True, bus_answers=False)
    assert not clock.observe(6000.0, renewed, waits=True, bus_answers=True)
    assert not clock.observe(6000.0 + DIAGNOSIS_SECONDS - 201, renewed, waits=True, bus_answers=True)
    assert clock.observe(6000.0 + DIAGNOSIS_SECONDS - 200, renewed, waits=True, bus_answers=True)
    other = msgspec.structs.replace(asked, attempt=2)
    assert not clock.observe(9000.0, other, waits=True, bus_answers=True)
    assert not clock.observe(9000.0 + DIAGNOSIS_SECONDS, other, waits=False, bus_answers=True)
