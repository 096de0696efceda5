"""Which checkpoint is chosen, and what is said of every other one."""

import pytest
from run_states import attempts, checkpoint, incident, latch, reference, run_state
from trimtab_operator.run_state import Checkpoint, RunState
from trimtab_operator.selection import rollback_bound, select_restart, select_rollback

LADDER = tuple(checkpoint(step) for step in (0, 100, 150, 160, 170, 180))


def chosen(state: RunState) -> int | None:
    target = select_rollback(state).target
    return target.reference.step if target else None


def why(state: RunState, step: int, attempt: int = 1) -> str:
    return next(one.why for one in select_rollback(state).candidates if (one.step, one.attempt) == (step, attempt))


def replaced(*changed: Checkpoint) -> tuple[Checkpoint, ...]:
    keys = {one.reference.key for one in changed}
    kept = [one for one in LADDER if one.reference.key not in keys]
    return tuple(sorted((*kept, *changed), key=lambda one: one.reference.step))


def test_the_first_plan_takes_the_newest_one_a_margin_before_the_first_bad_step() -> None:
    state = run_state(incident=incident(), checkpoints=LADDER)
    assert rollback_bound(state) == 171
    assert chosen(state) == 170
    assert why(state, 170) == "the newest one old enough"
    assert why(state, 180) == "newer than step 171, the first bad step less the margin"
    assert why(state, 160) == "an older one than the chosen"


@pytest.mark.parametrize(("first_bad_step", "step"), [(180, 170), (179, 160), (161, 150), (110, 100), (109, 0), (3, 0)])
def test_the_margin_is_exact(first_bad_step: int, step: int) -> None:
    assert chosen(run_state(incident=incident(latch=latch(first_bad_step=first_bad_step)), checkpoints=LADDER)) == step


@pytest.mark.parametrize("known", ["Committed", "Verified", "Certified"])
def test_the_first_choice_does_not_depend_on_how_far_verification_had_got(known: str) -> None:
    assert chosen(run_state(incident=incident(), checkpoints=replaced(checkpoint(170, state=known)))) == 170


def test_a_quarantined_one_is_passed_over_with_its_reason() -> None:
    state = run_state(
        incident=incident(), checkpoints=replaced(checkpoint(170, state="Quarantined", why="the control was bad"))
    )
    assert chosen(state) == 160
    assert why(state, 170) == "quarantined: the control was bad"


def test_one_that_failed_to_restore_is_passed_over() -> None:
    state = run_state(incident=incident(), checkpoints=LADDER, restore_failures=(reference(170).key,))
    assert chosen(state) == 160
    assert "failed to restore 1 time(s)" in why(state, 170)


def test_one_of_an_abandoned_attempt_is_never_chosen() -> None:
    """Attempt 2 branched at step 150: what attempt 1 saved beyond it is no history any more."""
    state = run_state(
        attempts=attempts((None, 0), (1, 150)),
        incident=incident(latch=latch(attempt=2)),
        checkpoints=(*LADDER, checkpoint(155, attempt=2)),
    )
    assert chosen(state) == 155
    assert "attempt 1, which is no part of the surviving history" in why(state, 160)
    assert why(state, 150) == "an older one than the chosen"


def test_one_taken_exactly_where_its_successor_branched_survives() -> None:
    state = run_state(attempts=attempts((None, 0), (1, 170)), incident=incident(), checkpoints=LADDER)
    assert chosen(state) == 170
    restart = select_restart(state)
    assert restart is not None
    assert restart.reference.step == 170


def test_the_start_of_the_run_is_the_last_candidate_whatever_the_bound() -> None:
    state = run_state(incident=incident(latch=latch(first_bad_step=2)), checkpoints=LADDER)
    assert rollback_bound(state) == -8
    assert chosen(state) == 0


def test_when_even_the_start_is_quarantined_there_is_no_target() -> None:
    checkpoints = tuple(checkpoint(one.reference.step, state="Quarantined") for one in LADDER)
    assert chosen(run_state(incident=incident(), checkpoints=checkpoints)) is None


def test_a_relapse_goes_further_back_and_behind_the_last_target() -> None:
    for relapses, bound in ((1, 161), (2, 141), (3, 101)):
        relapsed = incident(relapses=relapses, targets=(reference(170),)).put_in_place()
        assert rollback_bound(run_state(incident=relapsed, checkpoints=LADDER)) == bound
    near = incident(relapses=1, targets=(reference(150),), latch=latch(first_bad_step=300)).put_in_place()
    assert rollback_bound(run_state(incident=near, checkpoints=LADDER)) == 149


def test_a_target_that_was_chosen_and_never_restored_may_be_chosen_again() -> None:
    asked = incident(asked=True, targets=(reference(170),))
    assert chosen(run_state(incident=asked, checkpoints=LADDER)) == 170
    assert chosen(run_state(incident=asked.put_in_place(), checkpoints=LADDER)) == 160


def test_for_a_slow_divergence_a_certified_one_is_preferred_from_the_first_plan_on() -> None:
    """Its damage began long before anybody could see it: that nothing fired yet proves little."""
    slow = latch(rule_text={"name": "climb", "metric": "loss", "divergence": {"records": 100}})
    certified = replaced(checkpoint(100, state="Certified"))
    state = run_state(incident=incident(latch=slow), checkpoints=certified)
    assert chosen(state) == 100
    assert why(state, 170) == "not certified, and for a rule on divergence a certified one is preferred"
    assert chosen(run_state(incident=incident(), checkpoints=certified)) == 170
    assert chosen(run_state(incident=incident(latch=slow), checkpoints=LADDER)) == 170


def test_after_a_relapse_a_certified_one_is_preferred() -> None:
    state = run_state(
        incident=incident(relapses=1, targets=(reference(170),)),
        checkpoints=replaced(checkpoint(100, state="Certified")),
    )
    assert chosen(state) == 100
    assert why(state, 100) == "the newest certified one old enough"
    assert why(state, 160) == "not certified, and after a relapse a certified one is preferred"
    assert why(state, 0) == "an older one than the chosen"
    assert chosen(run_state(incident=incident(relapses=1, targets=(reference(170),)), checkpoints=LADDER)) == 160


def test_a_fault_restart_takes_the_newest_of_the_surviving_history() -> None:
    state = run_state(
        attempts=attempts((None, 0), (1, 150)),
        checkpoints=(*LADDER, checkpoint(175, attempt=2, state="Committed")),
    )
    restart = select_restart(state)
    assert restart is not None
    assert (restart.reference.step, restart.attempt) == (175, 2)
    assert select_restart(run_state()) is None


def test_a_run_that_began_anew_keeps_nothing_of_its_earlier_attempts() -> None:
    state = run_state(
        attempts=attempts((None, 0), (None, 0)),
        incident=incident(latch=latch(attempt=2, first_bad_step=8)),
        checkpoints=(checkpoint(0, attempt=2), checkpoint(5, attempt=1)),
    )
    assert chosen(state) == 0
    assert state.owner(0) == 2


def test_a_rollback_without_an_incident_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="needs an open incident"):
        rollback_bound(run_state())
