"""Builders for tests of the policies: rules as a user writes them, records, and runs judged record by record."""

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.evaluation import Verdict, judge, retention
from trimtab_policies.lineage import Appended, Attempt, History, Lineage
from trimtab_policies.policy import AcceptedPolicy, parse_policy

SPIKE: Mapping[str, Any] = {"baseline": {"records": 20, "minRecords": 10, "maxFreeze": 15}, "sigma": 4}


def accepted(*rules: Mapping[str, Any], mode: str = "Enforce", name: str = "guard") -> AcceptedPolicy:
    named = [
        {"name": f"rule-{index}", "metric": "loss", "action": "Notify", **rule} for index, rule in enumerate(rules)
    ]
    spec = parse_policy({"mode": mode, "rules": named})
    return AcceptedPolicy.of(spec, kind="GuardPolicy", namespace="lab", name=name, uid=f"uid-{name}", generation=1)


def record(
    step: int, *, attempt: int = 1, vectors: Mapping[str, Vector] | None = None, **scalars: float
) -> MetricRecord:
    return MetricRecord(
        attempt=attempt,
        step=step,
        window=step - 1,
        samples_seen=step * 16,
        tokens_seen=step * 2048,
        time=float(step),
        scalars=scalars,
        vectors=dict(vectors or {}),
    )


def losses(values: Iterable[float | None], *, first: int = 1, attempt: int = 1) -> list[MetricRecord]:
    """One record per value, from step `first` on; None leaves the loss out."""
    return [
        record(step, attempt=attempt) if value is None else record(step, attempt=attempt, loss=value)
        for step, value in enumerate(values, first)
    ]


def healthy(count: int) -> list[float]:
    """A gently moving loss: mean 2.0, standard deviation about 0.1."""
    return [2.0 + 0.1 * (1, -1, 0.5, -0.5, 1.3, -1.3)[index % 6] for index in range(count)]


def new_history(*policies: AcceptedPolicy, start_step: int = 0, first_step: int | None = None) -> History:
    lineage = Lineage([Attempt(1, None, start_step)])
    return History(lineage, 1, retention=retention(policies), first_step=first_step)


def judged(policy: AcceptedPolicy, records: Iterable[MetricRecord], history: History | None = None) -> list[Verdict]:
    """The first rule's verdict on each record, all of which the history must accept."""
    history = new_history(policy) if history is None else history
    verdicts: list[Verdict] = []
    for one in records:
        assert history.append(one) is Appended.ACCEPTED
        verdicts.append(judge((policy,), history)[0])
    return verdicts
