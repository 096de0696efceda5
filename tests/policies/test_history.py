"""The surviving history takes each record once, in order, without gaps, and forgets what a rollback undid."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, accepted, healthy, judged, losses, new_history, record
from trimtab_contract.metrics import MetricRecord
from trimtab_policies.errors import EmptyHistory, InvalidLineage
from trimtab_policies.evaluation import Verdict, judge
from trimtab_policies.lineage import Appended, Attempt, History, Lineage

POLICY = accepted({"spike": SPIKE, "forRecords": 3}, {"range": {"max": 5}})


def steps(history: History) -> list[tuple[int, int]]:
    return [(one.attempt, one.step) for one in history.records]


def filled(count: int, *, retention: int = 1000) -> History:
    history = History(Lineage([Attempt(1)]), 1, retention=retention)
    for one in losses(healthy(count)):
        assert history.append(one) is Appended.ACCEPTED
    return history


def test_a_record_that_came_before_is_a_duplicate() -> None:
    history = filled(5)
    assert [history.append(record(step)) for step in (5, 1)] == [Appended.DUPLICATE, Appended.DUPLICATE]
    assert len(history.records) == 5


def test_a_gap_stops_the_history_until_the_missing_step_arrives() -> None:
    history = filled(5)
    assert history.missing_step is None
    assert history.append(record(8)) is Appended.GAP
    assert (history.missing_step, history.last.step) == (6, 5)
    assert history.append(record(6)) is Appended.ACCEPTED
    assert history.missing_step == 7
    assert [history.append(record(step)) for step in (7, 8)] == [Appended.ACCEPTED, Appended.ACCEPTED]
    assert history.missing_step is None


def test_records_of_attempts_that_do_not_own_the_step_are_stale() -> None:
    history = filled(20)
    history.rebase(2, 1, 10)
    assert history.append(record(11, attempt=1)) is Appended.STALE
    assert history.append(record(11, attempt=3)) is Appended.STALE
    assert history.append(record(11, attempt=2)) is Appended.ACCEPTED
    assert steps(history)[-2:] == [(1, 10), (2, 11)]


def test_a_rollback_drops_the_steps_beyond_the_branch_and_their_gap() -> None:
    history = filled(20)
    history.append(record(30))
    history.rebase(2, 1, 10)
    assert (history.next_step, history.missing_step, history.attempt_start_step) == (11, None, 10)


def test_a_restart_may_branch_beyond_the_last_record_seen_and_then_needs_its_parents_records() -> None:
    history = filled(20)
    history.rebase(2, 1, 22)
    assert history.append(record(23, attempt=2)) is Appended.GAP
    assert history.missing_step == 21
    given = [record(21), record(22), record(23), record(23, attempt=2)]
    assert [history.append(one).name for one in given] == ["ACCEPTED", "ACCEPTED", "STALE", "ACCEPTED"]


def test_a_second_plan_from_the_same_parent_supersedes_the_first() -> None:
    history = filled(20)
    history.rebase(2, 1, 15)
    history.append(record(16, attempt=2))
    history.rebase(3, 2, 10)
    assert history.append(record(11, attempt=3)) is Appended.ACCEPTED
    assert steps(history)[-2:] == [(1, 10), (3, 11)]


def test_entering_the_current_attempt_again_changes_nothing() -> None:
    history = filled(20)
    history.rebase(2, 1, 10)
    history.append(record(11, attempt=2))
    history.rebase(2, 1, 10)
    assert history.last.step == 11
    with pytest.raises(InvalidLineage):
        history.rebase(2, 1, 9)


def test_a_rollback_to_before_the_kept_records_says_that_it_must_be_loaded_again() -> None:
    history = filled(95, retention=20)
    assert not history.is_short
    history.rebase(2, 1, 30)
    assert history.is_short
    assert history.append(record(31, attempt=2)) is Appended.ACCEPTED
    assert history.is_short


def test_a_longer_retention_says_that_the_history_must_be_loaded_again() -> None:
    history = filled(95, retention=20)
    history.retention = 90
    assert history.is_short


def test_a_run_resumed_at_step_140749_begins_at_140750_and_is_not_short() -> None:
    history = new_history(POLICY, start_step=140_749)
    assert history.append(record(1)) is Appended.STALE
    verdicts = judged(POLICY, losses([*healthy(30), 9.0, 9.0, 9.0], first=140_750), history)
    assert (verdicts[-1].state.value, verdicts[-1].first_bad_step) == ("Firing", 140_780)
    assert not history.is_short


def test_the_length_is_bounded_and_never_below_the_retention() -> None:
    history = History(Lineage([Attempt(1)]), 1, retention=50)
    lengths = [len(history.records) for one in losses(healthy(1000)) if history.append(one) is Appended.ACCEPTED]
    assert max(lengths) <= 100
    assert min(lengths[50:]) >= 50


def test_what_was_worked_out_for_a_rule_no_longer_judged_is_forgotten() -> None:
    before, after = accepted({"range": {"max": 5}}), accepted({"range": {"max": 6}})
    history = new_history(before)
    judged(before, losses(healthy(10)), history)
    judged(after, losses(healthy(3 * history.retention), first=11), history)
    assert list(history._memo) == [after.spec.rules[0]]


def test_an_empty_history_has_no_last_record() -> None:
    with pytest.raises(EmptyHistory):
        judge((POLICY,), new_history(POLICY))


CURVE = losses([*healthy(40), 9.0, *healthy(10), 9.0, 9.0, 9.0, float("nan"), *healthy(20)])


def verdicts_of(history: History, offered: list[MetricRecord]) -> list[tuple[Verdict, ...]]:
    return [judge((POLICY,), history) for one in offered if history.append(one) is Appended.ACCEPTED]


CLEAN = verdicts_of(new_history(POLICY), CURVE)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_duplicates_older_attempts_and_filled_gaps_change_no_verdict(data: st.DataObject) -> None:
    history = History(Lineage([Attempt(7), Attempt(8, 7, 0)]), 8, retention=1000)
    current = [msgspec.structs.replace(one, attempt=8) for one in CURVE]
    found: list[tuple[Verdict, ...]] = []
    while history.next_step <= len(current):
        position = history.next_step - 1
        noise = data.draw(st.lists(st.integers(0, len(current) - 1), max_size=3))
        older = [record(step + 1, attempt=7, loss=50.0) for step in noise]
        found += verdicts_of(history, [*older, *(current[step] for step in noise), current[position]])
    assert [[plain(one) for one in row] for row in found] == [[plain(one) for one in row] for row in CLEAN]


@given(st.integers(1, 60), st.integers(0, 39))
@settings(deadline=None, max_examples=40)
def test_a_rollback_gives_the_verdicts_of_a_history_loaded_afresh(reached: int, branch: int) -> None:
    branch = min(branch, reached)
    live = new_history(POLICY)
    verdicts_of(live, CURVE[:reached])
    live.rebase(2, 1, branch)
    after = losses([2.0, 9.0, 9.0, 9.0, 2.0], first=branch + 1, attempt=2)
    fresh = History(Lineage([Attempt(1), Attempt(2, 1, branch)]), 2, retention=1000)
    verdicts_of(fresh, CURVE[:branch])
    assert verdicts_of(live, after) == verdicts_of(fresh, after)


def plain(verdict: Verdict) -> tuple[object, ...]:
    return (verdict.state, verdict.reason, verdict.message, verdict.first_bad_step, verdict.flagged_windows)
