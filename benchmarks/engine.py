"""Judgement alone: how long a record takes by five rules, with and without a large model's heads, and what a run costs.

The yardstick is decoding the same record from its wire form, which every reader of records has to do anyway.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from trimtab_contract.metrics import MetricRecord, Vector, decode_record, encode_record
from trimtab_policies.backtest import judge_log
from trimtab_policies.evaluation import Engine
from trimtab_policies.lineage import Attempt, History, Lineage
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy, parse_policy

from benchmarks.figures import Figure, Measurement, ratios, write

ROUNDS = 7
RECORDS = 6_000
WIDE_RECORDS = 1_500
LAYERS, HEADS = 64, 128
RUNS, RECORDS_OF_A_RUN = 1_000, 400
KEPT_RECORDS = 384
"""As the operator keeps them."""
LOG_STEPS = 20_000

_SPIKE = {"sigma": 4}
SCALAR_RULES: tuple[dict[str, object], ...] = (
    {"name": "loss-spike", "metric": "loss", "spike": _SPIKE, "forRecords": 3, "action": "Rollback"},
    {"name": "lone-spike", "metric": "loss", "spike": _SPIKE, "action": "Record"},
    {"name": "non-finite", "metric": "nonfinite", "range": {"max": 0}, "action": "Rollback"},
    {
        "name": "divergence",
        "metric": "loss",
        "divergence": {"relative": 0.2, "absolute": 0.2, "sigma": 10},
        "forRecords": 3,
        "action": "Rollback",
    },
    {"name": "grad-norm", "metric": "grad_norm", "spike": {"sigma": 6}, "action": "Record"},
)
VECTOR_RULES: tuple[dict[str, object], ...] = (
    {
        "name": "sustained",
        "metric": "qk_clip_gamma",
        "reduce": {"longestStreakBelow": 1},
        "range": {"max": 19},
        "action": "Notify",
    },
    {
        "name": "widespread",
        "metric": "qk_clip_gamma",
        "reduce": {"fractionBelow": 1, "minCount": 8},
        "range": {"max": 0.01},
        "forRecords": 20,
        "action": "Notify",
    },
    {
        "name": "logits",
        "metric": "qk_max_logit",
        "reduce": {"max": True},
        "range": {"max": 100},
        "action": "Notify",
    },
    {"name": "logit-spike", "metric": "qk_max_logit", "reduce": {"max": True}, "spike": _SPIKE, "action": "Record"},
    {"name": "loss-spike", "metric": "loss", "spike": _SPIKE, "forRecords": 3, "action": "Rollback"},
)


def policy(rules: Sequence[dict[str, object]]) -> AcceptedPolicy:
    """The rules as a policy in force."""
    spec = parse_policy({"rules": list(rules)})
    return AcceptedPolicy.of(spec, kind="GuardPolicy", namespace="lab", name="five", uid="u", generation=1)


def records(count: int, vectors: Sequence[dict[str, Vector]] = ({},)) -> list[MetricRecord]:
    """A calm run's records."""
    noise = random.Random(1)
    return [
        MetricRecord(
            attempt=1,
            step=step,
            window=step - 1,
            samples_seen=step,
            tokens_seen=step,
            time=float(step),
            scalars={"loss": 2 + noise.gauss(0, 0.1), "nonfinite": 0.0, "grad_norm": 1 + noise.random(), "lr": 1e-3},
            vectors=vectors[step % len(vectors)],
        )
        for step in range(1, count + 1)
    ]


def per_record(count: int, act: Callable[[], None]) -> float:
    """Microseconds of processor time for each of `count` records."""
    begun = time.process_time()
    act()
    return (time.process_time() - begun) / count * 1e6


def judging(run: Sequence[MetricRecord], five: AcceptedPolicy) -> float:
    """Microseconds that judging one record of the run takes, from an engine that knows nothing yet."""
    engine = Engine([five], attempt=1)

    def judge() -> None:
        for record in run:
            engine.judge(record, [five])

    return per_record(len(run), judge)


def decoding(run: Sequence[MetricRecord]) -> float:
    """Microseconds that decoding one record of the run takes."""
    wires = [encode_record(record) for record in run]

    def decode() -> None:
        for wire in wires:
            decode_record(wire)

    return per_record(len(run), decode)


def resident() -> float:
    """Megabytes of memory that are this process's own."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def megabytes_of_runs(five: AcceptedPolicy) -> float:
    """What engine and kept records of a thousand runs take."""
    before = resident()
    run = records(RECORDS_OF_A_RUN)
    kept: list[tuple[Engine, History]] = []
    for _ in range(RUNS):
        engine, history = Engine([five], attempt=1), History(Lineage([Attempt(1)]), 1, kept=KEPT_RECORDS)
        for record in run:
            history.append(record)
            engine.take(record)
        kept.append((engine, history))
    return resident() - before


def backtest_seconds(five: AcceptedPolicy) -> float:
    """Processor time to backtest a log of 20,000 steps that is read already."""
    points = [LogPoint.of(one) for one in records(LOG_STEPS)]
    begun = time.process_time()
    judge_log([five], points)
    return time.process_time() - begun


def main() -> None:
    """Measure and keep."""
    five, wide = policy(SCALAR_RULES), policy(VECTOR_RULES)
    values = np.random.default_rng(1)
    vectors = [
        {
            name: Vector((LAYERS, HEADS), values.random(LAYERS * HEADS, np.float32).tobytes())
            for name in ("qk_clip_gamma", "qk_max_logit")
        }
        for _ in range(8)
    ]
    scalar_run, wide_run = records(RECORDS), records(WIDE_RECORDS, vectors)
    judged = tuple(judging(scalar_run, five) for _ in range(ROUNDS))
    decoded = tuple(decoding(scalar_run) for _ in range(ROUNDS))
    judged_wide = tuple(judging(wide_run, wide) for _ in range(ROUNDS))
    write(
        "engine",
        Measurement(
            title="Judgement",
            about=f"The policies' engine alone, in processor time of one core: five rules on scalars; five rules, four "
            f"of them on {LAYERS * HEADS:,} heads; engines and kept records of {RUNS:,} runs.",
            figures=(
                Figure("judging a record by five rules ÷ decoding it", ratios(judged, decoded)),
                Figure("a record by five rules on scalars", judged, "µs", goal=20.0),
                Figure(f"a record by five rules on {LAYERS * HEADS:,} heads", judged_wide, "µs", goal=200.0),
                Figure("backtest of a log of 20,000 steps", tuple(backtest_seconds(five) for _ in range(3)), "s", 1.0),
                Figure(f"memory of {RUNS:,} runs", (megabytes_of_runs(five),), "MB", goal=300.0),
            ),
            notes=("50,000 scalar records a second are 20 µs a record, 5,000 wide ones 200 µs.",),
        ),
    )


if __name__ == "__main__":
    main()
