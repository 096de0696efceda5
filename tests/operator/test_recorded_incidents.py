"""Recorded incidents are decided again by every change of code: the same, or a new version with the difference."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import recordings
from recording import AcceptedLine, DecisionLine, MetricsLine, Recording, RecordLine, read_recording, write_recording
from recordings import COMMAND, FOLDER, complaint, paths, play_script, unaccepted
from redecision import redecide, table
from trail_recording import SOURCE
from trimtab_contract.journal import JournalRecord, canonical_bytes, parse_record
from trimtab_operator import diagnosis, extent, selection
from trimtab_operator.commands import DECISION_VERSION
from trimtab_operator.incidents import Finding, Incident
from trimtab_operator.phases import restoring
from trimtab_operator.run_state import JournalAction, RunState
from trimtab_policies import streaks

LARGEST_BYTES = 200_000
GIVEN = {"Takeover"}
"""What no recorded incident can decide again: who takes a run over, and when."""
NOT_KEPT = {"Deleting", "MetricMissing", "NoticeSent", "ReadBack", "RunEnded", "Snapshot", "Upgraded"}
"""What no recorded incident has, some because it begins in none. Whoever adds an action adds an incident with it."""
FROM_THE_TRAIL = {"IncidentOpened", "Relapsed", "Diagnosed", "TargetSelected", "ExtentFound"}
"""What an exported trail alone is enough for, where its evidence is whole."""

Change = Callable[[pytest.MonkeyPatch], None]


def read(name: str) -> Recording:
    return read_recording(FOLDER / f"{name}.jsonl")


def records(recording: Recording) -> list[JournalRecord]:
    return [act.record() for act in recording.acts if isinstance(act, RecordLine)]


def test_every_kind_of_incident_is_kept() -> None:
    kept = [read_recording(path) for path in paths()]
    actions = {one.action for recording in kept for one in records(recording)}
    assert {action.value for action in JournalAction} - actions <= NOT_KEPT
    found = {(one.after or {}).get("finding") for recording in kept for one in records(recording)}
    assert set(Finding) - {Finding.INTERACTION} <= found
    assert {path.stem for path in paths()} >= {*recordings.SCRIPTS, "real-parts", "real-parts-trail"}


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_recorded_incident_is_decided_as_it_was(path: Path) -> None:
    recording = read_recording(path)
    again = redecide(recording)
    assert not complaint(recording), complaint(recording)
    journal, given = records(recording), {one.what for one in again.given}
    assert again.records + again.effects + len(again.given) == len(journal), "a record was compared with nothing"
    assert min(again.records, again.effects, again.judgements) > 0
    assert path.stat().st_size <= LARGEST_BYTES
    if recording.header.source == SOURCE:
        assert again.inferred == again.records
        assert not given & FROM_THE_TRAIL
    else:
        assert given <= GIVEN
        assert again.rests > 0


def test_a_scripted_incident_is_recorded_the_same_every_time(tmp_path: Path) -> None:
    one, other = play_script("operator-killed"), play_script("operator-killed")
    for copy, recording in (("one", one), ("other", other)):
        write_recording(tmp_path / copy, recording)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert read_recording(tmp_path / "one") == one


# That the check can fail -------------------------------------------------------------------------------------------


def smaller_margin(patch: pytest.MonkeyPatch) -> None:
    bound = selection.rollback_bound
    patch.setattr(selection, "rollback_bound", lambda state: bound(state) + 1)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def larger_margin(patch: pytest.MonkeyPatch) -> None:
    bound = selection.rollback_bound
    patch.setattr(selection, "rollback_bound", lambda state: bound(state) - 1)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def same_margin(patch: pytest.MonkeyPatch) -> None:
    """After a relapse as before it."""
    bound = selection.rollback_bound

    def without_factor(state: RunState) -> int:
        assert state.incident is not None
        latch = state.incident.latch
        settings = msgspec.structs.replace(latch.remediation, margin_factor=1.0)
        latch = msgspec.structs.replace(latch, remediation=settings)
        return bound(replace(state, incident=msgspec.structs.replace(state.incident, latch=latch)))

    patch.setattr(selection, "rollback_bound", without_factor)


def wider_extent(patch: pytest.MonkeyPatch) -> None:
    def found(probe: object, **known: object) -> extent.Extent:
        return extent.find_extent(probe, **{**known, "sigma": 5.0})  # pyright: ignore[reportArgumentType]

    patch.setattr(restoring, "find_extent", found)


def undecided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(diagnosis, "_compared", lambda *_: (Finding.UNDECIDED, "who knows"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]


def shorter_probation(patch: pytest.MonkeyPatch) -> None:
    until = Incident.probation_until.fget
    assert until is not None
    patch.setattr(Incident, "probation_until", property(lambda incident: until(incident) - 1))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def longer_streak(patch: pytest.MonkeyPatch) -> None:
    reached = streaks.Streak.reached.fget
    assert reached is not None
    patch.setattr(streaks.Streak, "reached", property(lambda streak: reached(streak) and streak.count != 3))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]


@pytest.mark.parametrize(
    ("name", "change", "field", "recorded", "now"),
    [
        ("loss-spike", smaller_margin, "reason.bound", "20", "21"),
        ("loss-spike", larger_margin, "after.plan.target.step", "20", "15"),
        ("relapse", same_margin, "after.plan.target.step", "5", "10"),
        ("loss-spike", wider_extent, "after.skip.last", "35", "31"),
        ("loss-spike", undecided, "after.finding", '"BadBatch"', '"Undecided"'),
        ("loss-spike", shorter_probation, "action", "nothing", "IncidentClosed"),
        ("loss-spike", longer_streak, "judgement.firing.fired_step", "27", "(absent)"),
        ("real-parts", larger_margin, "reason.bound", "54", "53"),
        ("real-parts-trail", larger_margin, "reason.bound", "54", "53"),
        ("real-parts-trail", undecided, "after.finding", '"BadBatch"', '"Undecided"'),
        ("real-parts-trail", longer_streak, "action", "IncidentOpened", "nothing"),
    ],
)
def test_a_decision_that_changes_is_shown(
    name: str, change: Change, field: str, recorded: str, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = read(name)
    change(monkeypatch)
    differences = redecide(recording).differences
    assert (field, recorded, now) in {(one.field, one.recorded, one.now) for one in differences}, table(
        (name, one) for one in differences
    )
    told = complaint(recording)
    assert "raise DECISION_VERSION in trimtab_operator/commands.py" in told
    assert f"`{COMMAND} accept`" in told


def test_a_loss_that_was_another_is_seen_in_the_judgement() -> None:
    recording = read("loss-spike")
    healthy = [
        msgspec.structs.replace(act, scalars={**act.scalars, "loss": 2.0})
        if isinstance(act, MetricsLine) and act.step == 26
        else act
        for act in recording.acts
    ]
    fields = {one.field for one in redecide(Recording(recording.header, tuple(healthy))).differences}
    assert "judgement.firing.first_bad_step" in fields


def test_words_alone_are_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_ON_BOTH", "the windows are bad on both states")
    again = redecide(read("loss-spike"))
    assert not again.differences
    assert again.reworded > 0


def test_what_was_not_seen_is_said_to_be_not_compared() -> None:
    recording = read("loss-spike")
    unseen = tuple(act for act in recording.acts if not isinstance(act, DecisionLine))
    again = redecide(Recording(recording.header, unseen))
    assert again.records == again.inferred
    assert len(again.given) + again.records + again.effects == len(records(recording))
    assert "WorldRunning" in {one.what for one in again.given}
    assert "what was seen when it was decided is not recorded" in {one.why for one in again.given}


def test_an_altered_journal_is_refused() -> None:
    recording = read("loss-spike")
    acts = list(recording.acts)
    place = next(number for number, act in enumerate(acts) if isinstance(act, RecordLine))
    line = acts[place]
    assert isinstance(line, RecordLine)
    other = msgspec.structs.replace(parse_record(bytes(line.body)), action="Stopped")
    acts[place] = RecordLine(body=msgspec.Raw(canonical_bytes(other)))
    with pytest.raises(AssertionError, match="altered"):
        redecide(Recording(recording.header, tuple(acts)))


# How a difference is agreed to --------------------------------------------------------------------------------------


def test_a_difference_is_accepted_with_a_new_version_only_and_stands_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loss-spike.jsonl"
    path.write_bytes((FOLDER / path.name).read_bytes())
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    before = path.read_bytes()
    with monkeypatch.context() as changed:
        smaller_margin(changed)
        assert recordings.main(["check"]) == 1
        assert recordings.main(["accept"]) == 1
        assert path.read_bytes() == before, "it was accepted under the same version"
        assert "raise DECISION_VERSION" in capsys.readouterr().out

        changed.setattr(recordings, "DECISION_VERSION", DECISION_VERSION + 1)
        assert recordings.main(["check"]) == 1
        assert recordings.main(["accept"]) == 0
        assert recordings.main(["check"]) == 0
        written = read_recording(path)
        assert written.header.decision_version == DECISION_VERSION + 1
        assert AcceptedLine(seq=22, field="reason.bound", recorded="20", now="21") in [
            msgspec.structs.replace(one, seq=22) for one in written.accepted
        ]
        assert written.acts == read("loss-spike").acts
    _, gone = unaccepted(written)
    assert gone, "the change was taken back, and nobody noticed"
    assert "accepted, and not so any more" in complaint(written)
