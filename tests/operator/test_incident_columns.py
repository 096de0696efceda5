"""What `kubectl get gi` says of incidents: who began one, what a plan would do, and which hash is approved."""

import json
from typing import Any

import msgspec
import pytest
from control_plane_fixture import ControlPlane
from operator_objects import run_request, training_job
from run_states import POLICY, SETTINGS, incident, latch, reference, run_state
from trimtab_contract.directives import LearningRateOverride
from trimtab_operator import reporter
from trimtab_operator.incident_view import incident_message, incident_object, incident_status
from trimtab_operator.incidents import Asked, Incident, Plan, SkipRange, hashed
from trimtab_operator.observation import Pods, Request
from trimtab_operator.observer import SeenRequest
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import AnsweredRequest, RequestAction, RequestState, RunPhase, RunState
from trimtab_operator.status import Situation
from trimtab_operator.workload import TrainingJobView

DEADLINE = "2026-01-02T00:00:00+00:00"
AGO = "2026-01-01T00:00:00+00:00"
ASKED = Asked(uid="u", request="demo-hold-x", action="Hold", by="ada", reason="looks odd")


def held_by_ada() -> Incident:
    by_hand = latch(
        policy=None, rule="", metric="", action="Pause", flagged=None, asked=ASKED, message="ada asks for it"
    )
    return incident(latch=by_hand, held_step=182)


def waiting() -> Incident:
    settings = msgspec.structs.replace(SETTINGS, approval_seconds=86400)
    policy = msgspec.structs.replace(POLICY, hash="0" * 64)
    one = incident(latch=latch(policy=policy, remediation=settings), held_step=185)
    rate = LearningRateOverride(scale=0.5, until_step=660)
    plan = hashed(one.name, Plan(number=1, target=reference(160), bound=(179, 216), learning_rate=rate))
    return msgspec.structs.replace(one, plans=(plan,), deadline=DEADLINE)


def state_of(one: Incident, phase: RunPhase) -> RunState:
    return run_state(phase=phase, incident=one)


def stored(api: ControlPlane, one: Incident, phase: RunPhase) -> tuple[str, str]:
    """The wide row of `kubectl get gi` under its headings."""
    namespace = api.create_namespace("incidents")
    body = incident_object(_view(namespace), one)
    body["metadata"].pop("ownerReferences")
    api.apply(_without_none(body))
    status = _without_none(incident_status(one, state_of(one, phase)))
    patch = json.dumps({"status": status})
    options = (f"-n={namespace}", "--subresource=status", "--type=merge")
    api.kubectl("patch", "gi", one.name, *options, f"-p={patch}")
    header, row = api.kubectl("get", "gi", "-o=wide", f"-n={namespace}").splitlines()
    return header, row


def _view(namespace: str) -> TrainingJobView:
    body = training_job(namespace=namespace)
    body["metadata"] |= {"uid": "u-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return TrainingJobView.of(body)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(child) for name, child in value.items() if child is not None}
    return [_without_none(child) for child in value] if isinstance(value, list) else value


def test_an_incident_that_a_person_opened_names_them_in_place_of_a_rule(api: ControlPlane) -> None:
    header, row = stored(api, held_by_ada(), RunPhase.HOLDING)
    assert header.split()[:7] == ["NAME", "JOB", "RULE", "BY", "STEP", "PHASE", "TARGET"]
    assert header.split()[7:11] == ["SKIP", "FINDING", "OUTCOME", "PLAN"]
    assert row.split()[:5] == ["demo-a1-s181", "demo", "ada", "181", "Holding"]
    assert "ada asks for it" in row


def test_a_plan_that_waits_is_readable_where_it_is_approved(api: ControlPlane) -> None:
    one = waiting()
    assert one.plan is not None
    _, row = stored(api, one, RunPhase.AWAITING_APPROVAL)
    assert row.split()[1:9] == ["demo", "loss-spike", "181", "AwaitingApproval", "160", "179-216", "at", "most"]
    assert one.plan.hash in row
    said = "restore step 160, skip nothing outside windows 179 to 216, 0.5 of the learning rate up to step 660"
    assert said in row


def test_what_an_incident_says_is_what_it_waits_for() -> None:
    one = waiting()
    assert one.plan is not None
    message = incident_message(one, state_of(one, RunPhase.AWAITING_APPROVAL))
    assert message.startswith("plan 1 waits for approval until 2026-01-02T00:00:00Z: restore step 160")
    assert message.endswith(f"approve or reject {one.plan.hash}")
    assert incident_message(one, state_of(one, RunPhase.RESTORING)) == one.latch.message
    found = msgspec.structs.replace(one, extent=SkipRange(first=179, last=190, bad=9), extent_done=True)
    assert incident_status(found, state_of(found, RunPhase.PROBATION))["skip"] == "179-190"
    approval = incident_status(one, state_of(one, RunPhase.AWAITING_APPROVAL))["approval"]
    assert approval == {"planHash": one.plan.hash, "deadline": DEADLINE, "approvedBy": None}


async def test_an_open_incident_that_somebody_deletes_is_shown_again_and_a_closed_one_is_not(
    api: ControlPlane, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People answer by the object; what is over may be tidied away."""
    monkeypatch.setattr(reporter, "INCIDENT_SECONDS", 0.0)
    (namespace,) = ports.namespaces
    api.apply(training_job("demo", namespace))
    body = await ports.cluster.training_job(namespace, "demo")
    job, voice = TrainingJobView.of(body), reporter.Reporter(ports.cluster)
    one = waiting()
    for _ in range(2):
        await voice._show(job, one, state_of(one, RunPhase.AWAITING_APPROVAL))
        assert (await ports.cluster.guard_incident(namespace, one.name))["spec"]["plans"]
        api.kubectl("delete", "guardincident", one.name, f"--namespace={namespace}")
    over = msgspec.structs.replace(one, outcome="Recovered")
    await voice._show(job, over, run_state(closed=(over,)))
    api.kubectl("delete", "guardincident", one.name, f"--namespace={namespace}")
    await voice._show(job, over, run_state(closed=(over,)))
    left = api.kubectl("get", "guardincidents", f"--namespace={namespace}", "--output=name")
    assert left == ""


async def test_an_incident_that_cannot_be_shown_keeps_neither_the_status_nor_answers_from_people(
    api: ControlPlane, ports: Ports
) -> None:
    """Where a job was deleted without its incidents, one of the next job of that name may have the same name."""
    (namespace,) = ports.namespaces
    one = waiting()
    orphan = incident_object(_view(namespace), one)
    orphan["metadata"].pop("ownerReferences")
    asked = run_request(namespace, "hold", action="Hold", job="demo")
    api.apply(training_job("demo", namespace), _without_none(orphan), asked)
    body = await ports.cluster.training_job(namespace, "demo")
    (stored_request,) = await ports.cluster.run_requests(namespace)
    uid = stored_request["metadata"]["uid"]
    request = Request(uid=uid, name="hold", action=RequestAction.HOLD, by="ada", reason="odd")
    answer = AnsweredRequest(
        uid=uid, name="hold", action=RequestAction.HOLD, by="ada", state=RequestState.REFUSED, message="no", time=AGO
    )
    state = run_state(phase=RunPhase.AWAITING_APPROVAL, incident=one, requests=(answer,))
    voice = reporter.Reporter(ports.cluster)
    seen = (SeenRequest(stored_request, request),)
    await voice.report(body, TrainingJobView.of(body), state, Situation(pods=Pods()), seen)
    assert (await ports.cluster.training_job(namespace, "demo"))["status"]["phase"] == "AwaitingApproval"
    (stored_request,) = await ports.cluster.run_requests(namespace)
    assert stored_request["status"]["state"] == "Refused"
