"""The order of a log: which points are judged, and which runs, attempts and gaps they make."""

import math
from collections.abc import Iterable

from trimtab_contract.metrics import Vector
from trimtab_policies.backtest.history import Arrival, Beginning, LeftOut, LogHistory
from trimtab_policies.log_readers.points import LogPoint


def point(step: int, loss: float = 2.0, *, attempt: int | None = None, **more: float) -> LogPoint:
    return LogPoint(step=step, scalars={"loss": loss, **more}, attempt=attempt, line=step + 1)


def arrivals(points: Iterable[LogPoint], kept: int = 1_000) -> list[Arrival | LeftOut]:
    history = LogHistory({"loss"}, kept)
    return [history.take(one) for one in points]


def judged(found: Iterable[Arrival | LeftOut]) -> list[Arrival]:
    return [one for one in found if isinstance(one, Arrival)]


def beginnings(points: Iterable[LogPoint]) -> dict[int, Beginning]:
    """Index of the point -> what begins with it."""
    return {
        index: one.beginning
        for index, one in enumerate(arrivals(points))
        if isinstance(one, Arrival) and one.beginning is not None
    }


def test_ordinals_count_records_where_the_log_skips_steps() -> None:
    found = judged(arrivals(point(step) for step in range(140_749, 140_849, 5)))
    assert [one.entry.ordinal for one in found] == list(range(1, 21))


def test_ordinals_are_steps_where_every_step_has_a_record_of_our_own() -> None:
    found = judged(arrivals(point(step, attempt=1) for step in range(501, 521)))
    assert [one.entry.ordinal for one in found] == list(range(501, 521))


def test_only_judged_metrics_are_kept() -> None:
    (one,) = judged(arrivals([point(1, lr=0.1)]))
    assert one.entry.record.scalars == {"loss": 2.0}


def test_a_step_that_repeats_its_content_is_a_duplicate_also_with_nan() -> None:
    found = arrivals([point(1), point(2, math.nan), point(2, float("nan")), point(3)])
    assert found[2] is LeftOut.DUPLICATE
    assert len(judged(found)) == 3


def test_a_repeated_stretch_with_equal_content_is_no_new_attempt() -> None:
    steps = [*range(1, 11), *range(5, 15)]
    found = arrivals(point(step, 1 / step) for step in steps)
    assert [one.entry.record.step for one in judged(found)] == list(range(1, 15))
    assert found.count(LeftOut.DUPLICATE) == 6


def test_the_first_of_two_different_records_of_a_step_counts() -> None:
    found = arrivals([point(1), point(2, 2.0), point(2, 3.0), point(3)])
    assert found[2] is LeftOut.CONFLICT
    assert [one.entry.record.scalars["loss"] for one in judged(found)] == [2.0, 2.0, 2.0]


def test_a_late_record_is_left_out_and_disturbs_nothing() -> None:
    found = arrivals([point(1), point(2), point(4), point(3), point(5)])
    assert found[3] is LeftOut.LATE
    assert [one.beginning for one in judged(found)] == [Beginning.RUN, None, None, None]


def test_a_step_that_goes_back_begins_an_attempt_that_continues_the_records_before_it() -> None:
    points = [*(point(step, 1 / step) for step in range(1, 11)), *(point(step, 5.0) for step in range(7, 9))]
    found = judged(arrivals(points))
    assert found[10].beginning is Beginning.ATTEMPT
    assert [one.record.step for one in found[10].survivors] == [1, 2, 3, 4, 5, 6]
    assert [(one.entry.attempt, one.entry.ordinal) for one in found[10:]] == [(2, 7), (2, 8)]


def test_a_replay_that_differs_only_later_begins_where_it_differs() -> None:
    points = [*(point(step) for step in range(1, 11)), point(6), point(7), point(8, 9.0)]
    assert beginnings(points) == {0: Beginning.RUN, 12: Beginning.ATTEMPT}


def test_a_step_that_goes_back_to_the_first_begins_a_run_that_remembers_nothing() -> None:
    points = [*(point(step) for step in range(5)), *(point(step) for step in range(5))]
    found = judged(arrivals(points))
    assert found[5].beginning is Beginning.RUN
    assert not found[5].survivors
    assert (found[5].entry.run, found[5].entry.ordinal) == (2, 1)


def test_a_stated_attempt_continues_what_came_before_its_first_step() -> None:
    points = [
        *(point(step, attempt=1) for step in range(1, 11)),
        *(point(step, 3.0, attempt=2) for step in range(6, 9)),
        point(11, attempt=1),
        point(9, 3.0, attempt=2),
    ]
    found = arrivals(points)
    second = found[10]
    assert isinstance(second, Arrival)
    assert second.beginning is Beginning.ATTEMPT
    assert [one.record.step for one in second.survivors] == [1, 2, 3, 4, 5]
    assert found[13] is LeftOut.SUPERSEDED
    assert isinstance(found[14], Arrival)


def test_a_stated_attempt_that_begins_behind_the_last_step_ends_streaks_too() -> None:
    found = judged(arrivals([point(1, attempt=1), point(2, attempt=1), point(3, attempt=2)]))
    assert found[2].beginning is Beginning.ATTEMPT
    assert found[2].entry.record.attempt != found[1].entry.record.attempt


def test_a_regular_cadence_has_no_gap() -> None:
    assert set(beginnings(point(step) for step in range(0, 5_000, 50)).values()) == {Beginning.RUN}


def test_a_jump_of_many_times_the_usual_is_a_gap_after_which_nothing_is_in_a_row() -> None:
    points = [point(step) for step in (1, 2, 3, 4, 5, 30, 31)]
    assert beginnings(points) == {0: Beginning.RUN, 5: Beginning.STRETCH}
    found = judged(arrivals(points))
    assert found[4].entry.record.attempt != found[5].entry.record.attempt
    assert found[5].entry.attempt == 1


def test_a_log_that_grows_sparser_has_one_gap() -> None:
    points = [point(step) for step in (*range(1, 21), *range(200, 4_000, 200))]
    assert list(beginnings(points).values()) == [Beginning.RUN, Beginning.STRETCH, Beginning.STRETCH, Beginning.STRETCH]


def test_a_missing_record_of_our_own_is_a_gap() -> None:
    points = [point(step, attempt=1) for step in (1, 2, 3, 5, 6)]
    assert beginnings(points) == {0: Beginning.RUN, 3: Beginning.STRETCH}


def test_what_is_kept_is_bounded_and_going_back_beyond_it_remembers_nothing() -> None:
    points = [*(point(step) for step in range(1, 101)), point(50, 3.0)]
    last = arrivals(points, kept=10)[-1]
    assert isinstance(last, Arrival)
    assert last.beginning is Beginning.ATTEMPT
    assert last.survivors == ()


def test_records_of_one_step_with_other_vectors_differ() -> None:
    def with_vector(value: float) -> LogPoint:
        return LogPoint(step=1, scalars={}, vectors={"qk_clip_gamma": Vector.pack((1, 2), (1.0, value))}, line=1)

    assert arrivals([with_vector(1.0), with_vector(1.0)])[1] is LeftOut.DUPLICATE
    assert arrivals([with_vector(1.0), with_vector(0.5)])[1] is LeftOut.CONFLICT
