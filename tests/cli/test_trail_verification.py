"""A trail is believed only as far as it proves itself."""

from dataclasses import replace

import msgspec
import pytest
from played_trainer import Scenario
from rollback_trail import INCIDENT, RUN, TrailWriter, audit_objects, rewritten, rollback_trail
from run_fates import DAMAGED, at
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_cli.checkpoint_view import checkpoint_rows
from trimtab_cli.errors import MalformedTrail
from trimtab_cli.narrative import incident_story, record_line
from trimtab_cli.trail import examine, named_evidence, read_trail
from trimtab_cli.trail_verification import told_end
from trimtab_contract.anchors import Anchor
from trimtab_contract.journal import record_hash
from trimtab_operator.incidents import Vitals, Wishes


def test_an_honest_trail_is_intact_to_its_head() -> None:
    bodies = rollback_trail()
    report = examine(bodies, (len(bodies), record_hash(bodies[-1][1])))
    assert report.problems == ()
    assert report.intact_until == report.head_seq == report.vouched_until == len(bodies)
    assert report.phase == "Completed"


def test_nothing_vouches_for_the_last_record_unless_its_hash_is_known_elsewhere() -> None:
    assert examine(rollback_trail()).vouched_until == 0


def test_a_changed_record_breaks_the_chain_behind_it() -> None:
    bodies = rollback_trail()
    seq, body = bodies[9]
    bodies[9] = (seq, body.replace(b'"attempt":1', b'"attempt":7'))
    assert body != bodies[9][1]
    report = examine(bodies)
    assert report.intact_until == 9
    assert report.problems


def test_a_missing_record_is_named() -> None:
    bodies = rollback_trail()
    del bodies[4]
    report = examine(bodies)
    assert report.intact_until < 5
    assert any("record 5 is missing" in problem for problem in report.problems)


def test_a_chain_forged_from_one_record_on_is_betrayed_by_the_hash_in_the_cluster() -> None:
    bodies = rollback_trail()
    head = (len(bodies), record_hash(bodies[-1][1]))
    forged = rewritten(bodies, 12, time="2026-01-01T00:00:00.000001+00:00")
    assert examine(forged).problems == ()
    assert any("is not the one in the TrainingJob's status" in problem for problem in examine(forged, head).problems)


def test_a_trail_cut_short_is_betrayed_by_the_hash_in_the_cluster() -> None:
    bodies = rollback_trail()
    head = (len(bodies), record_hash(bodies[-1][1]))
    assert examine(bodies[:-2]).problems == ()
    assert any("is missing" in problem for problem in examine(bodies[:-2], head).problems)


def test_a_change_of_phase_that_the_machine_does_not_know_is_a_problem() -> None:
    trail = TrailWriter()
    trail.add("Takeover", after={"epoch": 1})
    trail.add("NeedsHuman", reason={"message": "out of nowhere"}, after={"phase": "Restoring"})
    assert examine(trail.bodies).problems == ("record 2: phase Pending cannot become Restoring",)


def test_a_result_without_an_intent_is_a_problem() -> None:
    trail = TrailWriter()
    trail.add("Takeover", after={"epoch": 1})
    trail.add("EndWorld", phase="Result", id="run#1", outcome="ended")
    assert any("without an earlier intent" in problem for problem in examine(trail.bodies).problems)


def test_an_unknown_action_is_a_problem_and_not_a_crash() -> None:
    trail = TrailWriter()
    trail.add("Levitate")
    assert any("Levitate cannot be understood" in problem for problem in examine(trail.bodies).problems)
    with pytest.raises(MalformedTrail, match="Record 1"):
        read_trail(trail.bodies)


def test_records_of_a_fenced_operator_are_named_and_do_not_count() -> None:
    trail = TrailWriter(epoch=2)
    trail.add("Takeover", after={"epoch": 2})
    trail.epoch = 1
    trail.add("Failed", after={"phase": "Failed", "message": "stale"})
    report = examine(trail.bodies)
    assert report.ignored == (2,)
    assert report.phase == "Pending"


def test_every_piece_of_evidence_and_every_policy_text_is_named_once() -> None:
    found = named_evidence(read_trail(rollback_trail()).records)
    by_store = {item.evidence.key: item.evidence.store for item in found}
    assert set(audit_objects(RUN)) == {key for key, store in by_store.items() if store == "audit"}
    assert sum(store == "checkpoint" for store in by_store.values()) == 3
    assert len(by_store) == len(found)


@pytest.mark.parametrize("ended", [True, False])
def test_an_anchor_that_has_ended_is_told_as_the_end_of_the_run(ended: bool) -> None:
    bodies = rollback_trail()
    seq, last = bodies[-1]
    report = examine(bodies, None, Anchor(run=str(RUN), seq=seq, hash=record_hash(last), ended=ended), RUN)
    assert report.ended is ended
    assert ("it is the run's last, for its TrainingJob was deleted" in told_end(report)) is ended


def test_an_ended_anchor_of_another_run_ends_nothing() -> None:
    bodies = rollback_trail()
    seq, last = bodies[-1]
    elsewhere = Anchor(run=f"{RUN}-2", seq=seq, hash=record_hash(last), ended=True)
    assert not examine(bodies, None, elsewhere, RUN).ended


def test_the_story_of_an_incident_tells_rule_numbers_target_skip_and_outcome() -> None:
    trail = read_trail(rollback_trail())
    story = " ".join(incident_story(trail.counted, trail.state.closed[0]))
    for part in (
        "loss-spike of policy guards generation 3 fired at step 323: loss 8.1 is above 2.25",
        "windows 320 to 322 were flagged",
        "Every rank holds after step 323; replicas agree.",
        "Finding: Undecided",
        "step 300: the newest trustworthy one",
        "Passed over: step 320 (Quarantined): newer than step 301.",
        "Windows 319 to 333 are skipped; 12 of them",
        "closed as Recovered",
        "What was done: step 300 was restored, and windows 319 to 333 were skipped; the incident ended as Recovered.",
    ):
        assert part in story


def test_the_story_of_a_plan_that_nobody_let_happen_says_that_nothing_was_done() -> None:
    answers = at({60: lambda run: run.ask("Reject"), 65: lambda run: run.ask("Stop")})
    run = play(replace(DAMAGED, approval=50), on_tick=answers, at_least=90)
    story = incident_story(run.announced, run.state.closed[0])
    assert any("plan 1 is not carried out" in line for line in story)
    done = "What was done: nothing was restored, and no window was skipped; the incident ended as Stopped."
    assert story[-1] == done


def test_the_story_of_a_relapse_begins_with_what_began_and_tells_of_each_firing() -> None:
    """The incident itself knows its last firing only."""
    again = {75: lambda run: run.ask("Rollback", wishes=Wishes(unchanged=True)), 85: lambda run: run.ask("Approve")}
    rejected = {60: lambda run: run.ask("Reject")}
    run = play(replace(DAMAGED, approval=50), on_tick=at(rejected | again), at_least=120)
    opened = next(one for one in run.announced if one.action == "IncidentOpened")
    relapsed = [one for one in run.announced if one.action == "Relapsed"]
    (incident,) = run.state.closed or (run.state.incident,)
    assert incident is not None
    story = incident_story(run.announced, incident)
    assert story[0].startswith("Rule loss-spike of policy guard generation 1 fired at step ")
    assert f"fired at step {(opened.after or {})['latch']['fired_step']}:" in story[0]
    told = [line for line in story if line.startswith("The run relapsed: rule loss-spike of policy guard")]
    assert len(told) == len(relapsed) == 1
    assert f"fired at step {(relapsed[0].after or {})['latch']['fired_step']}:" in told[0]


def test_the_story_tells_what_was_measured_what_changed_and_what_kept_a_green_run_from_passing() -> None:
    before = Vitals(
        records=20,
        loss_mean=2.0,
        loss_std=0.1,
        clip_records=0,
        clip_rate=None,
        speed_records=20,
        tokens_per_second=90.0,
    )
    slow = msgspec.structs.replace(before, tokens_per_second=40.0)
    scenario = Scenario(
        steps=60,
        damaged=frozenset(range(24, 30)),
        rate=(0.5, 30),
        diagnosis="Late",
        healthy=before,
        vitals=(slow, before),
    )
    run = play(scenario)
    story = "\n".join(incident_story(run.announced, run.state.closed[0]))
    for part in (
        "Finding: Undecided: replicas agree; nothing proves a transient fault; missing: the held state was not",
        "on the restored state 3 of 3 flagged windows are bad (9.0000 9.0000 9.0000 against 2.0000; control",
        "Resume behind step 20, skipping windows 23 to 31, at 0.5 of the learning rate up to step 50.",
        "No rule fires, but 40 tokens a second are 44% of the 90 before the incident; the probation goes on to step",
        "The incident closed as Recovered: all rules green",
        "100% of the throughput",
    ):
        assert part in story, story


def test_each_record_is_one_printable_line() -> None:
    trail = read_trail(rollback_trail())
    lines = [record_line(record) for record in trail.records]
    assert all("\n" not in line for line in lines)
    assert "operator operator-1 leads this run as epoch 1" in lines[0]
    assert any("skipping 319-333" in line for line in lines)
    assert any(INCIDENT not in line and "done: Job demo-1 created" in line for line in lines)


def test_a_checkpoint_says_why_the_rollback_passed_it_over() -> None:
    rows = {row.step: row for row in checkpoint_rows(read_trail(rollback_trail()), len)}
    assert rows[300].chosen is True
    assert rows[320].chosen is False
    assert rows[320].why == "newer than step 301"
    assert rows[320].state == "Quarantined"
    assert not rows[320].surviving
    assert rows[300].size == len("300/")


def test_the_story_of_a_run_that_a_person_took_back_names_them_and_no_rule() -> None:
    def ask(run: ScriptedRun) -> None:
        if run.ticks == 20:
            run.ask("Rollback", wishes=Wishes(skip=(12, 13)))

    run = play(Scenario(steps=30), on_tick=ask, at_least=60)
    first, asked, *rest = incident_story(run.announced, run.state.closed[0])
    assert first.startswith("No rule fired: ada asks for Rollback (seen and understood) at step ")
    assert asked.endswith("to the newest trustworthy checkpoint before the damage, skipping windows 12 to 13.")
    assert "Windows 12 to 13 are skipped: a person names these windows." in rest


def test_the_story_of_a_plan_that_was_approved_names_its_hash_and_who_approved_it() -> None:
    damaged = frozenset(range(24, 30))
    run = play(Scenario(damaged=damaged, approval=9, answers=(("TargetSelected", "Approve"),)))
    incident = run.state.closed[0]
    story = "\n".join(incident_story(run.announced, incident))
    assert "Plan 1 waits for approval until 2026-01-01T00:00:" in story
    assert f"skip nothing outside windows 23 to 44; its hash is {incident.plans[0].hash}" in story
    assert "ada asks for Approve (seen and understood), which is accepted: plan 1 is carried out." in story
