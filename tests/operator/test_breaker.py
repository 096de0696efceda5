"""The breaker over all runs: many failures within minutes hold automation, and only quiet lets it go."""

import random

import pytest
from trimtab_operator.breaker import Breaker, BreakerSettings, Failure, explain

SETTINGS = BreakerSettings(min_runs=3, min_share=0.25, window_seconds=300, quiet_seconds=900)


def failures(*times: float, runs: str = "abcdefgh") -> list[Failure]:
    return [Failure(time, run) for time, run in zip(times, runs, strict=False)]


def breaker(known: list[Failure], now: float, *, watched: int = 8, settings: BreakerSettings = SETTINGS) -> Breaker:
    return Breaker().after(known, watched=[f"w{n}" for n in range(watched)], now=now, settings=settings)


def test_three_of_eight_runs_that_fail_within_minutes_trip_it() -> None:
    trip = breaker(failures(1000, 1100, 1200), 1200).trip
    assert trip is not None
    assert (trip.since, trip.runs) == (1200, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("known", "watched"),
    [
        pytest.param(failures(1000, 1100), 2, id="two runs are too few, whatever their share"),
        pytest.param(failures(1000, 1100, 1200, runs="aab"), 2, id="one run that fails twice is one run"),
        pytest.param(failures(1000, 1150, 1301), 8, id="the first failure has left the window"),
        pytest.param(failures(1000, 1100, 1200), 10, id="three of thirteen are less than a quarter"),
    ],
)
def test_it_stays_closed(known: list[Failure], watched: int) -> None:
    assert breaker(known, 1301, watched=watched).trip is None


def test_a_run_that_failed_and_is_watched_is_counted_once() -> None:
    watched = ["a", "b", "c", *(f"w{n}" for n in range(9))]
    assert Breaker().after(failures(1, 2, 3), watched=watched, now=3, settings=SETTINGS).trip is not None


def test_each_further_failure_prolongs_the_hold_and_quiet_ends_it() -> None:
    known = [*failures(1000, 1100, 1200), Failure(1900, "a")]
    assert breaker(known, 1900 + 899).trip is not None
    assert breaker(known, 1900 + 900).trip is None


def test_failures_that_tripped_it_once_trip_it_no_second_time() -> None:
    known = failures(1000, 1100, 1200)
    later = [*known, Failure(2101, "d"), Failure(2102, "e")]
    assert breaker(later, 2102).trip is None
    assert breaker([*later, Failure(2103, "f")], 2103).trip is not None


def test_runs_that_come_or_go_do_not_release_what_is_held() -> None:
    known = failures(1000, 1100, 1200)
    held = breaker(known, 1200)
    assert held.after(known, watched=[f"n{n}" for n in range(500)], now=1300, settings=SETTINGS) == held


def test_an_operator_that_takes_over_comes_to_the_same_answer_whenever_it_looks() -> None:
    seed = random.Random(7)
    for _ in range(200):
        known = sorted(Failure(float(seed.randrange(0, 5000)), seed.choice("abcdefgh")) for _ in range(14))
        live, watched = Breaker(), list("abcdefgh")
        for count, failure in enumerate(known, 1):
            live = live.after(known[:count], watched=watched, now=failure.time, settings=SETTINGS)
        at = known[-1].time + seed.choice([0, 400, 1000])
        live = live.after(known, watched=watched, now=at, settings=SETTINGS)
        seed.shuffle(known)
        assert Breaker().after(known, watched=watched, now=at, settings=SETTINGS).trip == live.trip


def test_a_clock_that_is_ahead_prolongs_nothing() -> None:
    known = [*failures(1000, 1100), Failure(9000, "c")]
    trip = breaker(known, 1200).trip
    assert trip is not None
    assert trip.last == 1200


def test_disabled_it_lets_go_of_what_it_held() -> None:
    known = failures(1000, 1100, 1200)
    off = BreakerSettings(enabled=False)
    assert breaker(known, 1200).after(known, watched=[], now=1201, settings=off).trip is None


def test_it_says_who_failed_and_what_is_waited_for() -> None:
    known = failures(*range(1000, 1008))
    trip = breaker(known, 1010, settings=BreakerSettings(min_runs=7)).trip
    assert trip is not None
    text = explain(trip, SETTINGS)
    assert text.startswith("7 runs failed within 300 s (a, b, c, d, e and 2 more), so the platform is suspected")
    assert "until none has failed for 900 s" in text
