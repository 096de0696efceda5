"""Two ranks train a mixture of experts with latent attention, some of whose experts get no token from anybody."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import Run
from trimtab_contract.directives import AckState, Action
from trimtab_contract.metrics import MetricRecord

pytestmark = pytest.mark.timeout(900)

EXPERTS, HEADS, LAYERS = 32, 2, 1
MODEL = {
    "width": 32,
    "layers": LAYERS,
    "heads": HEADS,
    "sequence": 32,
    "mlpRatio": 1,
    "activationCheckpointing": True,
    "experts": {"count": EXPERTS, "topK": 1, "capacityFactor": 8.0},
    "attention": {
        "kind": "latent",
        "keyValueRank": 12,
        "contentDimension": 8,
        "rotaryDimension": 4,
        "valueDimension": 8,
        "window": 20,
    },
}


@pytest.fixture
def run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[Run]:
    """A run that saves every third step; the logs are printed at the end."""
    config = {
        "steps": 6,
        "model": MODEL,
        "gradientAccumulationSteps": 2,
        "optimizer": {"qkClipThreshold": 0.02},
        "telemetry": {"every": 2, "stateSeconds": 0.5, "pollSeconds": 0.02, "archiveSeconds": 0.5},
    }
    run = Run(redis_server, object_store, tmp_path, object_store.new_bucket(), config, checkpoint_every=3)
    yield run
    print("\n".join(f"{ack.state}: {ack.reason} {ack.detail}" for ack in run.acks() if ack.detail))
    for log in sorted(tmp_path.glob("log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def numbers(record: MetricRecord) -> dict[str, object]:
    """All that does not depend on time."""
    scalars = {
        name: value for name, value in record.scalars.items() if name not in {"step_seconds", "tokens_per_second"}
    }
    # Which heads are measured closely depends on where an attempt began.
    vectors = {name: vector for name, vector in record.vectors.items() if not name.startswith("qk_max")}
    return {**scalars, **vectors}


def test_idle_experts_hang_nothing_and_a_restored_run_repeats_its_numbers(run: Run) -> None:
    with run.world():
        run.direct(Action.RUN)
        run.ack(AckState.FINISHED)
    target = run.saved(3)
    with run.world(2):
        hold = run.direct(Action.HOLD, world=2, attempt=2, restore=target)
        assert run.ack(AckState.RESTORED, hold).step == 3
        run.direct(Action.RUN, world=2, attempt=2, restore=target)
        run.ack(AckState.FINISHED, world=2)
    first, again = run.records(1), run.records(2)
    assert [numbers(again[step]) for step in range(4, 7)] == [numbers(first[step]) for step in range(4, 7)]
    for step, record in first.items():
        load = record.vectors["expert_load"]
        assert load.shape == (LAYERS, EXPERTS)
        assert sum(load.values()) == pytest.approx(LAYERS * EXPERTS, rel=1e-5)
        # The text has 26 letters, which in the first layer choose an expert each.
        assert record.scalars["dead_experts"] == sum(value == 0 for value in load.values()) >= 6
        assert 0.5 < record.scalars["router_entropy"] <= 1.0
        assert record.vectors["layer_router_entropy"].values() == pytest.approx([record.scalars["router_entropy"]])
        # An expert has room for 8 of a window's 32 tokens, and a letter that comes more often is rare.
        assert 0 <= record.vectors["dropped_tokens"].values()[0] < 0.2
        assert record.scalars["z_loss"] > 0
        assert record.vectors["qk_clip_gamma"].shape == (LAYERS, HEADS)
        if step <= 2 or step % 2 == 0:
            assert record.vectors["qk_max_logit"].shape == (LAYERS, HEADS)
    assert any(min(record.vectors["qk_clip_gamma"].values()) < 1 for record in first.values())
    assert first[5].scalars["replica_mismatch"] == 0.0
