"""A person let the run go on: what had fired is settled, and what fires later is latched."""

from collections.abc import Iterable

from judged_guards import HALT, LOUD, SPIKE, guarded, healthy, judge_of, policy, run
from run_states import attempts, run_state
from trimtab_operator.judge import Judge
from trimtab_operator.run_state import Resumption, RunState
from trimtab_policies.policy import AcceptedPolicy

PAUSE = {**LOUD, "action": "Pause"}


def resumed(one: AcceptedPolicy, *steps: int) -> RunState:
    settled = tuple(Resumption(attempt=1, step=step) for step in steps)
    return run_state(guards=(guarded(one),), resumptions=settled)


def followed(state: RunState, later: RunState, losses: Iterable[float], at: int, one: AcceptedPolicy) -> Judge:
    """A judge that was there when the run was held behind step `at`."""
    records = run(losses)
    judge = judge_of(state, records[:at], one)
    assert judge.firing is not None
    assert judge.needs_loading(later)
    judge.begin(later, tuple(records[:at]))
    judge.take(tuple(records[at:]), later)
    return judge


def test_a_rule_that_pauses_is_latched() -> None:
    one = policy(PAUSE)
    judge = judge_of(resumed(one), run([*healthy(20), 9.0]), one)
    assert judge.firing is not None
    assert (judge.firing.action, judge.firing.fired_step) == ("Pause", 21)
    assert judge.notes == ()


def test_what_fired_up_to_the_hold_is_settled_and_a_later_firing_is_latched() -> None:
    one = policy(PAUSE)
    records = run([*healthy(20), 9.0, 9.0, *healthy(10), 9.0])
    assert judge_of(resumed(one, 22), records[:32], one).firing is None
    judge = judge_of(resumed(one, 22), records, one)
    assert judge.firing is not None
    assert (judge.firing.first_bad_step, judge.firing.fired_step) == (33, 33)


def test_a_streak_across_the_hold_is_none() -> None:
    one = policy({**SPIKE, "action": "Pause"})
    records = run([*healthy(40), *[9.0] * 6])
    judge = judge_of(resumed(one, 43), records[:45], one)
    assert judge.firing is None
    judge.take(tuple(records[45:]), resumed(one, 43))
    assert judge.firing is not None
    assert (judge.firing.first_bad_step, judge.firing.fired_step) == (44, 46)


def test_an_operator_that_saw_the_hold_and_one_that_did_not_judge_alike() -> None:
    one = policy({**SPIKE, "action": "Pause"})
    losses = [*healthy(40), *[9.0] * 7, *healthy(5), *[9.0] * 4]
    there = followed(resumed(one), resumed(one, 44), losses, 44, one)
    restarted = judge_of(resumed(one, 44), run(losses), one)
    assert there.firing == restarted.firing
    assert there.firing is not None
    assert there.firing.fired_step == 47
    assert (there.judged_step, there.notes) == (restarted.judged_step, restarted.notes)


def test_a_stronger_rule_takes_a_pause_over() -> None:
    one = policy(PAUSE, HALT)
    judge = judge_of(resumed(one), run([*healthy(20), 9.0, 99.0]), one)
    assert judge.firing is not None
    assert (judge.firing.rule, judge.firing.action) == ("halt", "Stop")


def test_a_hold_of_an_earlier_attempt_settles_nothing_of_a_later_one() -> None:
    one = policy(PAUSE)
    state = run_state(
        guards=(guarded(one),),
        attempts=attempts((None, 0), (1, 10)),
        resumptions=(Resumption(attempt=1, step=22),),
    )
    judge = judge_of(state, [*run(healthy(10)), *run([*healthy(5), 9.0], attempt=2, first=11)], one)
    assert judge.firing is not None
    assert judge.firing.fired_step == 16


def test_a_long_absence_under_on_no_data_pause_pauses() -> None:
    seen = {"name": "seen", "metric": "loss", "range": {"max": 9}, "action": "Notify", "onNoData": "Pause"}
    one = policy({**seen, "noDataFor": "10m"})
    state = resumed(one)
    judge = judge_of(state, run(healthy(10)), one)
    judge.listen(599.0, state)
    assert judge.firing is None
    judge.listen(600.0, state)
    assert judge.firing is not None
    assert (judge.firing.action, judge.firing.fired_step) == ("Pause", 10)
