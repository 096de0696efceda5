"""`status` of a TrainingJob and its GuardIncidents, from the fold."""

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from judged_runs import record
from operator_objects import training_job
from played_trainer import Scenario
from run_states import POLICY, attempts, checkpoint, incident, latch, reference, run_state
from scripted_operator import play
from trimtab_operator.guards import GuardProblem
from trimtab_operator.incident_view import incident_object, incident_status
from trimtab_operator.incidents import Finding, Measurement, Plan, SkipRange
from trimtab_operator.journal_fold import fold
from trimtab_operator.observation import Blocker, Pods, PodsState, Request
from trimtab_operator.reasons import Reason
from trimtab_operator.requests.legal import refusal
from trimtab_operator.resources.guard_incident import GuardIncidentStatus, IncidentPhase
from trimtab_operator.run_state import AcceptedGuard, AutomationHold, RequestAction, RunPhase, RunState, World
from trimtab_operator.status import Situation, job_status, newly_wrong
from trimtab_operator.workload import TrainingJobView

NOW, LATER = "2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"
GUARD = AcceptedGuard(policies=(POLICY,), mode="Enforce", from_attempt=1, from_step=1)


def view(**spec: Any) -> TrainingJobView:
    body = training_job(**spec)
    body["metadata"] |= {"uid": "u-1", "generation": 4}
    return TrainingJobView.of(body)


def shown(
    state: RunState,
    *,
    job: TrainingJobView | None = None,
    now: str = NOW,
    before: tuple[dict[str, Any], ...] = (),
    **changes: Any,
) -> dict[str, Any]:
    situation = replace(Situation(pods=Pods(world=1, state=PodsState.LIVE)), **changes)
    return job_status(job or view(), state, situation, now=now, before=before)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((one for one in status["conditions"] if one["type"] == kind), None)


def test_a_running_job_shows_its_phase_step_loss_and_checkpoint() -> None:
    state = run_state(checkpoints=(checkpoint(70), checkpoint(80, state="Committed")), guards=(GUARD,))
    status = shown(state, last=record(83, loss=2.34567))
    assert (status["phase"], status["step"], status["loss"], status["attempt"]) == ("Watching", 83, "2.3457", 1)
    assert status["checkpoint"] == "80 Committed"
    assert status["observedGeneration"] == 4
    assert condition(status, "Running") == {
        "type": "Running",
        "status": "True",
        "reason": "WorldRunning",
        "message": "",
        "observedGeneration": 4,
        "lastTransitionTime": NOW,
    }
    assert status["policies"][0]["generation"] == 1


@pytest.mark.parametrize(("loss", "text"), [(math.nan, "nan"), (math.inf, "inf"), (0.0, "0.0000")])
def test_a_loss_is_shown_as_it_is(loss: float, text: str) -> None:
    assert shown(run_state(), last=record(1, loss=loss))["loss"] == text


def test_a_record_without_a_loss_shows_none() -> None:
    assert shown(run_state(), last=record(1))["loss"] is None


def test_quarantined_and_abandoned_checkpoints_are_not_shown_as_the_newest() -> None:
    state = run_state(
        attempts=attempts((None, 0), (1, 60)),
        checkpoints=(checkpoint(50), checkpoint(60, state="Quarantined"), checkpoint(80)),
    )
    assert shown(state)["checkpoint"] == "50 Verified"
    assert shown(run_state())["checkpoint"] is None


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = shown(run_state())
    same = shown(run_state(), now=LATER, before=first["conditions"])
    assert same["conditions"] == first["conditions"]
    blocked = shown(
        run_state(), now=LATER, before=first["conditions"], blockers=(Blocker(Reason.SECRET_MISSING, "create it"),)
    )
    ready = condition(blocked, "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "SecretMissing", "create it")
    assert ready["lastTransitionTime"] == LATER
    guarded = condition(blocked, "Guarded")
    assert guarded is not None
    assert guarded["lastTransitionTime"] == NOW
    other = shown(
        run_state(), now="x", before=blocked["conditions"], blockers=(Blocker(Reason.STORE_REFUSED, "correct it"),)
    )
    ready = condition(other, "Ready")
    assert ready is not None
    assert (ready["reason"], ready["lastTransitionTime"]) == ("StoreRefused", LATER)


def test_a_job_that_waits_says_for_everything_it_waits_for() -> None:
    blockers = (Blocker(Reason.SECRET_MISSING, "create s3"), Blocker(Reason.POLICY_MISSING, "create guard"))
    status = shown(run_state(phase=RunPhase.PENDING, world=None), blockers=blockers, pods=Pods())
    assert status["message"] == "create s3; create guard"
    ready = condition(status, "Ready")
    assert ready is not None
    assert ready["message"] == "create s3; create guard"


def test_an_outdated_policy_shows_in_guarded_and_the_incident_in_its_own_condition() -> None:
    problem = GuardProblem(Reason.POLICY_INVALID, "spec.rules[0].metric; generation 1 stays in force")
    status = shown(run_state(guards=(GUARD,), incident=incident()), outdated=(problem,))
    guarded, opened = condition(status, "Guarded"), condition(status, "IncidentOpen")
    assert guarded is not None
    assert opened is not None
    assert (guarded["status"], guarded["reason"]) == ("False", "PolicyInvalid")
    assert "generation 1 stays in force" in guarded["message"]
    assert (opened["status"], opened["message"]) == ("True", "loss 9 > 4")


def test_a_human_is_told_why_he_is_asked() -> None:
    state = run_state(phase=RunPhase.NEEDS_HUMAN, incident=incident(), question="3 rollbacks are spent")
    status = shown(state)
    asked = condition(status, "NeedsHuman")
    assert asked is not None
    assert asked["message"] == "3 rollbacks are spent"
    how = "say how it goes on with `trimtab job resume demo --reason WHY`, `rollback` or `stop`"
    assert status["message"] == f"3 rollbacks are spent; {how}"
    assert condition(shown(run_state()), "NeedsHuman") is None


def test_a_run_that_waits_for_the_breaker_says_so_and_how_it_goes_on() -> None:
    hold = AutomationHold(id="breaker-9", message="3 runs failed; `trimtab job resume` lets a run go on", since=9.0)
    for state in (
        run_state(phase=RunPhase.SELECTING, incident=incident(), automation=hold),
        run_state(phase=RunPhase.PENDING, world=None, automation=hold),
    ):
        assert shown(state)["message"] == hold.message
        rollback = Request(action=RequestAction.ROLLBACK, uid="u", name="n", by="ada", reason="why")
        assert refusal(state, rollback).endswith("; what is legal there: Resume, Skip and Stop")


def test_a_paused_run_that_is_suspended_says_both() -> None:
    state = run_state(phase=RunPhase.HOLDING, incident=incident(latch=latch(action="Pause"), held_step=183), world=None)
    how = "the run is paused: say how it goes on with `trimtab job resume demo --reason WHY`, `rollback` or `stop`"
    assert shown(state, job=view(suspend=True))["message"] == f"suspended: spec.suspend is true; loss 9 > 4; {how}"
    assert shown(state)["message"] == f"loss 9 > 4; {how}"


def test_the_breaker_is_no_concern_of_a_run_that_is_over() -> None:
    held = shown(run_state(), automation_held="3 runs failed within a minute")
    assert condition(held, "AutomationHeld") is not None
    let_go = condition(shown(run_state(), before=held["conditions"]), "AutomationHeld")
    assert let_go is not None
    assert (let_go["status"], let_go["reason"]) == ("False", "BreakerReleased")
    failed = shown(
        run_state(phase=RunPhase.FAILED, failure="why"), before=held["conditions"], automation_held="3 runs failed"
    )
    assert condition(failed, "AutomationHeld") is None


def test_failed_and_completed_runs_say_so() -> None:
    failed = shown(run_state(phase=RunPhase.FAILED, failure="BadConfig: width\x1b"))
    row = condition(failed, "Failed")
    assert row is not None
    assert row["message"] == "BadConfig: width�"
    assert failed["message"] == "BadConfig: width�"
    assert condition(shown(run_state(phase=RunPhase.COMPLETED)), "Complete") is not None


def stuck(message: str, reason: Reason = Reason.IMAGE_PULL_FAILED) -> dict[str, Any]:
    pods = Pods(world=1, state=PodsState.STARTING, trouble=message, trouble_reason=reason)
    return shown(run_state(phase=RunPhase.PENDING), pods=pods)


def test_pods_that_cannot_start_are_the_reason_why_no_world_runs_and_the_message() -> None:
    status = stuck("pod demo-1-0 cannot get its image")
    running = condition(status, "Running")
    assert running is not None
    assert (running["status"], running["reason"]) == ("False", "ImagePullFailed")
    assert status["message"] == running["message"] == "pod demo-1-0 cannot get its image"


def test_what_keeps_a_run_from_going_on_is_new_once() -> None:
    def blocked(*messages: str) -> dict[str, Any]:
        blockers = tuple(Blocker(Reason.SECRET_MISSING, one) for one in messages)
        return shown(run_state(phase=RunPhase.PENDING, world=None), pods=Pods(), blockers=blockers)

    first, other = blocked("create s3"), blocked("create s4")
    assert newly_wrong(first["conditions"], ()) == ((Reason.SECRET_MISSING, "create s3"),)
    assert newly_wrong(first["conditions"], first["conditions"]) == ()
    assert newly_wrong(other["conditions"], first["conditions"]) == ((Reason.SECRET_MISSING, "create s4"),)
    assert newly_wrong(shown(run_state())["conditions"], ()) == ()


def test_every_new_try_of_the_kubelet_is_no_news() -> None:
    first, again = stuck("ErrImagePull"), stuck("ImagePullBackOff")
    other = stuck("0/1 nodes", Reason.UNSCHEDULABLE)
    assert newly_wrong(first["conditions"], ()) == ((Reason.IMAGE_PULL_FAILED, "ErrImagePull"),)
    assert newly_wrong(again["conditions"], first["conditions"]) == ()
    assert newly_wrong(other["conditions"], first["conditions"]) == ((Reason.UNSCHEDULABLE, "0/1 nodes"),)


def test_a_world_that_is_only_starting_is_nothing_wrong() -> None:
    starting = shown(run_state(phase=RunPhase.PENDING), pods=Pods(world=1, state=PodsState.STARTING))
    assert newly_wrong(starting["conditions"], ()) == ()


LOST = World(number=1, live=False, lost_reason="Suspended")


@pytest.mark.parametrize("phase", [RunPhase.PENDING, RunPhase.WATCHING, RunPhase.PROBATION])
def test_a_suspended_job_without_pods_is_pending_and_says_why(phase: RunPhase) -> None:
    state = run_state(phase=phase, world=LOST, incident=incident() if phase is RunPhase.PROBATION else None)
    status = shown(state, job=view(suspend=True), pods=Pods(world=1, state=PodsState.GONE))
    assert (status["phase"], status["message"]) == ("Pending", "suspended: spec.suspend is true")
    suspended, running = condition(status, "Suspended"), condition(status, "Running")
    assert suspended is not None
    assert running is not None
    assert (suspended["status"], suspended["reason"]) == ("True", "Suspended")
    assert (running["status"], running["reason"]) == ("False", "Suspended")


def test_a_job_that_is_suspended_shows_its_phase_until_its_world_is_gone() -> None:
    status = shown(run_state(), job=view(suspend=True), pods=Pods(world=1, state=PodsState.ENDING))
    running = condition(status, "Running")
    assert running is not None
    assert (status["phase"], running["reason"]) == ("Watching", "Suspended")


@pytest.mark.parametrize("phase", [RunPhase.HOLDING, RunPhase.RESTORING, RunPhase.NEEDS_HUMAN, RunPhase.FAILED])
def test_a_remediation_goes_on_showing_its_phase_without_a_world(phase: RunPhase) -> None:
    assert shown(run_state(phase=phase, world=LOST, incident=incident()), pods=Pods())["phase"] == phase.value


def test_a_job_that_was_never_suspended_says_nothing_about_it() -> None:
    assert condition(shown(run_state()), "Suspended") is None
    suspended = shown(run_state(), job=view(suspend=True))
    resumed = condition(shown(run_state(), before=suspended["conditions"]), "Suspended")
    assert resumed is not None
    assert (resumed["status"], resumed["reason"]) == ("False", "Resumed")


def test_what_keeps_a_world_from_starting_is_the_reason_why_none_runs() -> None:
    blocked = shown(
        run_state(phase=RunPhase.PENDING, world=None),
        pods=Pods(),
        blockers=(Blocker(Reason.SECRET_MISSING, "create s3"), Blocker(Reason.POLICY_MISSING, "create guard")),
    )
    running = condition(blocked, "Running")
    assert running is not None
    assert (running["status"], running["reason"], running["message"]) == ("False", "SecretMissing", "create s3")


@pytest.mark.parametrize(
    ("phase", "reason"),
    [(RunPhase.COMPLETED, "Finished"), (RunPhase.STOPPED, "Finished"), (RunPhase.FAILED, "Failed")],
)
def test_a_run_that_is_over_runs_no_world_for_that_reason(phase: RunPhase, reason: str) -> None:
    running = condition(shown(run_state(phase=phase, world=LOST), pods=Pods()), "Running")
    assert running is not None
    assert running["reason"] == reason


def test_an_incident_object_is_owned_by_its_job_and_shows_its_trigger_and_plans() -> None:
    one = incident(targets=(reference(170), reference(160)))
    body = incident_object(view(), one)
    assert body["metadata"]["name"] == "demo-a1-s181"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    trigger = body["spec"]["trigger"]
    assert (trigger["firstBadStep"], trigger["firedStep"]) == (181, 183)
    assert (trigger["observed"], trigger["threshold"]) == ("9", "4")
    assert trigger["flagged"] == {"first": 180, "last": 182}
    assert [(plan["number"], plan["target"]["step"]) for plan in body["spec"]["plans"]] == [(1, 170), (2, 160)]


def test_an_incident_status_tells_how_it_stands_and_how_it_ended() -> None:
    target = reference(170)
    one = msgspec.structs.replace(
        incident(),
        plans=(Plan(number=1, target=target, failed="object differs"), Plan(number=2, target=reference(160))),
        held_step=190,
        extent=SkipRange(first=179, last=188, bad=7),
        relapses=1,
    )
    status = incident_status(one, run_state(phase=RunPhase.PROBATION))
    assert (status["phase"], status["heldStep"], status["relapses"], status["outcome"]) == ("Probation", 190, 1, None)
    assert status["skipped"] == {"first": 179, "last": 188, "bad": 7}
    assert status["failedPlans"] == [{"number": 1, "reason": "object differs"}]
    closed = msgspec.structs.replace(one, outcome="Recovered", closed_at=NOW)
    assert incident_status(closed, replace(run_state(), phase=RunPhase.HOLDING))["phase"] == "Closed"
    assert incident_status(closed, run_state())["closedTime"] == NOW


def test_an_incident_status_shows_what_was_measured_what_is_missing_and_what_is_in_doubt() -> None:
    suspect = Measurement(
        control=32,
        control_nonfinite=1,
        control_mean=2.5,
        control_std=0.25,
        control_bad=True,
        threshold=3.5,
        flagged=((180, None), (181, 9.0), (182, 2.0)),
        bad=(180, 181),
    )
    one = msgspec.structs.replace(
        incident(targets=(reference(170),)),
        finding=Finding.UNDECIDED,
        missing=("the replicas of the held state were not compared",),
        suspect=suspect,
        doubts=("45 tokens a second are 50% of the 90 before the incident",),
        plans=(Plan(number=1, target=reference(170), relapsed="loss-spike fired at step 183 behind it"),),
    )
    status = incident_status(one, run_state(phase=RunPhase.PROBATION))
    assert status["measured"] == [
        {
            "state": "Held",
            "control": 32,
            "controlNonFinite": 1,
            "controlBad": True,
            "controlMean": "2.5",
            "controlStd": "0.25",
            "threshold": "3.5",
            "flagged": 3,
            "bad": 2,
        }
    ]
    assert status["missingEvidence"] == ["the replicas of the held state were not compared"]
    assert status["failedPlans"] == [{"number": 1, "reason": "loss-spike fired at step 183 behind it"}]
    known = set(GuardIncidentStatus.model_json_schema(by_alias=True)["properties"])
    assert set(status) <= known
    GuardIncidentStatus.model_validate(status)
    job = shown(run_state(phase=RunPhase.PROBATION, incident=one))
    condition = next(row for row in job["conditions"] if row["type"] == "ProbationExtended")
    assert condition["message"] == "no rule fires, but 45 tokens a second are 50% of the 90 before the incident"


def test_every_phase_of_an_open_incident_can_be_stored() -> None:
    open_phases: set[RunPhase] = set()
    for scenario in (
        Scenario(steps=30, damaged=frozenset(range(14, 18))),
        Scenario(steps=30, damaged=frozenset(range(14, 200))),
        Scenario(steps=20, damaged=frozenset(range(14, 18)), action="Stop"),
        Scenario(steps=30, damaged=frozenset(range(14, 18)), action="Pause"),
    ):
        states = accumulate(play(scenario).announced, fold, initial=RunState())
        open_phases |= {state.phase for state in states if state.incident is not None}
    assert RunPhase.HOLDING in open_phases
    assert RunPhase.NEEDS_HUMAN in open_phases
    assert {phase.value for phase in open_phases} <= {phase.value for phase in IncidentPhase}


def test_an_anchor_that_cannot_be_written_is_said_as_a_condition_and_once_as_an_event() -> None:
    why = "record 7 of the journal is not anchored outside its bucket: the API server did not answer within 3 s"
    status = shown(run_state(), anchor_pending=why)
    pending = condition(status, "AnchorPending")
    assert pending is not None
    assert (pending["status"], pending["reason"], pending["message"]) == ("True", "AnchorNotWritten", why)
    assert newly_wrong(status["conditions"], ()) == ((Reason.ANCHOR_NOT_WRITTEN, why),)
    assert newly_wrong(status["conditions"], status["conditions"]) == ()
    assert condition(shown(run_state()), "AnchorPending") is None


def test_checkpoints_that_do_not_get_stored_are_a_condition_and_once_an_event_while_the_run_goes_on() -> None:
    why = "the checkpoint after step 130 was left out; 1 missed in a row, the newest stored is that after step 100"
    status = shown(run_state(), checkpoints_behind=why)
    behind = condition(status, "CheckpointsBehind")
    assert behind is not None
    assert (behind["status"], behind["reason"], behind["message"]) == ("True", "CheckpointsBehind", why)
    assert newly_wrong(status["conditions"], ()) == ((Reason.CHECKPOINTS_BEHIND, why),)
    assert newly_wrong(status["conditions"], status["conditions"]) == ()
    assert condition(shown(run_state()), "CheckpointsBehind") is None
    over = run_state(phase=RunPhase.COMPLETED)
    assert condition(shown(over, checkpoints_behind=why), "CheckpointsBehind") is None


def test_what_is_being_read_back_is_a_condition_also_behind_the_end_and_gone_afterwards() -> None:
    told = (
        "the checkpoint of step 60 is read back and hashed by a Job; Job demo-verify-u-r31: pod x cannot be scheduled"
    )
    for phase in (RunPhase.WATCHING, RunPhase.COMPLETED):
        status = shown(run_state(phase=phase), reading_back=told)
        reading = condition(status, "ReadingBack")
        assert reading is not None
        assert (reading["status"], reading["reason"], reading["message"]) == ("True", "ReadBackOrdered", told)
        assert condition(shown(run_state(phase=phase), before=status["conditions"]), "ReadingBack") is None
