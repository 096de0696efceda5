"""What a run was like when it was healthy: the measure of its control, its probation and its checkpoints."""

import math

import msgspec
import pytest
from judged_guards import NONFINITE, SPIKE, guarded, healthy, judge_of, policy, run
from judged_runs import record
from run_states import incident, latch, run_state


def test_a_non_finite_step_is_latched_in_words_and_judges_its_control_by_healthy_losses() -> None:
    one = policy(NONFINITE)
    records = [*run(healthy(40)), record(41, loss=math.nan, nonfinite=17.0)]
    judge = judge_of(run_state(guards=(guarded(one),)), records, one)
    latch = judge.firing
    assert latch is not None
    assert (latch.rule, latch.observed, latch.sigma, latch.on_loss) == ("non-finite", 17.0, None, False)
    assert latch.control_limit is not None
    assert 2.0 < latch.control_limit < 2.6
    assert latch.flagged == (40, 40)


def test_damage_that_a_person_let_stand_is_no_measure_of_what_comes_later() -> None:
    """A pause let go in the midst of the damage: its losses would lift the limit, and pass a bad probation as well."""
    one = policy(NONFINITE)
    let_go = incident(latch=latch(first_bad_step=41, flagged=(40, 41)), held_step=50, outcome="Resumed")
    state = run_state(guards=(guarded(one),), closed=(let_go,))
    records = [*run([*healthy(40), *[9.0] * 10, *healthy(5)]), record(56, loss=2.0, nonfinite=1.0)]
    found = judge_of(state, records, one).firing
    assert found is not None
    assert found.control_limit is not None
    assert 2.0 < found.control_limit < 2.6
    assert found.healthy is not None
    assert (found.healthy.records, found.healthy.loss_mean) == (45, pytest.approx(2.0, abs=0.01))


def test_without_healthy_losses_there_is_no_limit_for_the_control() -> None:
    one = policy(NONFINITE)
    judge = judge_of(run_state(guards=(guarded(one),)), [record(1, nonfinite=3.0)], one)
    assert judge.firing is not None
    assert judge.firing.control_limit is None


def test_losses_no_trainer_can_measure_break_no_judgement() -> None:
    nonfinite = policy(NONFINITE)
    records = [*run([*healthy(30), *[1.7e308] * 5]), record(36, loss=2.0, nonfinite=1.0)]
    firing = judge_of(run_state(guards=(guarded(nonfinite),)), records, nonfinite).firing
    assert firing is not None
    assert firing.control_limit is not None
    assert 2.0 < firing.control_limit < 2.6


def test_a_latch_carries_the_healthy_records_that_a_probation_is_compared_with() -> None:
    guard = policy(SPIKE)
    state = run_state(guards=(guarded(guard),))
    records = run([9.0, *healthy(120), 9.0, 9.0, 9.0], tokens_per_second=50.0)
    latched = judge_of(state, records, guard).firing
    assert latched is not None
    assert latched.healthy is not None
    assert (latched.healthy.records, latched.healthy.tokens_per_second) == (100, 50.0)
    assert latched.healthy.loss_mean == pytest.approx(2.0, abs=0.02)
    assert latched.healthy.clip_rate is None


def test_the_end_of_a_probation_is_its_last_records_however_far_the_run_has_got_since() -> None:
    guard = policy(SPIKE)
    state = run_state(guards=(guarded(guard),))
    judge = judge_of(state, run([*healthy(60), *([3.0] * 20), *healthy(40)]), guard)
    measured = judge.vitals(30, 80)
    assert measured is not None
    assert (measured.records, measured.loss_mean) == (20, 3.0)
    few = judge.vitals(75, 80)
    assert few is not None
    assert few.records == 5
    assert judge.vitals(500, 510) is None


def test_green_is_what_every_rule_that_acts_has_seen_to_be_healthy() -> None:
    sparse = {"name": "mismatch", "metric": "replica_mismatch", "range": {"max": 0}, "action": "Rollback"}
    never = {"name": "typo", "metric": "gradnorm", "range": {"max": 9}, "action": "Notify"}
    one = policy(SPIKE, sparse, never)
    records = run(healthy(40))
    records[24] = msgspec.structs.replace(records[24], scalars={**records[24].scalars, "replica_mismatch": 0.0})
    state = run_state(guards=(guarded(one),))
    assert judge_of(state, records[:24], one).green_step == 0
    assert judge_of(state, records, one).green_step == 25
    observed = run_state(guards=(guarded(one, mode="Observe"),))
    assert judge_of(observed, records, one).green_step == 0
