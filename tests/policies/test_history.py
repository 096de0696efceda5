"""The surviving history takes each record once, in order, without gaps, and forgets what a rollback undid."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged_runs import SPIKE, Run, accepted, healthy, judged, losses, new_run, record
from trimtab_contract.metrics import MetricRecord
from trimtab_policies.errors import EmptyHistory, InvalidLineage
from trimtab_policies.lineage import Appended, Attempt, History, Lineage
from trimtab_policies.verdicts import Finding

POLICY = accepted({"spike": SPIKE, "forRecords": 3}, {"range": {"max": 5}})


def filled(count: int, *, kept: int = 1000) -> History:
    history = History(Lineage([Attempt(1)]), 1, kept=kept)
    for one in losses(healthy(count)):
        assert history.append(one) is Appended.ACCEPTED
    return history


def branched(lineage: Lineage, attempt: int, records: list[MetricRecord]) -> History:
    """The history of `attempt` as it is loaded again from all records there are."""
    history = History(lineage, attempt, kept=1000)
    for one in records:
        history.append(one)
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
    history = branched(Lineage([Attempt(1), Attempt(2, 1, 10)]), 2, losses(healthy(20)))
    assert history.append(record(11, attempt=1)) is Appended.STALE
    assert history.append(record(11, attempt=3)) is Appended.STALE
    assert history.append(record(11, attempt=2)) is Appended.ACCEPTED
    assert [(one.attempt, one.step) for one in history.records][-2:] == [(1, 10), (2, 11)]


def test_a_restart_may_branch_beyond_the_last_record_seen_and_then_needs_its_parents_records() -> None:
    history = branched(Lineage([Attempt(1), Attempt(2, 1, 22)]), 2, losses(healthy(20)))
    assert history.append(record(23, attempt=2)) is Appended.GAP
    assert history.missing_step == 21
    given = [record(21), record(22), record(23), record(23, attempt=2)]
    assert [history.append(one).name for one in given] == ["ACCEPTED", "ACCEPTED", "STALE", "ACCEPTED"]


def test_a_second_plan_from_the_same_parent_supersedes_the_first() -> None:
    records = [*losses(healthy(20)), record(16, attempt=2)]
    history = branched(Lineage([Attempt(1), Attempt(2, 1, 15), Attempt(3, 2, 10)]), 3, records)
    assert history.append(record(11, attempt=3)) is Appended.ACCEPTED
    assert [(one.attempt, one.step) for one in history.records][-2:] == [(1, 10), (3, 11)]


def test_an_attempt_that_is_not_in_the_lineage_has_no_history() -> None:
    with pytest.raises(InvalidLineage):
        History(Lineage([Attempt(1)]), 2, kept=10)


def test_a_run_resumed_at_step_140749_begins_at_140750() -> None:
    run = new_run(POLICY, start_step=140_749)
    assert run.append(record(1)) is Appended.STALE
    verdicts = judged(POLICY, losses([*healthy(30), 9.0, 9.0, 9.0], first=140_750), run)
    assert (verdicts[-1].state.value, verdicts[-1].first_bad_step) == ("Firing", 140_780)


def test_as_many_records_as_asked_for_are_at_hand_and_no_more() -> None:
    history = filled(1000, kept=50)
    assert [one.step for one in history.records] == list(range(951, 1001))
    assert history.records[-1] == history.last


def test_an_empty_history_has_no_last_record() -> None:
    with pytest.raises(EmptyHistory):
        _ = History(Lineage([Attempt(1)]), 1, kept=10).last
    with pytest.raises(EmptyHistory):
        new_run(POLICY).judge()


CURVE = losses([*healthy(40), 9.0, *healthy(10), 9.0, 9.0, 9.0, float("nan"), *healthy(20)])


def findings_of(run: Run, offered: list[MetricRecord]) -> list[list[Finding]]:
    accepted = [one for one in offered if run.append(one) is Appended.ACCEPTED]
    return [[verdict.finding for verdict in run.judge()]] if accepted else []


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_duplicates_older_attempts_and_filled_gaps_change_no_verdict(data: st.DataObject) -> None:
    noisy, clean = Run(POLICY, lineage=Lineage([Attempt(7), Attempt(8, 7, 0)])), new_run(POLICY)
    current = [msgspec.structs.replace(one, attempt=8) for one in CURVE]
    for position, original in enumerate(CURVE):
        noise = data.draw(st.lists(st.integers(0, len(current) - 1).filter(position.__ne__), max_size=3))
        for step in noise:
            noisy.append(record(step + 1, attempt=7, loss=50.0))
            assert noisy.append(current[step]) is not Appended.ACCEPTED
        assert repr(findings_of(noisy, [current[position]])) == repr(findings_of(clean, [original]))


@given(st.integers(1, 60), st.integers(0, 39))
@settings(deadline=None, max_examples=40)
def test_a_rollback_gives_the_verdicts_of_a_history_loaded_afresh(reached: int, branch: int) -> None:
    branch = min(branch, reached)
    live = new_run(POLICY)
    findings_of(live, CURVE[:reached])
    live.rebase(2, 1, branch)
    fresh = Run(POLICY, lineage=Lineage([Attempt(1), Attempt(2, 1, branch)]))
    findings_of(fresh, CURVE[:branch])
    for one in losses([2.0, 9.0, 9.0, 9.0, 2.0], first=branch + 1, attempt=2):
        assert repr(findings_of(live, [one])) == repr(findings_of(fresh, [one]))
