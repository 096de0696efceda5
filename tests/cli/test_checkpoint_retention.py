"""What the command line says of checkpoints that stay, and of those that went."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from operator_objects import training_job
from rollback_trail import RUN, audit_objects, going, rollback_trail
from run_states import checkpoint, reference, run_state
from trimtab_cli.bucket_versions import Versioning, storage_report
from trimtab_cli.checkpoint_view import (
    CHECKPOINT_COLUMNS,
    checkpoint_rows,
    continued_by,
    retention_fates,
    table_row,
)
from trimtab_cli.output import Format, Output
from trimtab_cli.report.checkpoints import checkpoint_views
from trimtab_cli.report.episodes import Chapters
from trimtab_cli.report.span import Span
from trimtab_cli.trail import read_trail
from trimtab_cli.trail_file import TrailFile
from trimtab_cli.trail_verification import Verified, report_lines, verify_file
from trimtab_contract.journal import canonical_bytes, parse_record, record_hash
from trimtab_operator.resources import parse_training_job_spec
from trimtab_operator.run_state import RunPhase

Bodies = list[tuple[int, bytes]]
SPEC = parse_training_job_spec(training_job()["spec"])
NEWEST = 320


def verified(bodies: Bodies, *, without: int) -> Verified:
    """A packed trail with every object but the manifest of one step."""
    references = [one.reference for one in read_trail(bodies).state.checkpoints]
    manifests = {one.reference.key for one in read_trail(rollback_trail()).state.checkpoints}
    assert {one.key for one in references} == manifests
    there = {("audit", key): body for key, body in audit_objects(RUN).items()}
    for one in references:
        if one.step != without:
            there["checkpoint", one.key] = b""
    storage = storage_report(Versioning.OFF, {})
    trail = TrailFile(RUN, tuple(bodies), there, None, (), None, storage, checkpoints=True)
    return verify_file(Output(Format.JSON), trail)


def test_the_manifest_of_a_deleted_checkpoint_is_not_missed_and_that_of_another_one_is() -> None:
    honest = rollback_trail()
    gone = [problem for problem in verified(honest, without=300).problems if "is gone" in problem]
    assert len(gone) == 1
    announced = verified(going(honest, 300), without=300)
    assert not [problem for problem in announced.problems if "is gone" in problem]
    assert announced.deleted == 1
    assert any("1 manifests went with checkpoints" in text for text, _ in report_lines(RUN, announced))


def test_each_row_says_why_a_checkpoint_stays_and_until_when() -> None:
    trail = read_trail(rollback_trail())
    trail = replace(trail, state=replace(trail.state, phase=RunPhase.WATCHING))
    fates = retention_fates(trail.state, SPEC, [], NEWEST, {})
    rows = {row.step: row for row in checkpoint_rows(trail, len, fates)}
    assert (rows[0].kept, rows[0].kept_until) == ("one of the last 3 (checkpoint.keepLast)", "3 newer ones are there")
    assert rows[320].may_be_deleted is True, "it is quarantined, and its incident is closed"
    assert rows[300].may_be_deleted is False
    shown = dict(zip(CHECKPOINT_COLUMNS, table_row(rows[320], 0.0), strict=True))
    assert shown["Kept"] == "no: it may be deleted"


def test_a_certified_checkpoint_still_names_who_has_read_it_back() -> None:
    bodies = rollback_trail()
    committed = next(one for _, body in bodies if (one := parse_record(body)).action == "Committed")
    for action, why in (("Verified", "read back whole by Job x"), ("Certified", "no rule that acts fired")):
        last = parse_record(bodies[-1][1])
        said: dict[str, Any] = {"action": action, "actor": last.actor, "after": {**(committed.after or {}), "why": why}}
        one = msgspec.structs.replace(committed, seq=last.seq + 1, prev=record_hash(bodies[-1][1]), **said)
        bodies = [*bodies, (one.seq, canonical_bytes(one))]
    (row,) = [one for one in checkpoint_rows(read_trail(bodies), len) if one.state == "Certified"]
    assert row.evidence == "no rule that acts fired; read back whole by Job x"


def test_a_checkpoint_whose_data_are_going_is_shown_as_such() -> None:
    trail = read_trail(going(rollback_trail(), 320))
    row = next(row for row in checkpoint_rows(trail, len) if row.step == 320)
    assert (row.state, row.may_be_deleted) == ("Deleting", True)
    assert table_row(row, 0.0)[-1] == "no: its data are going"


def test_of_a_run_that_is_over_nothing_more_goes() -> None:
    trail = read_trail(rollback_trail())
    fates = retention_fates(trail.state, SPEC, [], NEWEST, {})
    assert all("the run is over" in fate.kept for fate in fates)
    assert len(fates) == 3


def test_where_the_policies_cannot_be_read_nothing_is_claimed() -> None:
    (row, *_) = checkpoint_rows(read_trail(rollback_trail()), len)
    assert (row.kept, row.may_be_deleted) == ("", None)
    assert table_row(row, 0.0)[-1] == ""


def test_the_report_of_an_incident_shows_what_was_there_then_and_is_deleted_by_now() -> None:
    trail = read_trail(going(rollback_trail(), 320, gone=True))
    assert trail.state.deleted
    views, others = checkpoint_views(trail.state, trail.counted, Chapters(records=()), Span(280, 400))
    assert [(one.step, one.state) for one in views] == [(300, "Committed"), (320, "Deleted")]
    assert [state for _, state, _ in views[-1].history] == ["Committed", "Quarantined", "Deleting"]
    assert others == 1


@pytest.mark.parametrize(
    ("status", "asked", "names"),
    [
        ({"phase": "Watching", "attempt": 1}, {}, True),
        ({"phase": "Failed", "attempt": 2}, {"manifestSHA256": reference(200).sha256}, True),
        ({"phase": "Completed", "attempt": 1}, {}, False),
        ({"phase": "Pending"}, {}, False),
        ({"phase": "Watching", "attempt": 1}, {"run": "lab/other/uid"}, False),
        ({"phase": "Watching", "attempt": 1}, {"manifestSHA256": "1" * 64}, False),
        ({"phase": "Watching", "attempt": 1}, {"step": 300}, False),
    ],
)
def test_a_checkpoint_from_which_a_job_goes_on_is_told(
    status: dict[str, Any], asked: dict[str, Any], names: bool
) -> None:
    source = {"run": "lab/demo/uid", "step": 200} | asked
    fork = {
        "metadata": {"namespace": "lab", "name": "fork", "uid": "7"},
        "spec": {"resumeFrom": source},
        "status": status,
    }
    alone = {"metadata": {"namespace": "lab", "name": "alone", "uid": "8"}, "spec": {}}
    state = run_state(checkpoints=(checkpoint(0), checkpoint(200)))
    found = continued_by(state, "lab/demo/uid", [alone, fork])
    assert found == ({reference(200).key: "lab/fork/7"} if names else {})
