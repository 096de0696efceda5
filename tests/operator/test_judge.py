"""One run's judgement with the real policies' engine: what is latched, and that it never depends on who looks when."""

import json
import math

import msgspec
import pytest
from judged_guards import HALT, LOUD, NONFINITE, SPIKE, guarded, healthy, identity, judge_of, policy, run
from judged_runs import record
from run_states import attempts, run_state
from trimtab_operator.incidents import WithheldStep
from trimtab_operator.judge import Judge


def test_a_latch_carries_everything_that_later_edits_must_not_change() -> None:
    one = policy(SPIKE)
    judge = judge_of(run_state(guards=(guarded(one),)), run([*healthy(40), 9.0, 9.5, 9.2, 9.1]), one)
    latch = judge.firing
    assert latch is not None
    assert latch.policy == identity(one)
    assert (latch.rule, latch.metric, latch.action) == ("loss-spike", "loss", "Rollback")
    assert (latch.attempt, latch.first_bad_step, latch.fired_step, latch.flagged) == (1, 41, 43, (40, 42))
    assert latch.observed == 9.2
    assert isinstance(latch.threshold, float)
    assert 2.0 < latch.threshold < 4.0
    assert (latch.sigma, latch.control_limit, latch.on_loss) == (4.0, latch.threshold, True)
    assert "3 records in a row since step 41" in latch.message
    settings = latch.remediation
    assert (settings.margin, settings.before, settings.after, settings.probe) == (12, 1, 3, 40)
    assert (settings.probation_steps, settings.margin_factor) == (25, 3.0)
    assert settings.learning_rate is not None
    assert (settings.learning_rate.scale, settings.learning_rate.until_step) == (0.5, 60)
    assert latch.rule_text["forRecords"] == 3
    assert "floor" not in json.dumps(latch.rule_text)


def test_the_first_firing_of_an_attempt_is_kept_however_late_anybody_acts() -> None:
    one = policy(SPIKE)
    state = run_state(guards=(guarded(one),))
    records = run([*healthy(40), *[9.0] * 30, *healthy(40)])
    whole = judge_of(state, records, one)
    bit_by_bit = judge_of(state, (), one)
    seen = []
    for each in records:
        bit_by_bit.take((each,), state)
        seen.append(bit_by_bit.firing)
    assert seen[41] is None
    assert seen[42] is not None
    assert set(map(repr, seen[42:])) == {repr(whole.firing)}
    assert bit_by_bit.judged_step == whole.judged_step == 110


def test_a_new_attempt_forgets_the_firing_and_is_armed_at_once() -> None:
    one = policy(SPIKE)
    first = run_state(guards=(guarded(one),))
    records = run([*healthy(40), 9.0, 9.0, 9.0])
    judge = judge_of(first, records, one)
    assert judge.firing is not None
    second = run_state(guards=(guarded(one),), attempts=attempts((None, 0), (1, 30)))
    assert judge.needs_loading(second)
    judge.begin(second, tuple(records[:30]))
    assert not judge.needs_loading(second)
    assert (judge.firing, judge.judged_step) == (None, 30)
    judge.take(tuple(run([9.0, 9.0, 9.0], attempt=2, first=31)), second)
    assert judge.firing is not None
    assert (judge.firing.attempt, judge.firing.first_bad_step) == (2, 31)


def test_records_of_an_abandoned_stretch_are_not_judged() -> None:
    one = policy(SPIKE)
    state = run_state(guards=(guarded(one),), attempts=attempts((None, 0), (1, 30)))
    judge = judge_of(state, run([*healthy(40), 9.0, 9.0, 9.0]), one)
    assert (judge.firing, judge.judged_step) == (None, 30)


def test_nothing_is_judged_across_a_gap_until_it_is_filled() -> None:
    one = policy(SPIKE)
    state = run_state(guards=(guarded(one),))
    records = run([*healthy(40), 9.0, 9.0, 9.0])
    judge = judge_of(state, [*records[:20], *records[21:]], one)
    assert (judge.judged_step, judge.missing_step, judge.firing) == (20, 21, None)
    judge.take(tuple(records[20:]), state)
    assert judge.missing_step is None
    assert judge.firing is not None


def test_where_older_records_are_lost_the_history_begins_behind_the_loss() -> None:
    one = policy(SPIKE)
    state = run_state(guards=(guarded(one),), attempts=attempts((None, 0), (1, 30)))
    kept = [each for each in run(healthy(30)) if each.step not in {5, 6}]
    judge = judge_of(state, kept, one)
    assert (judge.judged_step, judge.missing_step) == (30, None)
    judge.take(tuple(run([9.0, 9.0, 9.0], attempt=2, first=31)), state)
    assert judge.firing is not None


def test_notes_are_taken_once_for_each_beginning() -> None:
    one = policy(SPIKE, LOUD)
    state = run_state(guards=(guarded(one),))
    judge = judge_of(state, run([*healthy(20), 9.0, 9.0, *healthy(5), 9.0]), one)
    notes = [(note.rule, note.action, note.step, note.would_have) for note in judge.notes]
    assert notes == [("loud", "Notify", 21, ""), ("loud", "Notify", 28, "")]
    judge.begin(state, tuple(run([*healthy(20), 9.0, 9.0, *healthy(5), 9.0])))
    assert [note.step for note in judge.notes] == [21, 28]
    assert judge.firing is None


@pytest.mark.parametrize(("policy_mode", "guard_mode"), [("Observe", "Enforce"), ("Enforce", "Observe")])
def test_a_rule_that_only_observes_records_what_it_would_have_done(policy_mode: str, guard_mode: str) -> None:
    one = policy(SPIKE, mode=policy_mode)
    judge = judge_of(run_state(guards=(guarded(one, mode=guard_mode),)), run([*healthy(40), 9.0, 9.0, 9.0]), one)
    assert judge.firing is None
    assert [(note.rule, note.action, note.would_have) for note in judge.notes] == [("loss-spike", "Record", "Rollback")]


def test_a_stronger_rule_that_fires_later_takes_over() -> None:
    one = policy(SPIKE, HALT)
    judge = judge_of(run_state(guards=(guarded(one),)), run([*healthy(40), 9.0, 9.0, 9.0, 99.0, 9.0]), one)
    assert judge.firing is not None
    assert (judge.firing.rule, judge.firing.action, judge.firing.fired_step) == ("halt", "Stop", 44)


def test_each_record_is_judged_by_the_policy_then_in_force() -> None:
    old, new = policy(SPIKE), policy({**LOUD, "action": "Rollback"}, generation=2)
    state = run_state(guards=(guarded(old), guarded(new, step=30)))
    judge = judge_of(state, run([*healthy(20), 9.0, *healthy(20), 9.0]), old, new)
    assert judge.firing is not None
    assert (judge.firing.policy.generation, judge.firing.first_bad_step) == (2, 42)


def test_a_non_finite_loss_is_a_word_in_the_latch() -> None:
    one = policy(SPIKE)
    judge = judge_of(run_state(guards=(guarded(one),)), run([*healthy(40), math.nan, math.inf, math.nan]), one)
    assert judge.firing is not None
    assert judge.firing.observed == "NaN"


def test_the_evidence_is_the_records_around_the_first_bad_one() -> None:
    one = policy(SPIKE)
    judge = judge_of(run_state(guards=(guarded(one),)), run([*healthy(300), 9.0, math.nan, 9.0]), one)
    lines = [json.loads(line) for line in judge.evidence().splitlines()]
    assert [line["step"] for line in lines] == list(range(301 - 128, 304))
    assert lines[-2]["scalars"]["loss"] == "NaN"
    assert Judge().evidence() == b""


def test_without_a_policy_records_are_counted_and_nothing_fires() -> None:
    judge = judge_of(run_state(guards=(guarded(),)), run([*healthy(10), 99.0]))
    assert (judge.judged_step, judge.firing, judge.notes) == (11, None, ())


def test_an_edit_that_comes_into_force_is_judged_by_the_whole_history() -> None:
    before, after = policy(SPIKE), policy({**SPIKE, "spike": {"sigma": 3}}, generation=2)
    state = run_state(guards=(guarded(before),))
    judge = judge_of(state, run(healthy(10)), before)
    judge.texts[after.hash] = after
    assert not judge.needs_loading(state)
    edited = run_state(guards=(guarded(before), guarded(after, step=11)))
    assert judge.needs_loading(edited)
    assert judge.wanted(edited)[1] == 1
    judge.begin(edited, tuple(run(healthy(10))))
    assert judge.judged_step == 10
    assert not judge.needs_loading(edited)


def test_silence_is_noted_once_when_it_lasts_longer_than_a_stale_rule_allows() -> None:
    quiet = policy({"name": "silent", "metric": None, "stale": {"after": "5m"}, "action": "Notify"})
    state = run_state(guards=(guarded(quiet),))
    judge = judge_of(state, run(healthy(10)), quiet)
    for second in (1.0, 299.0, 300.0, 301.0):
        judge.listen(second, state)
    assert [(note.rule, note.action, note.step) for note in judge.notes] == [("silent", "Notify", 10)]
    judge.take(tuple(run(healthy(11)))[10:], state)
    judge.listen(400.0, state)
    assert len(judge.notes) == 1


def test_absence_rolls_back_only_where_the_rule_says_that_it_is_a_breach() -> None:
    records = run(healthy(15))
    records[10:] = [msgspec.structs.replace(one, scalars={}) for one in records[10:]]
    for on_no_data, fires in (("Ignore", False), ("Breach", True)):
        rule = {"name": "seen", "metric": "loss", "range": {"max": 9}, "action": "Rollback", "onNoData": on_no_data}
        one = policy(rule | ({"noDataFor": "10m"} if fires else {}))
        state = run_state(guards=(guarded(one),))
        judge = judge_of(state, records, one)
        judge.listen(599.0, state)
        assert judge.firing is None
        judge.listen(600.0, state)
        assert (judge.firing is not None) is fires
    assert judge.firing is not None
    assert (judge.firing.first_bad_step, judge.firing.flagged, judge.firing.observed) == (11, (10, 14), "none")


@pytest.mark.parametrize("mended", ["policy", "job"])
def test_what_was_recorded_before_an_edit_is_held_against_nobody(mended: str) -> None:
    """From Observe to Enforce under a rule that has been breached for long: the streak begins with the edit."""
    strict = {"name": "strict", "metric": "loss", "range": {"max": 1.0}, "forRecords": 5, "action": "Rollback"}
    watching = policy(strict, mode="Observe" if mended == "policy" else "Enforce")
    acting = policy(strict, generation=2) if mended == "policy" else watching
    before = guarded(watching, mode="Enforce" if mended == "policy" else "Observe")
    state = run_state(guards=(before,))
    judge = judge_of(state, run(healthy(60)), watching)
    assert judge.firing is None
    judge.texts[acting.hash] = acting
    edited = run_state(guards=(before, guarded(acting, step=61)))
    assert judge.needs_loading(edited)
    judge.begin(edited, tuple(run(healthy(64))))
    assert judge.firing is None
    judge.take(tuple(run(healthy(66)))[64:], edited)
    assert judge.firing is not None
    assert (judge.firing.first_bad_step, judge.firing.fired_step) == (61, 65)
    assert not judge.needs_loading(edited)


def test_the_withheld_step_that_a_run_stands_at_is_told_and_gone_with_the_next() -> None:
    guard = policy(NONFINITE)
    state = run_state(guards=(guarded(guard),))
    records = run(healthy(10), skipped_update=0.0)
    assert judge_of(state, records, guard).withheld is None
    bad = record(11, loss=math.nan, nonfinite=3.0, skipped_update=1.0)
    assert judge_of(state, [*records, bad], guard).withheld == WithheldStep(step=11, window=10, loss_finite=False)
    gradient = record(11, loss=2.0, nonfinite=3.0, skipped_update=1.0)
    withheld = judge_of(state, [*records, gradient], guard).withheld
    assert withheld is not None
    assert withheld.loss_finite
    later = record(12, loss=2.0, nonfinite=0.0, skipped_update=0.0)
    assert judge_of(state, [*records, bad, later], guard).withheld is None
