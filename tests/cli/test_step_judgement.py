"""A step of a run explained afterwards is what the operator made of it then."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from judged_runs import accepted, record
from run_states import attempts, run_state
from trimtab_cli.step_judgement import judge_step
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.judge import Judge
from trimtab_operator.run_state import AcceptedGuard, Resumption, RunState
from trimtab_policies.decision import decide
from trimtab_policies.policy import AcceptedPolicy, Mode

HIGH = {"name": "high", "range": {"max": 5}, "forRecords": 3, "action": "Rollback"}
LOSSES = [2.0] * 20 + [9.0] * 30


def guard(policy: AcceptedPolicy, *, attempt: int = 1, step: int = 1) -> AcceptedGuard:
    identity = PolicyIdentity(
        kind=policy.kind,
        namespace=policy.namespace or "",
        name=policy.name,
        uid=policy.uid,
        generation=policy.generation,
        hash=policy.hash,
    )
    return AcceptedGuard(policies=(identity,), mode="Enforce", from_attempt=attempt, from_step=step)


def history(losses: Sequence[float], branch: int | None = None) -> list[MetricRecord]:
    return [
        record(step, attempt=1 if branch is None or step <= branch else 2, loss=loss)
        for step, loss in enumerate(losses, 1)
    ]


def fires_for_the_operator(
    policies: Sequence[AcceptedPolicy], records: Sequence[MetricRecord], state: RunState
) -> bool:
    judge = Judge()
    judge.texts.update({policy.hash: policy for policy in policies})
    judge.begin(state, tuple(records))
    return judge.firing is not None and judge.firing.fired_step == records[-1].step


def fires_when_explained(policy: AcceptedPolicy, records: Sequence[MetricRecord], state: RunState, step: int) -> bool:
    found = judge_step([policy], records, state, state.attempt, step).judged
    assert found is not None
    return decide(found.verdicts, guard_mode=Mode.ENFORCE).action is not None


def test_streaks_begin_anew_behind_the_step_at_which_a_person_let_the_run_go_on() -> None:
    policy, records = accepted(HIGH), history(LOSSES)
    held = run_state(guards=(guard(policy),))
    resumed = replace(held, resumptions=(Resumption(attempt=1, step=24),))
    assert [step for step in range(21, 31) if fires_when_explained(policy, records[:step], held, step)] == [
        *range(23, 31)
    ]
    explained = [step for step in range(21, 31) if fires_when_explained(policy, records[:step], resumed, step)]
    assert explained == [23, 24, *range(27, 31)]
    first_behind = next(step for step in range(25, 31) if fires_for_the_operator([policy], records[:step], resumed))
    assert first_behind == 27


@pytest.mark.parametrize("resumed", [(), (35,), (33, 36)])
@pytest.mark.parametrize("edited", [0, 34])
def test_a_later_attempt_counts_grace_from_its_own_start_and_a_policy_from_when_it_came_into_force(
    resumed: tuple[int, ...], edited: int
) -> None:
    before, policy = accepted({**HIGH, "range": {"max": 99}}), accepted({**HIGH, "graceSteps": 4, "forRecords": 1})
    guards = (guard(before), guard(policy, attempt=2, step=edited)) if edited else (guard(policy),)
    state = run_state(
        attempts=attempts((None, 0), (1, 30)),
        guards=guards,
        resumptions=tuple(Resumption(attempt=2, step=step) for step in resumed),
    )
    records = history(LOSSES, branch=30)
    settled = max(resumed, default=30)
    explained = [step for step in range(settled + 1, 51) if fires_when_explained(policy, records[:step], state, step)]
    latched = [step for step in range(31, 51) if fires_for_the_operator([before, policy], records[:step], state)]
    assert latched == explained[:1]
    assert latched
