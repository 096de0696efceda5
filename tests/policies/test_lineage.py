"""Which attempt's record of a step survives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trimtab_policies.errors import InvalidLineage
from trimtab_policies.lineage import Attempt, Lineage, Segment


def test_one_attempt_owns_all_its_steps() -> None:
    lineage = Lineage([Attempt(1)])
    assert lineage.surviving(1) == (Segment(1, 1, None),)
    assert (lineage.owner(1, 1), lineage.owner(10**9, 1)) == (1, 1)


def test_a_successor_continues_its_parent_up_to_the_branch() -> None:
    lineage = Lineage([Attempt(1), Attempt(2, 1, 300)])
    assert lineage.surviving(2) == (Segment(1, 1, 300), Segment(2, 301, None))
    assert [lineage.owner(step, 2) for step in (300, 301)] == [1, 2]
    assert lineage.owner(301, 1) == 1


def test_a_second_rollback_below_the_first_branch_empties_the_middle_attempt() -> None:
    lineage = Lineage([Attempt(1), Attempt(2, 1, 300), Attempt(3, 2, 250)])
    assert lineage.surviving(3) == (Segment(1, 1, 250), Segment(3, 251, None))


def test_an_attempt_that_trained_nothing_leaves_no_segment() -> None:
    lineage = Lineage([Attempt(1), Attempt(2, 1, 300), Attempt(3, 2, 300), Attempt(4, 3, 350)])
    assert lineage.surviving(4) == (Segment(1, 1, 300), Segment(3, 301, 350), Segment(4, 351, None))


def test_a_rollback_to_the_very_beginning_leaves_only_the_new_attempt() -> None:
    assert Lineage([Attempt(1), Attempt(2, 1, 0)]).surviving(2) == (Segment(2, 1, None),)


def test_a_run_resumed_at_step_140749_owns_nothing_before_it() -> None:
    lineage = Lineage([Attempt(1, None, 140_749), Attempt(2, 1, 140_900)])
    assert [lineage.owner(step, 2) for step in (140_749, 140_750, 140_901)] == [None, 1, 2]


@pytest.mark.parametrize(
    "attempts", [[Attempt(1), Attempt(1)], [Attempt(2, 1, 5)], [Attempt(1), Attempt(2, 3, 5), Attempt(3, 1, 5)]]
)
def test_attempts_that_form_no_tree_are_refused(attempts: list[Attempt]) -> None:
    with pytest.raises(InvalidLineage):
        Lineage(attempts)


def test_an_unknown_attempt_is_refused() -> None:
    with pytest.raises(InvalidLineage, match="attempt 7"):
        Lineage([Attempt(1)]).surviving(7)


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    attempts = [Attempt(1)]
    for number in range(2, draw(st.integers(2, 8)) + 1):
        parent, branch_step = draw(st.integers(1, number - 1)), draw(st.integers(0, 40))
        attempts += [Attempt(number, parent, branch_step)]
    return Lineage(attempts)


@given(lineages(), st.integers(1, 60))
def test_the_owner_is_found_by_walking_from_child_to_parent(lineage: Lineage, step: int) -> None:
    for attempt in lineage.attempts:
        one = lineage.attempts[attempt]
        while one.parent is not None and step <= one.branch_step:
            one = lineage.attempts[one.parent]
        assert lineage.owner(step, attempt) == one.attempt


@given(lineages())
def test_segments_join_without_gap_or_overlap(lineage: Lineage) -> None:
    for attempt in lineage.attempts:
        segments = lineage.surviving(attempt)
        assert segments[0].first == 1
        assert segments[-1] == Segment(attempt, segments[-1].first, None)
        assert [segment.last for segment in segments[:-1]] == [segment.first - 1 for segment in segments[1:]]
