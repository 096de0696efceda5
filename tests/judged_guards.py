"""Builders for tests of one run's judgement: guards in force, losses, and a judge that has read them."""

from collections.abc import Iterable
from typing import Any

from judged_runs import record
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.judge import Judge
from trimtab_operator.run_state import AcceptedGuard, RunState
from trimtab_policies.policy import AcceptedPolicy, parse_policy

SPIKE: dict[str, Any] = {
    "name": "loss-spike",
    "metric": "loss",
    "spike": {"baseline": {"records": 20, "minRecords": 10}, "sigma": 4},
    "forRecords": 3,
    "action": "Rollback",
}
NONFINITE = {"name": "non-finite", "metric": "nonfinite", "range": {"max": 0}, "forRecords": 1, "action": "Rollback"}
LOUD = {"name": "loud", "metric": "loss", "range": {"max": 5}, "forRecords": 1, "action": "Notify"}
HALT = {"name": "halt", "metric": "loss", "range": {"max": 50}, "forRecords": 1, "action": "Stop"}


def policy(*rules: dict[str, Any], mode: str = "Enforce", generation: int = 1, name: str = "guard") -> AcceptedPolicy:
    spec = parse_policy(
        {
            "mode": mode,
            "rules": list(rules),
            "remediation": {
                "margin": 12,
                "skipBatches": {"before": 1, "after": 3, "probe": 40},
                "probationSteps": 25,
                "escalate": {"marginFactor": 3},
                "learningRate": {"scale": 0.5, "forSteps": 60},
            },
        }
    )
    return AcceptedPolicy.of(
        spec, kind="GuardPolicy", namespace="lab", name=name, uid=f"uid-{name}", generation=generation
    )


def identity(one: AcceptedPolicy) -> PolicyIdentity:
    return PolicyIdentity(
        kind=one.kind, namespace="lab", name=one.name, uid=one.uid, generation=one.generation, hash=one.hash
    )


def guarded(*policies: AcceptedPolicy, mode: str = "Enforce", step: int = 1, attempt: int = 1) -> AcceptedGuard:
    return AcceptedGuard(
        policies=tuple(identity(one) for one in policies), mode=mode, from_attempt=attempt, from_step=step
    )


def judge_of(state: RunState, records: Iterable[MetricRecord], *policies: AcceptedPolicy) -> Judge:
    judge = Judge()
    judge.texts.update({one.hash: one for one in policies})
    judge.begin(state, tuple(records))
    return judge


def run(losses: Iterable[float], *, attempt: int = 1, first: int = 1, **scalars: float) -> list[MetricRecord]:
    return [
        record(step, attempt=attempt, loss=loss, nonfinite=0.0, **scalars) for step, loss in enumerate(losses, first)
    ]


def healthy(count: int) -> list[float]:
    return [2.0 + 0.1 * (1, -1, 0.5, -0.5)[index % 4] for index in range(count)]
