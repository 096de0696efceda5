"""Rules on what the trainer tells of weights and optimizer in one record of twenty."""

import random

from judged_runs import accepted, judged, record, states
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.explanation import explain

EVERY = 20
LAYERS = 4


def told(count: int, largest: dict[int, float]) -> list[MetricRecord]:
    """`count` records, of which one in `EVERY` has norms near 30 but for what layer 2 has at the steps given."""
    noise = random.Random(5)
    found: list[MetricRecord] = []
    for step in range(1, count + 1):
        if step % EVERY:
            found.append(record(step, loss=2.0))
            continue
        value = largest.get(step, 30.0 + noise.gauss(0, 0.2))
        norms = Vector.pack((LAYERS,), [value if layer == 2 else 10.0 for layer in range(LAYERS)])
        found.append(record(step, spectral_norm=value, vectors={"layer_spectral_norm": norms}))
    return found


def test_a_range_on_a_spectral_norm_fires_in_the_record_that_has_it() -> None:
    rule = accepted({"metric": "spectral_norm", "range": {"max": 100}})
    verdicts = judged(rule, told(100, {60: 400.0}))
    assert states(verdicts)[EVERY - 1 :: EVERY] == "HHFHH"
    assert set(states(verdicts)[:19]) == {"N"}


def test_records_in_between_do_not_break_a_streak() -> None:
    rule = accepted({"metric": "spectral_norm", "range": {"max": 100}, "forRecords": 2})
    assert states(judged(rule, told(100, {60: 400.0, 80: 400.0})))[EVERY - 1 :: EVERY] == "HHPFH"


def test_a_spike_is_judged_against_the_records_that_have_the_metric() -> None:
    baseline = {"records": 10, "minRecords": 8, "maxFreeze": 5}
    rule = accepted(
        {"metric": "layer_spectral_norm", "reduce": {"max": True}, "spike": {"baseline": baseline, "sigma": 6}}
    )
    records = told(600, {500: 60.0})
    verdicts = judged(rule, records)
    seen = states(verdicts)[EVERY - 1 :: EVERY]
    assert seen[8:] == "H" * 16 + "F" + "H" * 5
    assert "layer 2" in explain(verdicts[499])


def test_the_gradient_of_one_group_is_judged_apart_and_the_group_is_named() -> None:
    baseline = {"statistic": "Mean", "records": 100, "minRecords": 50, "maxFreeze": 100}
    rule = accepted({"metric": "group_grad_norm", "reduce": {"max": True}, "spike": {"baseline": baseline, "sigma": 6}})
    noise = random.Random(5)
    norms = [[0.2 + noise.gauss(0, 0.01), 0.1] for _ in range(100)]
    norms[90][1] = 4.0
    records = [
        record(step, loss=2.0, grad_norm=0.5, vectors={"group_grad_norm": Vector.pack((2,), pair)})
        for step, pair in enumerate(norms, start=1)
    ]
    verdicts = judged(rule, records)
    assert states(verdicts)[85:] == "HHHHHF" + "H" * 9
    assert "group 1" in explain(verdicts[90])
