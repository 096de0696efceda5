"""What people read of the guard in a job's status: which policy does not judge, and why."""

from typing import Any

import pytest
from operator_objects import training_job
from run_states import POLICY
from trimtab_operator.guards import GuardProblem
from trimtab_operator.observation import Blocker, MissingMetric, Pods
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import AcceptedGuard, RunPhase, RunState
from trimtab_operator.status import Situation, job_status
from trimtab_operator.workload import TrainingJobView

GUARD = AcceptedGuard(policies=(POLICY,), mode="Enforce", from_attempt=1, from_step=1)
NOBODY = AcceptedGuard(policies=(), mode="Enforce", from_attempt=1, from_step=1)
MISSING = MissingMetric(
    policy="GuardPolicy/guard", rule="guard/high", metric="los", message="rule guard/high: did you mean loss?"
)
UNMET = GuardProblem(Reason.POLICY_UNSATISFIABLE, "GuardPolicy guard: spec.remediation.margin is 4")


def conditions(
    *outdated: GuardProblem,
    blockers: tuple[Blocker, ...] = (),
    missing: tuple[MissingMetric, ...] = (),
    before: tuple[dict[str, Any], ...] = (),
    phase: RunPhase = RunPhase.PENDING,
    guard: AcceptedGuard = GUARD,
) -> dict[str, dict[str, Any]]:
    body = training_job()
    body["metadata"] |= {"uid": "u-1", "generation": 3}
    situation = Situation(pods=Pods(), blockers=blockers, outdated=outdated, missing_metrics=missing)
    status = job_status(
        TrainingJobView.of(body),
        RunState(guards=(guard,), phase=phase),
        situation,
        now="2026-01-01T00:00:00+00:00",
        before=before,
    )
    return {one["type"]: one for one in status["conditions"]}


def test_a_job_that_no_policy_judges_is_not_called_guarded() -> None:
    found = conditions(guard=NOBODY)
    assert (found["Guarded"]["status"], found["Guarded"]["reason"]) == ("False", "NoPolicies")


def test_a_healthy_guard_is_in_force_and_says_nothing_else() -> None:
    found = conditions()
    assert (found["Guarded"]["status"], found["Guarded"]["reason"]) == ("True", "PoliciesInForce")
    assert not {"PolicyUnsatisfiable", "MetricMissing"} & found.keys()


def test_an_invalid_policy_makes_the_job_unguarded_by_its_newest_text() -> None:
    found = conditions(GuardProblem(Reason.POLICY_INVALID, "GuardPolicy guard: wrong; generation 2 stays in force"))
    assert (found["Guarded"]["status"], found["Guarded"]["reason"]) == ("False", "PolicyInvalid")
    assert "generation 2 stays in force" in found["Guarded"]["message"]


def test_a_policy_the_job_cannot_satisfy_has_a_condition_of_its_own() -> None:
    for found in (conditions(UNMET), conditions(blockers=(Blocker(UNMET.reason, UNMET.message),))):
        assert (found["PolicyUnsatisfiable"]["status"], found["PolicyUnsatisfiable"]["message"]) == (
            "True",
            UNMET.message,
        )


def test_a_metric_that_never_came_is_shown() -> None:
    found = conditions(missing=(MISSING,))
    assert found["MetricMissing"]["status"] == "True"
    assert "did you mean loss?" in found["MetricMissing"]["message"]


def test_what_was_wrong_once_is_shown_as_mended() -> None:
    before = tuple(conditions(UNMET, missing=(MISSING,)).values())
    found = conditions(before=before)
    assert (found["PolicyUnsatisfiable"]["status"], found["PolicyUnsatisfiable"]["reason"]) == (
        "False",
        "PolicySatisfiable",
    )
    assert (found["MetricMissing"]["status"], found["MetricMissing"]["reason"]) == ("False", "MetricSeen")


@pytest.mark.parametrize("phase", [RunPhase.COMPLETED, RunPhase.STOPPED, RunPhase.FAILED])
def test_what_happens_to_policies_and_secrets_after_the_end_changes_nothing_that_is_said(phase: RunPhase) -> None:
    at_the_end = conditions(missing=(MISSING,))
    missing = Blocker(Reason.SECRET_MISSING, "create s3")
    later = conditions(UNMET, blockers=(missing,), before=tuple(at_the_end.values()), phase=phase)
    for kind in ("Ready", "Guarded", "MetricMissing"):
        assert later[kind] == at_the_end[kind]
    assert "PolicyUnsatisfiable" not in later


def test_a_run_that_ended_before_anything_was_shown_is_not_told_to_lack_anything() -> None:
    found = conditions(UNMET, blockers=(Blocker(Reason.SECRET_MISSING, "create s3"),), phase=RunPhase.COMPLETED)
    assert (found["Ready"]["status"], found["Guarded"]["reason"]) != ("False", UNMET.reason.value)
    assert found["Ready"]["status"] == "True"
