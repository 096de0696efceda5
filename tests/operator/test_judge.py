"""One run's judgement with the real policies' engine: what is latched, and that it never depends on who looks when."""

import json
import math
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from judged_runs import record
from run_states import attempts, incident, latch, run_state
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.incidents import PolicyIdentity, WithheldStep
from trimtab_operator.judge import Judge
from trimtab_operator.run_state import AcceptedGuard, Resumption, RunState
from trimtab_policies.policy import AcceptedPolicy, parse_policy

SPIKE: dict[str, Any] = {
    "name": "loss-spike",
    "metric": "loss",
    "spike": {"baseline": {"records": 20, "minRecords": 10}, "sigma": 4},
    "forRecords": 3,
    "action": "Rollback",
}
NONFINITE = {"name": "non-finite", "metric": "nonfinite", "range": {"max": 0}, "forRecords": 1, "action": "Rollback"}
LOUD = {"name": "loud", "metric": "loss", "range": {"max": 5}, "forRecords": 1, "action": "Notify"}
HALT = {"name": "halt", "metric": "loss", "range": {"max": 50}, "forRecords": 1, "action": "Stop"}


def policy(*rules: dict[str, Any], mode: str = "Enforce", generation: int = 1, name: str = "guard") -> AcceptedPolicy:
    spec = parse_policy(
        {
            "mode": mode,
            "rules": list(rules),
            "remediation": {
                "margin": 12,
                "skipBatches": {"before": 1, "after": 3, "probe": 40},
                "probationSteps": 25,
                "escalate": {"marginFactor": 3},
                "learningRate": {"scale": 0.5, "forSteps": 60},
            },
        }
    )
    return AcceptedPolicy.of(
        spec, kind="GuardPolicy", namespace="lab", name=name, uid=f"uid-{name}", generation=generation
    )


def identity(one: AcceptedPolicy) -> PolicyIdentity:
    return PolicyIdentity(
        kind=one.kind, namespace="lab", name=one.name, uid=one.uid, generation=one.generation, hash=one.hash
    )


def guarded(*policies: AcceptedPolicy, mode: str = "Enforce", step: int = 1, attempt: int = 1) -> AcceptedGuard:
    return AcceptedGuard(
        policies=tuple(identity(one) for one in policies), mode=mode, from_attempt=attempt, from_step=step
    )


def judge_of(state: RunState, records: Iterable[MetricRecord], *policies: AcceptedPolicy) -> Judge:
    judge = Judge()
    judge.texts.update({one.hash: one for one in policies})
    judge.begin(state, tuple(records))
    return judge


def run(losses: Iterable[float], *, attempt: int = 1, first: int = 1, **scalars: float) -> list[MetricRecord]:
    return [
        record(step, attempt=attempt, loss=loss, nonfinite=0.0, **scalars) for step, loss in enumerate(losses, first)
    ]


def healthy(count: int) -> list[float]:
    return [2.0 + 0.1 * (1, -1, 0.5, -0.5)[index % 4] for index in range(count)]


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


def test_a_non_finite_loss_is_a_word_in_the_latch() -> None:
    one = policy(SPIKE)
    judge = judge_of(run_state(guards=(guarded(one),)), run([*healthy(40), math.nan, math.inf, math.nan]), one)
    assert judge.firing is not None
    assert judge.firing.observed == "NaN"


def test_without_healthy_losses_there_is_no_limit_for_the_control() -> None:
    one = policy(NONFINITE)
    judge = judge_of(run_state(guards=(guarded(one),)), [record(1, nonfinite=3.0)], one)
    assert judge.firing is not None
    assert judge.firing.control_limit is None


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


# A person let the run go on -----------------------------------------------------------------------------------------

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
