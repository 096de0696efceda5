"""The API server itself refuses objects that cannot work, and says which field to correct."""

from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from operator_objects import guard_incident, guard_policy, incident_plan, training_job


def rule(**changes: Any) -> dict[str, Any]:
    return {"name": "loss-spike", "metric": "loss", "spike": {"sigma": 4}, "action": "Rollback"} | changes


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def test_a_valid_job_and_policy_are_accepted_and_their_defaults_filled_in(api: ControlPlane) -> None:
    namespace = api.create_namespace("valid")
    api.apply(training_job(namespace=namespace), guard_policy(namespace=namespace), guard_incident(namespace))
    output = api.kubectl("get", "tj", "demo", f"-n={namespace}", "-o=jsonpath={.spec.budget}{.spec.trainer.numNodes}")
    assert output == '{"maxRestarts":10,"maxRollbacks":3,"window":"24h"}1'
    probe = "-o=jsonpath={.spec.remediation.skipBatches.probe}"
    assert api.kubectl("get", "gp", "demo", f"-n={namespace}", probe) == "64"


def test_the_columns_of_a_job_are_the_ones_people_look_for(api: ControlPlane) -> None:
    namespace = api.create_namespace("columns")
    api.apply(training_job(namespace=namespace))
    status = '{"status":{"phase":"Watching","step":7,"loss":"2.5","attempt":2,"rollbacks":1,"checkpoint":"5 Verified"}}'
    patch_status(api, namespace, status)
    header, row = api.kubectl("get", "tj", f"-n={namespace}").splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "LOSS", "ATTEMPT", "ROLLBACKS", "CHECKPOINT", "AGE"]
    assert row.split()[:-1] == ["demo", "Watching", "7", "2.5", "2", "1", "5", "Verified"]


def patch_status(api: ControlPlane, namespace: str, status: str) -> None:
    api.kubectl("patch", "tj", "demo", f"-n={namespace}", "--subresource=status", "--type=merge", f"-p={status}")


BAD_JOBS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown field": ({"trainer": {"imagee": "x"}}, "spec.trainer.imagee", "unknown field"),
    "unknown top-level field": ({"resumeWith": {}}, "spec.resumeWith", "unknown field"),
    "continuing no run": ({"resumeFrom": {"step": 100}}, "spec.resumeFrom.run", "Required value"),
    "continuing behind no step": ({"resumeFrom": {"run": "lab/older/u-1"}}, "spec.resumeFrom.step", "Required value"),
    "continuing a name": ({"resumeFrom": {"run": "older", "step": 100}}, "spec.resumeFrom.run", "should match"),
    "continuing the seed": ({"resumeFrom": {"run": "lab/older/u-1", "step": 0}}, "resumeFrom.step", "equal to 1"),
    "continuing by no hash": (
        {"resumeFrom": {"run": "lab/older/u-1", "step": 1, "manifestSHA256": "abc"}},
        "spec.resumeFrom.manifestSHA256",
        "should match",
    ),
    "no nodes": ({"trainer": {"numNodes": 0}}, "spec.trainer.numNodes", "greater than or equal to 1"),
    "too many nodes": ({"trainer": {"numNodes": 1025}}, "spec.trainer.numNodes", "less than or equal to 1024"),
    "processes in words": ({"trainer": {"numProcPerNode": "many"}}, "spec.trainer.numProcPerNode", "auto or a number"),
    "no processes": ({"trainer": {"numProcPerNode": 0}}, "spec.trainer.numProcPerNode", "auto or a number"),
    "reserved variable": ({"trainer": {"env": [{"name": "TRIMTAB_RUN", "value": "x"}]}}, "env[0].name", "reserved"),
    "variable without value": ({"trainer": {"env": [{"name": "A"}]}}, "env[0]", "exactly one of value and valueFrom"),
    "variable set twice": (
        {"trainer": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "env[1]",
        "Duplicate value",
    ),
    "unknown data order": ({"trainer": {"config": {"data": {"order": "random"}}}}, "config.data.order", "sequential"),
    "not an S3 address": ({"checkpoint": {"uri": "/tmp/x"}}, "spec.checkpoint.uri", "s3://"),
    "no checkpoint interval": ({"checkpoint": {"everySteps": 0}}, "spec.checkpoint.everySteps", "equal to 1"),
    "unknown policy kind": ({"guard": {"policies": [{"kind": "X", "name": "a"}]}}, "policies[0].kind", "GuardPolicy"),
    "unknown mode": ({"guard": {"mode": "Act"}}, "spec.guard.mode", "Enforce"),
    "negative budget": ({"budget": {"maxRollbacks": -1}}, "spec.budget.maxRollbacks", "equal to 0"),
    "empty window": ({"budget": {"window": "0h"}}, "spec.budget.window", "longer than zero"),
    "negative window": ({"budget": {"window": "-24h"}}, "spec.budget.window", "should match"),
    "window in days": ({"budget": {"window": "1d"}}, "spec.budget.window", "should match"),
    "no deadline": ({"progressDeadline": "0s"}, "spec.progressDeadline", "longer than zero"),
    "no grace": ({"podTemplate": {"terminationGracePeriodSeconds": 5}}, "terminationGracePeriodSeconds", "equal to 10"),
}


@pytest.mark.parametrize(("changes", "field", "why"), BAD_JOBS.values(), ids=BAD_JOBS)
def test_a_job_that_cannot_work_is_refused_by_field(
    api: ControlPlane, changes: dict[str, Any], field: str, why: str
) -> None:
    refusal = api.refusal(training_job(**changes))
    assert field in refusal
    assert why in refusal


@pytest.mark.parametrize("name", ["x" * 53, "9lives", "dotted.name"])
def test_a_name_that_pods_and_services_could_not_carry_is_refused(api: ControlPlane, name: str) -> None:
    assert "metadata.name m" in api.refusal(training_job(name=name))


def test_the_longest_name_is_accepted(api: ControlPlane) -> None:
    namespace = api.create_namespace("names")
    api.apply(training_job(name="x" * 52, namespace=namespace))


BAD_RULES = {
    "two detectors": (rule(range={"max": 1}), "rules[0]", "exactly one detector"),
    "no detector": (without(rule(), "spike"), "rules[0]", "exactly one detector"),
    "malformed metric": (rule(metric="Loss-1"), "rules[0].metric", "should match"),
    "metric name too long": (rule(metric="l" * 64), "rules[0].metric", "Too long"),
    "unknown reduction": (rule(metric="qk_max_logit", reduce={"mode": True}), "rules[0].reduce.mode", "unknown field"),
    "two reductions": (
        rule(metric="qk_max_logit", reduce={"max": True, "fractionBelow": 1}),
        "rules[0].reduce",
        "exactly one of",
    ),
    "vector without reduction": (rule(metric="qk_max_logit"), "rules[0].metric", "add reduce"),
    "reduced scalar": (rule(reduce={"max": True}), "rules[0].reduce", "left out"),
    "empty window": (rule(spike={"sigma": 4, "baseline": {"records": 0}}), "baseline.records", "equal to 2"),
    "negative window": (rule(spike={"sigma": 4, "baseline": {"records": -5}}), "baseline.records", "equal to 2"),
    "window beyond any log": (rule(spike={"sigma": 4, "baseline": {"records": 10**7}}), "records", "equal to 10000"),
    "baseline that never fills": (
        rule(spike={"sigma": 4, "baseline": {"records": 10, "minRecords": 20}}),
        "baseline.minRecords",
        "at most records",
    ),
    "freeze shorter than the streak": (
        rule(forRecords=5, spike={"sigma": 4, "baseline": {"maxFreeze": 2}}),
        "rules[0].forRecords",
        "never fire",
    ),
    "no streak": (rule(forRecords=0), "rules[0].forRecords", "equal to 1"),
    "no sigma": (rule(spike={"sigma": 0}), "spike.sigma", "greater than 0"),
    "empty range": (rule(range={}) | {"spike": None}, "rules[0].range", "min or max"),
    "range upside down": (rule(range={"min": 2, "max": 1}) | {"spike": None}, "rules[0].range", "at most max"),
    "unknown action": (rule(action="Reboot"), "rules[0].action", "Rollback"),
    "unknown detector": (rule(trend={"max": 1}) | {"spike": None}, "rules[0].trend", "unknown field"),
    "sigma and ratio": (rule(spike={"sigma": 4, "ratio": 2}), "rules[0].spike", "exactly one of sigma and ratio"),
    "no metric": (without(rule(), "metric"), "rules[0]", "must have a metric"),
    "a level that never settles": (
        rule(divergence={"relative": 0.2, "absolute": 0.1, "settleRecords": 60, "lookbackRecords": 50})
        | {"spike": None},
        "divergence.settleRecords",
        "at most lookbackRecords",
    ),
    "more breaches than the window has room for": (
        rule(forRecords=10, withinRecords=5),
        "rules[0].withinRecords",
        "at least forRecords",
    ),
    "silence that rolls back": (
        rule(stale={"after": "5m"}, action="Rollback") | {"spike": None},
        "rules[0].action",
        "cannot be undone",
    ),
    "silence in days": (rule(stale={"after": "5d"}) | {"spike": None}, "rules[0].stale.after", "should match"),
    "patience without a deed": (rule(noDataFor="5m"), "rules[0].noDataFor", "belongs to onNoData"),
    "a composite of one": (
        {"name": "both", "action": "Notify", "allOf": ["loss-spike"]},
        "spec.rules",
        "at least two rules",
    ),
    "a composite of unknown rules": (
        {"name": "both", "action": "Notify", "anyOf": ["one", "two"]},
        "spec.rules",
        "rules of this policy",
    ),
    "a composite with a metric": (
        {"name": "both", "metric": "loss", "action": "Notify", "anyOf": ["one", "two"]},
        "rules[0]",
        "neither metric nor reduce",
    ),
}


@pytest.mark.parametrize(("bad", "field", "why"), BAD_RULES.values(), ids=BAD_RULES)
def test_a_rule_that_cannot_judge_is_refused_by_field(
    api: ControlPlane, bad: dict[str, Any], field: str, why: str
) -> None:
    given = {name: value for name, value in bad.items() if value is not None}
    refusal = api.refusal(guard_policy(rules=[given]))
    assert field in refusal
    assert why in refusal


def test_a_composite_of_a_stale_rule_is_refused(api: ControlPlane) -> None:
    silent = {"name": "silent", "stale": {"after": "5m"}, "action": "Notify"}
    both = {"name": "both", "anyOf": ["loss-spike", "silent"], "action": "Notify"}
    refusal = api.refusal(guard_policy(rules=[rule(), silent, both]))
    assert "spec.rules" in refusal
    assert "not stale" in refusal


BAD_REMEDIATIONS = {
    "no margin": ({"margin": 0}, "remediation.margin", "equal to 1"),
    "negative margin": ({"margin": -1}, "remediation.margin", "equal to 1"),
    "margin beyond any run": ({"margin": 10**9}, "remediation.margin", "equal to 1000000"),
    "probe too short": ({"skipBatches": {"probe": 10}}, "skipBatches.probe", "forRecords"),
    "negative border": ({"skipBatches": {"before": -1}}, "skipBatches.before", "equal to 0"),
    "border as wide as the margin": (
        {"margin": 20, "skipBatches": {"before": 20}},
        "skipBatches.before",
        "less than margin",
    ),
    "no probation": ({"probationSteps": 0}, "probationSteps", "equal to 1"),
    "approval by nobody": ({"approval": "Manual"}, "approval", "Required"),
    "deadline of no approval": ({"approvalDeadline": "1h"}, "approvalDeadline", "belongs to approval Required"),
    "no time to approve": (
        {"approval": "Required", "approvalDeadline": "0h0m"},
        "approvalDeadline",
        "longer than zero",
    ),
}


@pytest.mark.parametrize(("changes", "field", "why"), BAD_REMEDIATIONS.values(), ids=BAD_REMEDIATIONS)
def test_a_remediation_no_job_could_satisfy_is_refused_by_field(
    api: ControlPlane, changes: dict[str, Any], field: str, why: str
) -> None:
    refusal = api.refusal(guard_policy(remediation=changes))
    assert field in refusal
    assert why in refusal


def test_two_rules_of_one_name_are_refused(api: ControlPlane) -> None:
    assert "Duplicate value" in api.refusal(guard_policy(rules=[rule(), rule()]))


RUNNING = '{"status":{"phase":"Watching","attempt":1}}'
CHECKPOINTED = '{"status":{"phase":"Watching","checkpoint":"0 Verified"}}'
NEW_IMAGE: dict[str, Any] = {"trainer": {"image": "example/trainer:2"}}
NEW_LABEL: dict[str, Any] = {"podTemplate": {"labels": {"team": "x"}}}


@pytest.mark.parametrize(("changes", "field"), [(NEW_IMAGE, "spec.trainer"), (NEW_LABEL, "spec.podTemplate")])
def test_what_a_running_world_was_made_of_cannot_change(api: ControlPlane, changes: dict[str, Any], field: str) -> None:
    namespace = api.create_namespace("running")
    api.apply(training_job(namespace=namespace))
    patch_status(api, namespace, RUNNING)
    refusal = api.refusal(training_job(namespace=namespace, **changes))
    assert field in refusal
    assert "set suspend first" in refusal


def test_the_trainers_configuration_counts_as_part_of_the_running_world(api: ControlPlane) -> None:
    namespace = api.create_namespace("config")
    api.apply(training_job(namespace=namespace))
    patch_status(api, namespace, RUNNING)
    assert "spec.trainer" in api.refusal(
        training_job(namespace=namespace, trainer={"config": {"model": {"width": 16}}})
    )


@pytest.mark.parametrize("status", [None, '{"status":{"phase":"Pending"}}', '{"status":{"phase":"Failed"}}'])
def test_a_job_without_a_world_takes_a_new_image(api: ControlPlane, status: str | None) -> None:
    namespace = api.create_namespace("idle")
    api.apply(training_job(namespace=namespace))
    if status is not None:
        patch_status(api, namespace, status)
    api.apply(training_job(namespace=namespace, **NEW_IMAGE))


def test_a_suspended_job_takes_a_new_image_and_resumes_in_one_edit(api: ControlPlane) -> None:
    namespace = api.create_namespace("suspended")
    api.apply(training_job(namespace=namespace))
    patch_status(api, namespace, RUNNING)
    api.apply(training_job(namespace=namespace, suspend=True))
    api.apply(training_job(namespace=namespace, **NEW_IMAGE))


def test_guard_budget_and_deadlines_of_a_running_job_may_change(api: ControlPlane) -> None:
    namespace = api.create_namespace("edits")
    api.apply(training_job(namespace=namespace))
    patch_status(api, namespace, CHECKPOINTED)
    guard = {"mode": "Observe", "policies": [{"kind": "GuardPolicy", "name": "a"}]}
    api.apply(training_job(namespace=namespace, guard=guard, budget={"maxRollbacks": 1}, progressDeadline="1h30m"))


FIXED = {
    "uri": ({"checkpoint": {"uri": "s3://other/prefix"}}, "spec.checkpoint.uri"),
    "seed": ({"trainer": {"config": {"data": {"seed": 1}}}}, "config.data.seed"),
    "order": ({"trainer": {"config": {"data": {"order": "shuffled"}}}}, "config.data.order"),
    "initial seed": ({"trainer": {"config": {"seed": 1}}}, "config.seed"),
    "global batch": ({"trainer": {"config": {"globalBatch": 4}}}, "config.globalBatch"),
    "length of a sample": ({"trainer": {"config": {"model": {"sequence": 64}}}}, "config.model.sequence"),
    "kind of a source": ({"trainer": {"config": {"data": {"kind": "uint16"}}}}, "config.data.kind"),
    "field of a line": ({"trainer": {"config": {"data": {"textField": "body"}}}}, "config.data.textField"),
    "a mixture": ({"trainer": {"config": {"data": {"sources": [{"path": "/data"}]}}}}, "config.data.sources"),
}


@pytest.mark.parametrize(("changes", "field"), FIXED.values(), ids=FIXED)
def test_what_gives_checkpoints_their_meaning_is_fixed_from_the_first_one_on(
    api: ControlPlane, changes: dict[str, Any], field: str
) -> None:
    namespace = api.create_namespace("fixed")
    api.apply(training_job(namespace=namespace))
    patch_status(api, namespace, CHECKPOINTED)
    api.apply(training_job(namespace=namespace, suspend=True))
    refusal = api.refusal(training_job(namespace=namespace, suspend=True, **changes))
    assert field in refusal
    assert "start a new TrainingJob" in refusal


def test_what_a_run_continues_may_change_until_it_has_started(api: ControlPlane) -> None:
    namespace = api.create_namespace("continued")
    first, other = ({"run": "lab/older/u-1", "step": step} for step in (100, 200))
    api.apply(training_job(namespace=namespace, resumeFrom=first))
    patch_status(api, namespace, '{"status":{"phase":"Pending","attempt":0}}')
    api.apply(training_job(namespace=namespace, resumeFrom=other))
    patch_status(api, namespace, RUNNING)
    refusal = api.refusal(training_job(namespace=namespace, resumeFrom=first))
    assert "spec.resumeFrom" in refusal
    assert "cannot change once the run has started" in refusal
    removal = '-p=[{"op":"remove","path":"/spec/resumeFrom"}]'
    removed = api.try_kubectl("patch", "tj", "demo", f"-n={namespace}", "--type=json", removal)
    assert "cannot change once the run has started" in removed.stderr
    api.apply(training_job(namespace=namespace, resumeFrom=other, budget={"maxRollbacks": 1}))


SOURCES = [{"path": "/data/web", "kind": "uint16", "weight": 0.7}, {"path": "/data/books", "weight": 3}]


def with_sources(namespace: str, *sources: dict[str, Any]) -> dict[str, Any]:
    return training_job(namespace=namespace, suspend=True, trainer={"config": {"data": {"sources": list(sources)}}})


def test_a_mixture_is_fixed_from_the_first_checkpoint_on_and_its_files_may_move(api: ControlPlane) -> None:
    namespace = api.create_namespace("mixture")
    web, books = SOURCES
    api.apply(with_sources(namespace, web, books))
    api.apply(with_sources(namespace, books, web))
    api.apply(with_sources(namespace, web, books))
    patch_status(api, namespace, CHECKPOINTED)
    for changed in (
        (web,),
        (books, web),
        (web, books, books),
        ({**web, "weight": 0.6}, books),
        ({**web, "kind": "bytes"}, books),
        (web, {**books, "textField": "body"}),
    ):
        refusal = api.refusal(with_sources(namespace, *changed))
        assert "config.data.sources: number, order and " in refusal
        assert "start a new TrainingJob" in refusal
    moved = {**web, "path": "s3://corpora/web", "name": "web", "weight": 0.7}
    api.apply(with_sources(namespace, moved, {**books, "kind": "bytes"}))


@pytest.mark.parametrize("changes", [changes for changes, _ in FIXED.values()], ids=FIXED)
def test_before_the_first_checkpoint_it_may_change(api: ControlPlane, changes: dict[str, Any]) -> None:
    namespace = api.create_namespace("unfixed")
    api.apply(training_job(namespace=namespace))
    api.apply(training_job(namespace=namespace, **changes))


def test_an_incidents_trigger_is_immutable(api: ControlPlane) -> None:
    namespace = api.create_namespace("trigger")
    api.apply(guard_incident(namespace))
    refusal = api.refusal(guard_incident(namespace, trigger={"observed": "1.0"}))
    assert "spec.trigger" in refusal
    assert "is immutable" in refusal
    assert "is immutable" in api.refusal(guard_incident(namespace, trigger={"ruleText": {"spike": {"sigma": 9}}}))


def test_an_incidents_plans_are_only_appended_to(api: ControlPlane) -> None:
    namespace = api.create_namespace("plans")
    api.apply(guard_incident(namespace))
    api.apply(guard_incident(namespace, plans=[incident_plan(1), incident_plan(2)]))
    changed = guard_incident(namespace, plans=[incident_plan(1, step=100), incident_plan(2)])
    assert "appended to" in api.refusal(changed)
    assert "appended to" in api.refusal(guard_incident(namespace, plans=[incident_plan(2)]))
    assert "plans" in api.refusal(guard_incident(namespace, plans=[incident_plan(number) for number in range(1, 10)]))
