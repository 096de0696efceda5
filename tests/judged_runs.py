"""Builders for tests of the policies: rules as a user writes them, records, and runs judged record by record."""

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.evaluation import Engine
from trimtab_policies.lineage import Appended, Attempt, History, Lineage
from trimtab_policies.policy import AcceptedPolicy, parse_policy
from trimtab_policies.verdicts import Verdict

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


class Run:
    """A run as a caller of the policies keeps it: its records, and an engine made anew for each attempt."""

    def __init__(
        self, *policies: AcceptedPolicy, lineage: Lineage | None = None, first_step: int | None = None
    ) -> None:
        self.policies = policies
        self._records: list[MetricRecord] = []
        self._begin(lineage or Lineage([Attempt(1)]), first_step)

    def append(self, one: MetricRecord) -> Appended:
        """Offer a record; an accepted one is fed to the engine."""
        appended = self.history.append(one)
        if appended is Appended.ACCEPTED:
            self._records.append(one)
            self.engine.take(one)
        return appended

    def judge(self, *policies: AcceptedPolicy) -> tuple[Verdict, ...]:
        """The verdicts on the last record."""
        return self.engine.verdicts(policies or self.policies)

    def rebase(self, attempt: int, parent: int, branch_step: int) -> None:
        """Enter a new attempt, with the surviving records so far."""
        records = self._records
        self._records = []
        self._begin(self.history.lineage.including(Attempt(attempt, parent, branch_step)), None)
        for one in records:
            self.append(one)

    def _begin(self, lineage: Lineage, first_step: int | None) -> None:
        attempt = max(lineage.attempts)
        start = lineage.attempts[attempt].branch_step
        self.engine = Engine(self.policies, attempt=attempt, start_step=start)
        self.history = History(lineage, attempt, kept=64, first_step=first_step)


def new_run(*policies: AcceptedPolicy, start_step: int = 0, first_step: int | None = None) -> Run:
    return Run(*policies, lineage=Lineage([Attempt(1, None, start_step)]), first_step=first_step)


def judged(policy: AcceptedPolicy, records: Iterable[MetricRecord], run: Run | None = None) -> list[Verdict]:
    """The first rule's verdict on each record, all of which the history must accept."""
    run = new_run(policy) if run is None else run
    verdicts: list[Verdict] = []
    for one in records:
        assert run.append(one) is Appended.ACCEPTED
        verdicts.append(run.judge(policy)[0])
    return verdicts


def states(verdicts: Iterable[Verdict]) -> str:
    """One letter per verdict: Healthy, Pending, Firing, NoData, Error."""
    return "".join(verdict.state.value[0] for verdict in verdicts)
