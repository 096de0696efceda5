"""The demo says yes only when everything it promises holds."""

import dataclasses

import msgspec
import pytest
from rollback_trail import DAMAGED, STEPS, rollback_trail
from trimtab_cli.demo.findings import damage_incident, judge_run
from trimtab_cli.exactness import ExactnessReport
from trimtab_cli.trail import read_trail
from trimtab_operator.incidents import Incident, SkipRange
from trimtab_operator.run_state import RunPhase, RunState

EXACT = ExactnessReport(ranks=2, steps=STEPS, windows=STEPS, retrained=19, skipped=15, problems=())
STORAGE = "the bucket keeps versions"
LOSSES = {step: 1.7 + 0.05 * (step % 3 - 1) for step in range(1, STEPS + 1)}


@pytest.fixture
def state() -> RunState:
    return read_trail(rollback_trail()).state


def broken_promises(
    state: RunState,
    exactness: ExactnessReport = EXACT,
    losses: dict[int, float] = LOSSES,
    audit: tuple[str, ...] = (),
) -> list[str]:
    return [one.name for one in judge_run(state, DAMAGED, exactness, losses, audit, STORAGE) if not one.holds]


def with_incident(state: RunState, **changes: object) -> RunState:
    incident: Incident = msgspec.structs.replace(state.closed[0], **changes)
    return dataclasses.replace(state, closed=(incident,))


def test_an_honest_run_keeps_every_promise(state: RunState) -> None:
    assert broken_promises(state) == []


def test_a_run_that_did_not_complete_is_told(state: RunState) -> None:
    assert broken_promises(dataclasses.replace(state, phase=RunPhase.STOPPED)) == ["the run completed"]


def test_a_run_without_an_incident_is_told(state: RunState) -> None:
    assert broken_promises(dataclasses.replace(state, closed=())) == ["the damage was seen"]


def test_an_incident_elsewhere_is_not_about_the_damage(state: RunState) -> None:
    assert damage_incident(state, (400, 411)) is None


@pytest.mark.parametrize("extent", [(319, 330), (321, 333), (318, 333), (319, 334)])
def test_a_skip_that_leaves_damage_in_or_takes_too_much_is_told(state: RunState, extent: tuple[int, int]) -> None:
    changed = with_incident(state, extent=SkipRange(first=extent[0], last=extent[1], bad=12))
    assert broken_promises(changed) == ["every damaged window is skipped, and little else"]


def test_an_incident_that_did_not_recover_is_told(state: RunState) -> None:
    assert broken_promises(with_incident(state, outcome="")) == ["it was rolled back and recovered"]


def test_a_window_trained_on_twice_is_told(state: RunState) -> None:
    inexact = dataclasses.replace(EXACT, problems=("rank 0: step 7",))
    assert broken_promises(state, inexact) == ["every other window was trained on exactly once"]


def test_a_loss_that_jumps_behind_the_damage_is_told(state: RunState) -> None:
    jumped = {step: loss + (2.0 if 321 <= step < 341 else 0.0) for step, loss in LOSSES.items()}
    assert broken_promises(state, losses=jumped) == ["the loss continues the healthy curve"]


def test_missing_records_are_not_taken_for_healthy_ones(state: RunState) -> None:
    assert broken_promises(state, losses={}) == ["the loss continues the healthy curve"]


def test_a_trail_with_a_problem_is_told(state: RunState) -> None:
    assert broken_promises(state, audit=("record 3: altered",)) == ["the audit trail is verified"]


def test_a_verified_trail_says_what_its_bucket_proves(state: RunState) -> None:
    assert judge_run(state, DAMAGED, EXACT, LOSSES, (), STORAGE)[-1].detail == STORAGE
