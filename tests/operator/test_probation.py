"""What makes a green run pass its probation, and what only keeps people informed."""

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from played_trainer import Scenario
from run_checks import check
from run_fates import DAMAGED, actions, records
from scripted_operator import play
from trimtab_operator.incidents import Vitals
from trimtab_operator.probation import BASELINE_RECORDS, COMPARED_RECORDS, compared, doubts, vitals
from trimtab_operator.run_state import RunPhase
from trimtab_operator.story import event_of

DEMO_CURVE = (3.96, 2.56, 2.35, 2.16, 2.04, 1.92, 1.85, 1.81, 1.78, 1.70, 1.70, 1.61, 1.58, 1.55, 1.53, 1.50, 1.48)
"""The demo's loss, means of 20 steps each; a single record scatters by 0.08 around it."""
DAMAGED_TAIL = (3.6, 2.8, 2.4, 2.1, 1.95)
"""The means of 20 steps of the same run behind its damage, when nothing is rolled back."""


def stretch(means: tuple[float, ...], seed: int = 0, **scalars: float) -> list[dict[str, float]]:
    scatter = Random(seed)
    return [{"loss": mean + scatter.gauss(0, 0.08), **scalars} for mean in means for _ in range(20)]


def told(before: list[dict[str, float]], after: list[dict[str, float]], min_throughput: float = 0.6) -> list[str]:
    found = doubts(vitals(before[-BASELINE_RECORDS:]), vitals(after[-COMPARED_RECORDS:]), min_throughput)
    return [doubt.message for doubt in found]


def test_a_recovered_run_is_in_the_band_of_the_records_before_wherever_its_incident_was() -> None:
    for end in range(5, len(DEMO_CURVE)):
        for seed in range(50):
            before, after = stretch(DEMO_CURVE[:end], seed), stretch(DEMO_CURVE[end - 1 : end + 1], seed + 1000)
            assert told(before, after) == []


@pytest.mark.parametrize("tail", range(1, len(DAMAGED_TAIL)))
def test_a_run_that_still_recovers_from_its_damage_is_not(tail: int) -> None:
    for seed in range(50):
        (message,) = told(stretch(DEMO_CURVE, seed), stretch(DAMAGED_TAIL[:tail], seed + 1000))
        assert message.startswith("the mean loss of the last 20 records is")


def test_a_steady_run_at_half_its_speed_and_one_that_clips_more_are_noticed() -> None:
    before = stretch(DEMO_CURVE, tokens_per_second=1000.0, clip_ratio=1.0)
    assert told(before, stretch((1.48,), tokens_per_second=700.0, clip_ratio=1.0)) == []
    (slow,) = told(before, stretch((1.48,), tokens_per_second=500.0, clip_ratio=1.0))
    assert slow == "500 tokens a second are 50% of the 1000 before the incident"
    assert told(before, stretch((1.48,), tokens_per_second=500.0, clip_ratio=1.0), min_throughput=0.5) == []
    (clipped,) = told(before, stretch((1.48,), tokens_per_second=1000.0, clip_ratio=0.4))
    assert clipped == "100% of the gradients are clipped, 0% were before the incident"


def test_a_single_stall_is_no_slow_run() -> None:
    after = stretch((1.48,), tokens_per_second=1000.0)
    for record in after[-3:]:
        record["tokens_per_second"] = 1.0
    assert told(stretch(DEMO_CURVE, tokens_per_second=1000.0), after) == []


def test_with_little_or_nothing_recorded_nothing_is_doubted() -> None:
    before = stretch(DEMO_CURVE)
    assert told(before, stretch((9.0,))[:7]) == []
    assert told(before[:7], stretch((9.0,))) == []
    assert told(before, [{"other": 1.0}] * 20) == []
    assert doubts(None, vitals(before), 0.6) == doubts(vitals(before), None, 0.6) == ()
    assert compared(vitals(before), vitals([])) == ""


HEALTHY = Vitals(
    records=100, loss_mean=2.0, loss_std=0.1, clip_records=100, clip_rate=0.0, speed_records=100, tokens_per_second=90.0
)
GOOD = msgspec.structs.replace(HEALTHY, records=20, clip_records=20, speed_records=20)
SLOW = msgspec.structs.replace(GOOD, tokens_per_second=45.0)
HIGH = msgspec.structs.replace(GOOD, loss_mean=2.5)


def judged(*ends: Vitals, **changes: Any) -> Any:
    run = play(replace(DAMAGED, steps=60, healthy=HEALTHY, vitals=ends, **changes))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    return run


def test_a_probation_that_is_as_good_as_before_closes_with_its_numbers() -> None:
    run = judged(GOOD)
    (closed,) = records(run, "IncidentClosed")
    assert closed.outcome == "Recovered"
    assert "mean loss 2.0000 over the last 20 records, 2.0000 (std 0.1000) over 100 before" in str(closed.reason)
    assert "100% of the throughput" in str(closed.reason)
    assert not records(run, "ProbationExtended")


def test_a_doubt_extends_the_probation_tells_people_and_is_settled_when_it_passes() -> None:
    run = judged(SLOW, GOOD)
    assert actions(run, "ProbationExtended", "IncidentClosed") == ["ProbationExtended", "IncidentClosed"]
    (extended,) = records(run, "ProbationExtended")
    event = event_of(extended)
    assert event is not None
    assert event[:2] == ("Warning", "ProbationExtended")
    assert event[2].startswith(
        "no rule fires, but 45 tokens a second are 50% of the 90 before the incident; the probation"
    )
    (incident,) = run.state.closed
    assert incident.outcome == "Recovered"
    until = incident.extended_to
    assert until == (extended.after or {})["until"] == incident.held_step + 2 * DAMAGED.probation  # type: ignore[operator]


@pytest.mark.parametrize(("end", "outcome"), [(SLOW, "Recovered"), (HIGH, "Degraded")])
def test_a_doubt_that_stays_is_left_to_people_and_neither_holds_nor_rolls_back_a_green_run(
    end: Vitals, outcome: str
) -> None:
    run = judged(end)
    assert len(records(run, "ProbationExtended")) == 2
    (closed,) = records(run, "IncidentClosed")
    assert closed.outcome == outcome
    assert "; but " in str(closed.reason)
    event = event_of(closed)
    assert event is not None
    assert event[0] == "Warning"
    assert run.state.attempt == 2
    assert len(run.state.rollback_times) == 1


def test_the_end_of_the_run_ends_a_doubtful_probation_and_says_so() -> None:
    run = play(Scenario(damaged=frozenset({40, 41, 42}), probation=500, healthy=HEALTHY, vitals=(HIGH,)))
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert [incident.outcome for incident in run.state.closed] == ["Degraded"]


def test_a_rule_that_fires_in_the_extension_is_a_relapse_of_the_same_incident() -> None:
    damaged = DAMAGED.damaged | {47, 48, 49}
    run = judged(SLOW, SLOW, SLOW, damaged=damaged)
    assert len(records(run, "IncidentOpened")) == 1
    assert len(records(run, "Relapsed")) == 1
