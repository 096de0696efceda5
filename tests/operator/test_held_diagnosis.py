"""The measurement on the held state, through the state machine: it changes the finding and never blocks a rollback."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from played_trainer import Scenario
from run_checks import check, surviving_windows
from run_fates import DAMAGED, SKIPPED, actions, at, crash, finished_healthy, last_directive, records
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.journal import JournalRecord, effective
from trimtab_operator.incidents import Finding
from trimtab_operator.journal_fold import fold_all
from trimtab_operator.run_state import RunPhase


def findings(run: ScriptedRun) -> list[tuple[str, list[str]]]:
    return [((one.after or {})["finding"], (one.after or {})["missing"]) for one in records(run, "Diagnosed")]


def test_damaged_windows_are_measured_on_both_states_and_found_bad_on_both() -> None:
    run = play(DAMAGED)
    check(run)
    assert findings(run) == [("Undecided", []), ("BadBatch", [])]
    asked = [(one.after or {})["directive"] for one in records(run, "Directive")]
    held, restored = [one for one in asked if one["diagnose"]]
    assert (held["attempt"], held["diagnose"]["windows"]) == (1, [24, 26])
    assert (restored["attempt"], restored["diagnose"]["windows"]) == (2, [24, 42])
    assert held["diagnose"]["control"] == restored["diagnose"]["control"]
    (incident,) = run.state.closed
    assert incident.suspect is not None
    assert incident.restored is not None
    assert (incident.suspect.bad, incident.restored.bad) == ((24, 25, 26), (24, 25, 26))


def test_a_state_that_is_bad_on_any_window_is_a_bad_state() -> None:
    run = play(Scenario(latent=(12, 28), steps=40))
    check(run)
    assert [one for one, _ in findings(run)] == ["Undecided", "BadState"] + ["Undecided", "BadState"] * 2


def test_a_non_finite_batch_that_stays_so_is_skipped_and_a_glitch_is_not() -> None:
    run = play(Scenario(nonfinite=frozenset({(1, 23)})))
    check(run)
    assert findings(run)[0][0] == "Undecided"
    assert 22 not in surviving_windows(run)
    glitch = play(Scenario(glitches=frozenset({(1, 23)})))
    finished_healthy(glitch)
    (incident,) = glitch.state.closed
    assert incident.finding is Finding.TRANSIENT
    assert last_directive(glitch).skip == ()


@pytest.mark.parametrize(
    ("diagnosis", "missing"),
    [
        ("Late", "the held state was not measured within 300 s"),
        ("Refused", "the held state was not measured: Hold of attempt 1 is refused: this trainer measures nothing"),
        ("Unusable", "the measurement of the held state cannot be used: the probe's SHA-256 is not the one"),
    ],
)
def test_a_measurement_that_fails_is_missing_evidence_and_the_rollback_goes_on(diagnosis: str, missing: str) -> None:
    run = play(replace(DAMAGED, diagnosis=diagnosis))
    check(run, refuses=diagnosis == "Refused")
    assert run.state.phase is RunPhase.COMPLETED
    assert not set(surviving_windows(run)) & SKIPPED
    assert [one for one, _ in findings(run)] == ["Undecided", "Undecided"]
    assert all(lacks[0].startswith(missing) for _, lacks in findings(run))


def test_a_world_lost_while_it_measures_is_missing_evidence_and_the_next_one_starts_on_the_target() -> None:
    def fate(run: ScriptedRun) -> None:
        if run.suspects and len(run.worlds) == 1:
            crash(run)

    run = play(replace(DAMAGED, diagnosis="Late"), on_tick=fate)
    check(run)
    assert run.state.phase is RunPhase.COMPLETED
    assert findings(run)[0] == ("Undecided", ["the suspect state is lost with its pods"])
    assert actions(run, "WorldLost", "Diagnosed", "TargetSelected", "StartWorld")[1:5] == [
        "WorldLost",
        "Diagnosed",
        "TargetSelected",
        "StartWorld",
    ]
    assert not set(surviving_windows(run)) & SKIPPED


@pytest.mark.parametrize(
    "scenario", [DAMAGED, replace(DAMAGED, diagnosis="Late"), Scenario(glitches=frozenset({(1, 23)}))]
)
def test_a_world_lost_at_any_tick_of_its_incident_is_rolled_back_all_the_same(scenario: Scenario) -> None:
    """While it holds, measures, has measured, or is restored: the finding may be another one, the run ends well."""
    phases: list[RunPhase] = []
    play(scenario, on_tick=lambda run: phases.append(run.state.phase))
    began = phases.index(RunPhase.HOLDING) if RunPhase.HOLDING in phases else phases.index(RunPhase.DIAGNOSING)
    for tick in range(began, began + 16):
        run = play(scenario, on_tick=at({tick: crash}))
        check(run)
        assert run.state.phase is RunPhase.COMPLETED
        assert len(records(run, "IncidentOpened")) == 1
        assert not set(surviving_windows(run)) & scenario.damaged


def without_measurements(record: JournalRecord) -> JournalRecord | None:
    """The record as an operator wrote it that did not measure held states, or nothing where it wrote none."""
    after: dict[str, Any] = dict(record.after or {})
    if record.action == "Diagnosed" and "phase" not in after:
        return None
    if record.action in {"Held", "Diagnosed"}:
        for name in ("missing", "attempt", "suspect", "restored", "withheld"):
            after.pop(name, None)
    return msgspec.structs.replace(record, after=after or None)


def test_a_journal_without_measurements_folds_to_the_same_decisions() -> None:
    run = play(DAMAGED)
    counted = effective(run.announced)
    old = [one for one in map(without_measurements, counted) if one is not None]
    (before,), (after,) = fold_all(old).closed, fold_all(counted).closed
    assert (before.extent, before.outcome, before.plans) == (after.extent, after.outcome, after.plans)
    assert (before.finding, before.suspect, before.missing) == (Finding.UNDECIDED, None, ())
