"""The policy that jobs get by default: quiet on what recovers, quick on what does not."""

import math
import random
from pathlib import Path

import yaml
from judged_runs import new_run, record
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.decision import decide
from trimtab_policies.lineage import Appended
from trimtab_policies.policy import AcceptedPolicy, Mode, parse_policy
from trimtab_policies.rules import Action

MANIFEST = yaml.safe_load((Path(__file__).parents[2] / "policies" / "library" / "default.yaml").read_text())
DEFAULT = AcceptedPolicy.of(
    parse_policy(MANIFEST["spec"]),
    kind="GuardPolicy",
    namespace="lab",
    name=MANIFEST["metadata"]["name"],
    uid="uid",
    generation=1,
)


def curve(count: int, seed: int = 0) -> list[float]:
    """A falling loss with noise, like a small language model's."""
    noise = random.Random(seed)
    return [1.4 + 2.6 * math.exp(-step / 90) + noise.gauss(0, 0.06) for step in range(count)]


def run(losses: list[float], **scalars: float) -> list[MetricRecord]:
    return [record(step, loss=loss, nonfinite=0, **scalars) for step, loss in enumerate(losses, 1)]


def acts(records: list[MetricRecord]) -> dict[int, tuple[Action, str]]:
    """By step, what was decided and by which rule."""
    judged = new_run(DEFAULT)
    found: dict[int, tuple[Action, str]] = {}
    for one in records:
        assert judged.append(one) is Appended.ACCEPTED
        decision = decide(judged.judge(), guard_mode=Mode.ENFORCE)
        if decision.action is not None and decision.winner is not None:
            found[one.step] = decision.action, decision.winner.rule.name
    return found


def test_a_healthy_run_never_rolls_back() -> None:
    for seed in range(5):
        assert all(action is Action.RECORD for action, _ in acts(run(curve(1500, seed))).values())


def test_a_lone_spike_is_recorded_and_nothing_else() -> None:
    losses = curve(600)
    losses[399] += 5
    assert acts(run(losses))[400] == (Action.RECORD, "loss-lone-spike")
    assert all(action is Action.RECORD for action, _ in acts(run(losses)).values())


def test_damaged_batches_roll_back_at_the_third() -> None:
    losses = curve(600)
    for offset, loss in enumerate((11.5, 10.0, 8.1, 6.8, 6.6, 6.3)):
        losses[320 + offset] = loss
    found = acts(run(losses))
    assert min(step for step, (action, _) in found.items() if action is Action.ROLLBACK) == 323
    assert found[323] == (Action.ROLLBACK, "loss-spike")


def test_a_non_finite_step_rolls_back_at_once_also_in_the_first_steps() -> None:
    records = [*run(curve(4)), record(5, loss=math.nan, nonfinite=1, skipped_update=1)]
    assert acts(records) == {5: (Action.ROLLBACK, "non-finite")}


def test_a_replica_that_differs_rolls_back_at_once() -> None:
    records = [*run(curve(49), replica_mismatch=0), record(50, loss=2.0, nonfinite=0, replica_mismatch=1)]
    assert acts(records) == {50: (Action.ROLLBACK, "replica-mismatch")}


def test_a_head_clipped_for_twenty_records_is_notified() -> None:
    def gammas(step: int) -> dict[str, Vector]:
        return {"qk_clip_gamma": Vector.pack((4, 4), [0.9 if step > 10 and head == 5 else 1.0 for head in range(16)])}

    records = [record(step, loss=2.0, nonfinite=0, vectors=gammas(step)) for step in range(1, 31)]
    assert acts(records) == {30: (Action.NOTIFY, "qk-clip-sustained")}


def test_clipping_all_over_but_never_long_in_one_head_is_notified() -> None:
    def gammas(step: int) -> dict[str, Vector]:
        return {"qk_clip_gamma": Vector.pack((4, 8), [0.9 if (head + step) % 3 else 1.0 for head in range(32)])}

    records = [record(step, loss=2.0, nonfinite=0, vectors=gammas(step)) for step in range(1, 21)]
    assert acts(records) == {20: (Action.NOTIFY, "qk-clip-widespread")}
