"""Every way an incident goes becomes a page that says so: recorded and scripted journals, without any server."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
import rollback_trail
from judged_world import JudgedRun
from played_trainer import RUN
from recording import MetricsLine, PolicyLine, read_recording
from recordings import FOLDER
from run_fates import DAMAGED
from scripted_operator import play
from trimtab_cli.anchor_signature import check_signature
from trimtab_cli.errors import NotFound
from trimtab_cli.report.gathering import compose, tell
from trimtab_cli.report.page import page
from trimtab_cli.report.records import Sources
from trimtab_cli.report.subject import Subject
from trimtab_cli.report.views import Block, Report
from trimtab_cli.trail import examine, understood_trail
from trimtab_cli.trail_verification import Known, StoredTrail, Verified
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.journal import Evidence, plain
from trimtab_contract.keys import RunId, policy_text
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.lineage import Segment
from trimtab_policies.log_readers.points import LogPoint

Bodies = Sequence[tuple[int, bytes]]
VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Fails where an element is closed that is not the open one."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing stays open."""


def report_of(
    run: RunId,
    bodies: Bodies,
    records: Mapping[tuple[int, int], MetricRecord] | None,
    objects: Mapping[str, bytes],
    incident: str = "",
) -> Report:
    """The report of a run's newest or named incident; without `records` there is no archive."""

    def evidence(key: str) -> bytes:
        if key not in objects:
            raise NotFound(f"{key} is gone.")
        return objects[key]

    def archive(segments: Sequence[Segment], first: int, last: int) -> Iterator[LogPoint]:
        for segment in segments:
            for step in range(max(first, segment.first), min(last, segment.last or last) + 1):
                if records and (segment.attempt, step) in records:
                    yield LogPoint.of(records[segment.attempt, step])

    trail = understood_trail(tuple(bodies))
    verified = Verified(examine(tuple(bodies), run=run), check_signature(None, ()), None, [], 0, 0)
    sources = Sources(evidence, archive if records is not None else None, "it is gone")
    subject = Subject(run, incident or trail.state.incident_names[-1], StoredTrail(Known(), tuple(bodies)), trail)
    found = compose(tell(subject), verified, sources)
    Balanced(page(found))
    return found


def policy_body(spec: Mapping[str, Any]) -> bytes:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def recorded(name: str) -> Report:
    """A recorded incident, with its records and the texts of its policies."""
    recording = read_recording(FOLDER / f"{name}.jsonl")
    records = {(one.attempt, one.step): one.record() for one in recording.acts if isinstance(one, MetricsLine)}
    texts = {policy_text(one.hash): policy_body(one.spec) for one in recording.acts if isinstance(one, PolicyLine)}
    return report_of(RunId.parse(recording.header.run), recording.bodies, records, texts)


def facts(content: Report | Block) -> dict[str, str]:
    return {one.name: one.value for one in content.facts}


def rows(block: Block, title: str) -> tuple[tuple[str, ...], ...]:
    return next(one.rows for one in block.tables if one.title.startswith(title))


def test_a_relapse_shows_every_plan_every_attempt_and_what_came_of_it() -> None:
    found = recorded("relapse")
    assert "the run relapsed 2 times, plans 1 and 2 did not help, step 5 was restored" in found.headline
    assert [one.failed for one in found.plans] == [True, True, False]
    assert "loss-spike fired at step 30 behind it" in facts(found.plans[0])["Relapsed"]
    assert {(one.attempt, one.surviving) for one in found.charts[0].lines} >= {(2, False), (3, False), (4, True)}
    assert found.charts[0].judged
    assert [one.text for one in found.marks if one.kind == "fired"] == [
        "loss-spike fires in attempt 1; loss-spike fires in attempt 2; loss-spike fires in attempt 3"
    ]
    assert found.notes == ()


def test_an_open_incident_says_what_it_waits_for_and_how_long_its_phases_took_so_far() -> None:
    found = recorded("unanswered-plan")
    assert found.outcome == "open"
    assert "open in phase NeedsHuman: nobody approved plan 1" in found.headline
    assert "plan 1, back to step 20: nobody answered in time" in found.headline
    assert not found.phases[-1].ended
    assert {one.phase: one.took for one in found.phases}["AwaitingApproval"] == 50
    (plan,) = found.plans
    assert facts(plan)["Approval"].endswith("nobody answered in time")
    assert facts(plan)["Skips at most"].startswith("windows 23 to")
    assert len(facts(plan)["Plan hash"]) == 64


@pytest.mark.parametrize(("answer", "verb"), [("Approve", "approved"), ("Reject", "rejected")])
def test_an_answered_plan_names_who_answered_it(answer: str, verb: str) -> None:
    run = play(replace(DAMAGED, approval=50, answers=(("TargetSelected", answer),)), world=JudgedRun)
    found = report_of(RUN, sorted(run.store.bodies.items()), {}, {})
    assert facts(found.plans[0])["Approval"].endswith(f"{verb} by ada (seen and understood)")
    (asked,) = rows(found.people, "What people asked for")
    assert asked[1:3] == ("ada", answer)
    assert ("phase NeedsHuman" in found.headline) is (answer == "Reject")


def test_what_a_person_began_is_no_rules_doing_and_shows_their_wishes() -> None:
    found = recorded("rollback-by-hand")
    assert found.headline.startswith("No rule fired: ada asked for Rollback at step 21 (seen and understood)")
    assert "windows 12 to 13 were skipped, and" in found.headline
    assert facts(found.plans[0])["Asked for"] == "skip windows 12 to 13"
    assert not any(chart.judged for chart in found.charts)
    assert {one.kind for one in found.marks} == {"request", "held", "target", "passed"}


def test_a_pause_that_a_person_ended_is_resumed_and_the_next_one_is_another() -> None:
    recording = read_recording(FOLDER / "pause-and-resume.jsonl")
    found = report_of(RunId.parse(recording.header.run), recording.bodies, {}, {}, "demo-a1-s25")
    assert found.outcome == "Resumed"
    assert "closed as Resumed (ada let the run go on: seen and understood)" in found.headline
    assert len(rows(found.people, "What people asked for")) == 1


def test_waiting_for_other_runs_is_a_fact_with_its_length() -> None:
    found = recorded("automation-held")
    ((_, length, why, runs, how),) = rows(found.people, "Waits")
    assert (length, runs) == ("30.0 s", "a, b, c")
    assert why in facts(found)["Waited for other runs"]
    assert how


def test_a_world_that_was_lost_before_it_held_leaves_its_measurement_out() -> None:
    found = recorded("world-lost-in-holding")
    assert "the pods were lost before they held" in found.headline
    assert facts(found)["Missing evidence"] == "the suspect state is lost with its pods"
    assert [one.columns[1:] for one in found.diagnoses[-1].tables] == [("On the restored state",)]


def test_windows_that_the_trainer_refused_to_skip_were_not_skipped() -> None:
    found = recorded("refused-skip")
    assert "skipped" not in found.headline.split("NeedsHuman")[0]
    assert "its skip was refused" in facts(found.plans[0])["Failed"]


def test_a_stopped_run_has_an_end_and_no_plan() -> None:
    found = recorded("stopped")
    assert (found.outcome, found.plans) == ("Stopped", ())
    assert found.phases[-1].ended


def test_a_finding_stands_on_the_losses_of_both_states() -> None:
    found = recorded("loss-spike")
    (table,) = found.diagnoses[-1].tables
    assert table.columns[1:] == ("On the held state", "On the restored state")
    assert {row[0] for row in table.rows} >= {"control windows", "threshold", "window 24", "window 26"}
    assert all("bad" in cell for row in table.rows if row[0] == "window 25" for cell in row[1:])


def test_a_probation_is_shown_beside_what_was_before_the_incident() -> None:
    found = recorded("real-parts")
    (table,) = found.probation.tables
    assert table.columns[1] == "Before the incident"
    assert len(table.columns) > 2
    assert {row[0] for row in table.rows} >= {"Mean loss", "Median tokens per second"}


# Rules of other shapes ------------------------------------------------------------------------------------------------

COMPOSITE = {
    "rules": [
        {"name": "high-loss", "metric": "loss", "range": {"max": 5}, "action": "Record"},
        {"name": "high-norm", "metric": "grad_norm", "range": {"max": 3}, "action": "Record"},
        {"name": "other", "metric": "lr", "range": {"max": 3}, "action": "Record"},
        {"name": "both", "allOf": ["high-loss", "high-norm"], "action": "Rollback"},
    ]
}
LOGITS = {"rules": [{"name": "logits", "metric": "qk_max_logit", "reduce": {"max": True}, "range": {"max": 100}}]}
LOGITS["rules"][0] |= {"forRecords": 3, "action": "Rollback"}
SPIKE = {
    "name": "spike",
    "metric": "loss",
    "spike": {"baseline": {"statistic": "Mean", "records": 200, "minRecords": 200}, "sigma": 4},
    "forRecords": 3,
    "action": "Rollback",
}


def record(attempt: int, step: int) -> MetricRecord:
    bad = attempt == 1 and step >= 321
    heads = [20.0] * 12
    heads[7] = 140.0 if bad else 20.0
    scalars = {"loss": 8.1 if bad else 2.0 + step % 7 / 100, "grad_norm": 4.0 if bad else 0.5 + step / 1e4}
    return MetricRecord(
        attempt=attempt,
        step=step,
        window=step - 1,
        samples_seen=step,
        tokens_seen=step,
        time=1e9 + step,
        scalars=scalars,
        vectors={"qk_max_logit": Vector.pack((3, 4), heads)},
    )


RECORDS = {(1, step): record(1, step) for step in range(1, 324)} | {
    (2, step): record(2, step) for step in range(301, 601)
}


def trail(monkeypatch: pytest.MonkeyPatch, spec: Mapping[str, Any], **latch: Any) -> tuple[Bodies, dict[str, bytes]]:
    """The journal of a rollback for a rule of this policy, and the policy's text."""
    body = policy_body(spec)
    monkeypatch.setattr(rollback_trail, "POLICY_TEXT", body)
    fired = {**rollback_trail.latch(), **latch}
    opened = {"latch": fired, "phase": "Holding"}
    bodies = rollback_trail.rollback_trail()
    seq = next(seq for seq, found in bodies if b'"action":"IncidentOpened"' in found)
    return rollback_trail.rewritten(bodies, seq, after=opened), {policy_text(sha256_hex(body)): body}


def rewritten_hold(bodies: Bodies, **changes: Any) -> Bodies:
    seq, body = next((seq, body) for seq, body in bodies if b'"action":"Held"' in body)
    after = msgspec.json.decode(body)["after"] | changes.pop("after", {})
    return rollback_trail.rewritten(bodies, seq, after=after, **changes)


def test_a_rule_on_a_vector_is_drawn_as_it_was_reduced_and_names_its_element(monkeypatch: pytest.MonkeyPatch) -> None:
    latch = {"rule": "logits", "metric": "qk_max_logit", "observed": 140.0, "threshold": 100.0}
    bodies, objects = trail(monkeypatch, LOGITS, **latch)
    found = report_of(rollback_trail.RUN, bodies, RECORDS, objects)
    assert found.notes == ()
    assert found.charts[0].title == "max of qk_max_logit, as rule logits saw it"
    assert found.heat_maps[0].summary.startswith("layer 1 head 3, the element that the rule names, has 140")
    assert found.heat_maps[0].marked == ((1, 3),)


def test_a_composite_is_drawn_as_the_rules_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, objects = trail(monkeypatch, COMPOSITE, rule="both", metric="loss", observed=8.1, threshold=5.0)
    found = report_of(rollback_trail.RUN, bodies, RECORDS, objects)
    assert found.notes == ()
    assert [one.title for one in found.charts if one.judged] == [
        "loss, as rule high-loss, which is part of both saw it",
        "grad_norm, as rule high-norm, which is part of both saw it",
    ]


def test_without_an_archive_the_frozen_records_are_drawn_without_limits_they_cannot_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies, objects = trail(monkeypatch, {"rules": [SPIKE]}, rule="spike", threshold=2.0281)
    frozen = b"".join(json.dumps(plain(RECORDS[1, step])).encode() + b"\n" for step in range(193, 324))
    objects["evidence"] = frozen
    bodies = rewritten_hold(bodies, evidence=(Evidence(key="evidence", sha256=sha256_hex(frozen)),))
    found = report_of(rollback_trail.RUN, bodies, None, objects)
    assert found.charts[0].title == "loss"
    assert math.isclose(max(one.high or 0 for one in found.charts[0].lines[0].curve.buckets), 8.1)
    assert not any(one.judged for one in found.charts)
    assert any("too few records were frozen" in note for note in found.notes)
    assert any("only frozen records are shown: it is gone" in note for note in found.notes)


def test_the_samples_of_the_suspect_steps_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, objects = trail(monkeypatch, LOGITS)
    steps = [{"step": 321, "window": 320, "samples": [["web", 17]], "sha256ByRank": {}}]
    objects["batches"] = json.dumps({"kind": "Batches", "attempt": 1, "steps": steps}).encode()
    bodies = rewritten_hold(bodies, evidence=(Evidence(key="batches", sha256=sha256_hex(objects["batches"])),))
    found = report_of(rollback_trail.RUN, bodies, RECORDS, objects)
    (row,) = rows(found.diagnoses[-1], "From the last step before them")
    assert row[:3] == ("321", "320", "web: 17")


def test_suspect_nodes_are_named_with_rank_pod_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, objects = trail(monkeypatch, LOGITS)
    suspect = {"rank": 1, "pod": "demo-1-1-x", "node": "node-b", "why": "its parameters differ"}
    found = report_of(rollback_trail.RUN, rewritten_hold(bodies, after={"suspects": [suspect]}), RECORDS, objects)
    assert rows(found.people, "Suspect nodes") == (("1", "demo-1-1-x", "node-b", "its parameters differ"),)


def test_an_archive_that_gives_other_numbers_than_the_journal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    latch = {"rule": "logits", "metric": "qk_max_logit", "observed": 141.0, "threshold": 100.0}
    bodies, objects = trail(monkeypatch, LOGITS, **latch)
    found = report_of(rollback_trail.RUN, bodies, RECORDS, objects)
    assert found.notes == (
        "Judged again, the record of step 323 gives the observed value 140; the journal says 141.0.",
    )


def test_damage_beyond_what_was_approved_is_a_plan_of_its_own_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, objects = trail(monkeypatch, LOGITS)
    by_action = {msgspec.json.decode(body)["action"]: (seq, msgspec.json.decode(body)) for seq, body in bodies}
    plan = by_action["TargetSelected"][1]["after"]["plan"] | {"number": 2, "bound": [319, 333], "hash": "b" * 64}
    seq, found = by_action["ExtentFound"]
    after = found["after"] | {"plan": plan, "deadline": "2026-01-01T01:00:00+00:00", "phase": "AwaitingApproval"}
    bodies = [one for one in rollback_trail.rewritten(bodies, seq, after=after) if one[0] <= seq]
    first, second = report_of(rollback_trail.RUN, bodies, RECORDS, objects).plans
    assert (first.failed, second.failed) == (True, False)
    assert facts(second)["Approval"] == "needed by 2026-01-01 01:00:00 UTC: waited for"
    assert facts(second)["Skips at most"] == "windows 319 to 333"
