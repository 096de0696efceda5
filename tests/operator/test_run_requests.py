"""RunRequests at the API server and at the operator's door: what is stored and read, what is shown of the answer."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from control_plane_fixture import ControlPlane
from operator_objects import guard_policy, run_request, training_job
from trimtab_contract.directives import LearningRateOverride
from trimtab_operator import observer
from trimtab_operator.adapters import kubernetes
from trimtab_operator.adapters.api_server import Resource
from trimtab_operator.adapters.kubernetes import KubernetesCluster
from trimtab_operator.adapters.ports import Kind
from trimtab_operator.errors import InvalidResource
from trimtab_operator.incidents import Wishes
from trimtab_operator.observation import Request
from trimtab_operator.resources import parse_run_request_spec
from trimtab_operator.run_state import AnsweredRequest, RequestAction, RequestState
from trimtab_operator.status import request_status
from trimtab_operator.workload import TrainingJobView


@pytest.fixture
async def cluster(api: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    made = await KubernetesCluster.connect(api.kubeconfig)
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"action": "Teleport"}, "spec.action"),
        ({"action": "resume"}, "spec.action"),
        ({"reason": ""}, "spec.reason"),
        ({"reason": "x" * 1025}, "spec.reason"),
        ({"by": ""}, "spec.by"),
        ({"job": "Not A Name"}, "spec.job"),
        ({"to": 300}, "spec.to"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_by_its_field(
    api: ControlPlane, changes: dict[str, Any], field: str
) -> None:
    assert field in api.refusal(run_request(api.create_namespace("asked"), **changes))


PLAN = "a" * 64
RATE = {"scale": 0.5, "forSteps": 100}
WINDOWS = {"first": 480, "last": 505}

ACCEPTED: tuple[dict[str, Any], ...] = (
    {"action": "Hold"},
    {"action": "Stop"},
    {"action": "Rollback"},
    {"action": "Rollback", "args": {"toStep": 0, "skip": WINDOWS, "learningRate": RATE}},
    {"action": "Rollback", "args": {"toKey": "root/run/manifest.json", "unchanged": True}},
    {"action": "Skip", "args": {"skip": {"first": 480, "last": 480}}},
    {"action": "Approve", "planHash": PLAN},
    {"action": "Reject", "planHash": PLAN},
    {"action": "Reject"},
)


def test_what_people_may_ask_is_stored_and_read(api: ControlPlane) -> None:
    namespace = api.create_namespace("asked")
    bodies = [run_request(namespace, f"request-{number}", **spec) for number, spec in enumerate(ACCEPTED)]
    api.apply(*bodies)
    for body in bodies:
        assert parse_run_request_spec(body).action == body["spec"]["action"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"args": {"toStep": 300}}, "spec.args: Invalid value: belongs to Rollback and Skip"),
        ({"action": "Hold", "args": {"skip": WINDOWS}}, "belongs to Rollback and Skip: remove it"),
        ({"action": "Skip"}, "must have skip: which windows shall be skipped"),
        (
            {"action": "Skip", "args": {"skip": WINDOWS, "toStep": 3}},
            "must have skip alone: the rest belongs to Rollback",
        ),
        ({"action": "Rollback", "args": {"toStep": 3, "toKey": "x"}}, "spec.args.toKey"),
        ({"action": "Rollback", "args": {"unchanged": True, "skip": WINDOWS}}, "spec.args.unchanged"),
        ({"action": "Rollback", "args": {"unchanged": True, "learningRate": RATE}}, "spec.args.unchanged"),
        ({"action": "Rollback", "args": {"skip": {"first": 5, "last": 4}}}, "spec.args.skip.first"),
        ({"action": "Rollback", "args": {"skip": {"first": -1, "last": 4}}}, "spec.args.skip.first"),
        ({"action": "Rollback", "args": {"skip": {"first": 5}}}, "spec.args.skip.last"),
        ({"action": "Rollback", "args": {"learningRate": {"scale": 2, "forSteps": 1}}}, "learningRate.scale"),
        ({"action": "Rollback", "args": {"learningRate": {"scale": 0.5}}}, "learningRate.forSteps"),
        ({"action": "Rollback", "args": {"toStep": -1}}, "spec.args.toStep"),
        ({"action": "Approve"}, "must name the plan that is approved: the hash in the GuardIncident"),
        ({"action": "Approve", "planHash": "abc"}, "spec.planHash"),
        ({"action": "Stop", "planHash": PLAN}, "belongs to Approve and Reject: remove it"),
    ],
)
def test_arguments_are_refused_where_they_mean_nothing_and_missed_where_they_are_needed(
    api: ControlPlane, changes: dict[str, Any], why: str
) -> None:
    assert why in api.refusal(run_request("default", **changes))


def test_arguments_that_another_version_let_pass_are_named_and_left_alone() -> None:
    body = run_request(action="Skip", args={"skip": {"first": 5, "last": 4}})
    with pytest.raises(InvalidResource, match=r"cannot be read: look at spec\.args\.skip"):
        parse_run_request_spec(body)


def test_what_people_ask_reaches_the_decision_as_they_asked_it() -> None:
    changes = {"toStep": 300, "skip": WINDOWS, "learningRate": RATE}
    rollback = read(action="Rollback", args=changes)
    assert rollback.wishes == Wishes(
        step=300, skip=(480, 505), learning_rate=LearningRateOverride(scale=0.5, until_step=100)
    )
    assert (rollback.by, rollback.reason, rollback.outlived) == ("admin", "the spike is known", False)
    assert read(action="Rollback", args={"toKey": "a/b", "unchanged": True}).wishes == Wishes(key="a/b", unchanged=True)
    assert read(action="Approve", planHash=PLAN).plan_hash == PLAN
    assert read(action="Hold").wishes == Wishes()


def read(**spec: Any) -> Request:
    body = run_request(**spec)
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = training_job()
    job["metadata"] |= {"uid": "j", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return observer._request(body["metadata"], parse_run_request_spec(body), TrainingJobView.of(job))


@pytest.mark.parametrize("field", ["job", "action", "reason", "by"])
def test_every_field_of_a_request_must_be_there(api: ControlPlane, field: str) -> None:
    body = run_request(api.create_namespace("asked"))
    del body["spec"][field]
    assert f"spec.{field}" in api.refusal(body)


@pytest.mark.parametrize("changes", [{"action": "Stop"}, {"by": "another"}, {"reason": "another"}, {"job": "other"}])
def test_a_request_is_immutable(api: ControlPlane, changes: dict[str, Any]) -> None:
    namespace = api.create_namespace("asked")
    api.apply(run_request(namespace))
    refusal = api.refusal(run_request(namespace, **changes))
    assert "spec" in refusal
    assert "is immutable: create another RunRequest" in refusal


def test_policies_may_ask_for_a_pause(api: ControlPlane) -> None:
    seen = {"name": "seen", "metric": "loss", "range": {"max": 9}, "action": "Notify", "onNoData": "Pause"}
    loud = {"name": "loud", "metric": "loss", "range": {"max": 9}, "action": "Pause"}
    api.apply(guard_policy(namespace=api.create_namespace("pause"), rules=[seen, loud]))


async def test_the_answer_is_what_people_see_of_a_request(api: ControlPlane, cluster: KubernetesCluster) -> None:
    namespace = api.create_namespace("asked")
    api.apply(training_job(namespace=namespace), run_request(namespace, action="Stop"))
    (body,) = await cluster.run_requests(namespace)
    assert body["kind"] == "RunRequest"
    spec = parse_run_request_spec(body)
    assert (spec.job, spec.action, spec.by) == ("demo", RequestAction.STOP, "admin")
    answer = AnsweredRequest(
        uid=body["metadata"]["uid"],
        name="demo-resume",
        action=spec.action,
        by=spec.by,
        state=RequestState.DONE,
        message="the run is stopped",
        time="2026-01-01T00:00:00.000001+00:00",
        done_at="2026-01-01T00:00:01.000001+00:00",
    )
    version = body["metadata"]["resourceVersion"]
    await cluster.patch_status(Kind.RUN_REQUEST, namespace, "demo-resume", request_status(answer), version)
    header, row = api.kubectl("get", "rr", f"-n={namespace}").splitlines()
    assert header.split() == ["NAME", "JOB", "ACTION", "BY", "STATE", "AGE"]
    assert row.split()[:-1] == ["demo-resume", "demo", "Stop", "admin", "Done"]


async def test_runs_go_on_where_the_cluster_does_not_know_requests(
    api: ControlPlane, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Resource("trimtab.dev/v1alpha1", "unknownrequests")
    monkeypatch.setitem(cast("dict[Kind, Resource]", kubernetes._RESOURCES), Kind.RUN_REQUEST, unknown)
    assert await cluster.run_requests(api.create_namespace("early")) == ()


def test_a_request_of_another_version_is_named_and_left_alone() -> None:
    body = run_request(action="Teleport")
    with pytest.raises(InvalidResource, match=r"RunRequest demo-resume cannot be read: look at spec\.action"):
        parse_run_request_spec(body)
