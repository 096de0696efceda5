"""The shipped policies, and runs of made-up curves judged by them."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from judged_runs import new_run, record
from msgspec import structs
from trimtab_contract.metrics import MetricRecord
from trimtab_policies.decision import decide
from trimtab_policies.lineage import Appended
from trimtab_policies.policy import AcceptedPolicy, Mode, parse_policy
from trimtab_policies.rules import Action

LIBRARY = Path(__file__).parents[1] / "policies" / "library"
NAMES = sorted(path.stem for path in LIBRARY.glob("*.yaml") if not path.name.endswith(".test.yaml"))

Act = tuple[Action, str]


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((LIBRARY / f"{name}.yaml").read_text())


def shipped(name: str) -> AcceptedPolicy:
    spec = parse_policy(manifest(name)["spec"])
    return AcceptedPolicy.of(spec, kind="ClusterGuardPolicy", namespace=None, name=name, uid=name, generation=1)


def curve(count: int, seed: int = 0, deviation: float = 0.06) -> list[float]:
    """A falling loss with noise, like a small language model's."""
    noise = random.Random(seed)
    return [1.4 + 2.6 * math.exp(-step / 90) + noise.gauss(0, deviation) for step in range(count)]


def run(losses: Iterable[float], **scalars: float) -> list[MetricRecord]:
    return [scalar_record(step, {"loss": loss, "nonfinite": 0.0, **scalars}) for step, loss in enumerate(losses, 1)]


def scalar_record(step: int, scalars: Mapping[str, float]) -> MetricRecord:
    return structs.replace(record(step), scalars=dict(scalars))


def metric(name: str, values: Sequence[float], *, first: int = 1) -> list[MetricRecord]:
    """One record per value, with nothing but this metric."""
    return [scalar_record(step, {name: value}) for step, value in enumerate(values, first)]


def acts(policies: Sequence[AcceptedPolicy], records: Iterable[MetricRecord]) -> dict[int, Act]:
    """By step, what was decided and by which rule; while a rule goes on asking for the same, its first step only."""
    records = list(records)
    judged = new_run(*policies, first_step=records[0].step)
    found: dict[int, Act] = {}
    last: tuple[Act, int | None] | None = None
    for one in records:
        assert judged.append(one) is Appended.ACCEPTED
        decision = decide(judged.judge(), guard_mode=Mode.ENFORCE)
        if decision.action is None or decision.winner is None:
            last = None
            continue
        act = decision.action, decision.winner.rule.name
        event = act, decision.winner.first_bad_step
        if event != last:
            found[one.step] = act
        last = event
    return found


def strongest(found: dict[int, Act]) -> Action | None:
    return max((action for action, _ in found.values()), key=lambda action: action.severity, default=None)
