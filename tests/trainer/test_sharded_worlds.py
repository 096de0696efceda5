"""Real worlds that go on from each other's checkpoints, whether every rank has the whole state or a part of it.

We test that it makes no difference for what is trained: the samples are the same, the losses agree as far as sums may
differ, and a world restores its own checkpoints bit for bit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_story import EXACT, Steps, Story, far_apart, later
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import Run
from trimtab_contract.directives import AckState, Action, CheckpointReference

pytestmark = pytest.mark.timeout(1200)

STEPS, EVERY = 15, 3
CONFIG: dict[str, Any] = {
    "steps": STEPS,
    "model": {"width": 36, "layers": 2, "heads": 3, "sequence": 32, "dropout": 0.1, "bias": True},
    "data": {"order": "shuffled", "seed": 5},
    "precision": "float16",
    "lossScale": {"initial": 65536, "growthInterval": 4},
    "gradientAccumulationSteps": 2,
    "gradientClip": 0.5,
    "optimizer": {"qkClipThreshold": 0.02},
}
TOLERANCE = 1e-3
"""How far losses may lie apart at most, relative: sums over the ranks are added up in another order."""

ROUTED = ("router_entropy", "z_loss", "dead_experts")


def new_run(redis: RedisServer, store: ObjectStoreServer, folder: Path, config: dict[str, Any]) -> Run:
    return Run(redis, store, folder, store.new_bucket(), config, checkpoint_every=EVERY, progress_deadline=300)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[None]:
    """What the worlds have printed, if a test fails."""
    yield
    for log in sorted(tmp_path.glob("log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


@pytest.mark.usefixtures("logs")
def test_a_run_goes_from_replicas_to_shards_and_back_and_trains_what_it_would_have_trained(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    run = new_run(redis_server, object_store, tmp_path, CONFIG)
    story = Story(run, STEPS)
    whole: Steps = {}
    handed_on: CheckpointReference | None = None
    for ranks, parallelism in ((4, "replicated"), (2, "sharded"), (1, "replicated"), (2, "sharded")):
        run.config["parallelism"] = parallelism
        story.number = begun = story.attempt + 1
        with run.world(story.number, ranks=ranks) as world:
            run.ack(AckState.WAITING, world=story.number)
            first = story.train(handed_on)
            whole = whole or first
            assert far_apart(first, whole) < TOLERANCE
            for look in (story.windows, story.contents):
                seen, expected = look(begun), look(1)
                assert {step: found for step, found in expected.items() if step in seen} == seen

            # Back in place, to a checkpoint that this very world has saved.
            own = run.saved(min(first) - 1 + EVERY, begun)
            assert story.train(own) == later(first, own.step)
            run.direct(Action.FINISH, world=story.number, attempt=story.attempt, restore=own)
            assert world.ended() == [0] * ranks
        # Other worlds add up differently: what is equal above is equal because restores are exact.
        assert handed_on is None or first != later(whole, handed_on.step)
        handed_on = own
    assert min(one["clip_ratio"] for one in whole.values()) < 1
    sizes = {manifest.attempt: manifest.world_size for manifest in run.manifests()}
    assert [sizes[attempt] for attempt in (1, 3, 5, 7)] == [4, 2, 1, 2]


@pytest.mark.usefixtures("logs")
def test_a_mixture_of_experts_in_shards_routes_and_trains_as_replicas_do(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    """Some experts get no token from a rank, or from none: their gradients are zero, and nothing waits for them."""
    experts = {"count": 16, "topK": 2, "capacityFactor": 4.0, "zLoss": 0.01, "balanceLoss": 0.05}
    model = {"width": 32, "layers": 2, "heads": 2, "sequence": 32, "mlpRatio": 1, "experts": experts}
    groups = [
        {"pattern": "*.router.weight", "learningRateScale": 0.1, "gradientClip": 0.01},
        {"pattern": "*.experts.*", "learningRateScale": 0.5, "gradientClip": 0.1},
    ]
    config = {"steps": 2 * EVERY, "model": model, "gradientClip": 0.5, "optimizer": {"groups": groups}}
    run = new_run(redis_server, object_store, tmp_path, config)
    story = Story(run, 2 * EVERY, (*(name for name in EXACT if name != "loss_scale"), *ROUTED))

    with run.world(ranks=2) as world:
        story.number = 1
        run.ack(AckState.WAITING, world=1)
        replicas = story.train()
        of_replicas = run.saved(EVERY, 1)
        run.direct(Action.FINISH)
        assert world.ended() == [0, 0]
    run.config["parallelism"] = "sharded"
    with run.world(2, ranks=2) as world:
        story.number = 2
        run.ack(AckState.WAITING, world=2)
        shards = story.train()
        own = run.saved(EVERY, 2)
        assert story.train(own) == later(shards, EVERY)
        again = story.train(of_replicas)
        run.direct(Action.FINISH, world=2, attempt=4, restore=of_replicas)
        assert world.ended() == [0, 0]

    for name in ("loss", "loss_max", "grad_norm", "z_loss", "router_entropy"):
        assert far_apart(shards, replicas, name) < TOLERANCE, name
        assert far_apart(again, replicas, name) < TOLERANCE, name
    for attempt in (2, 4):
        for step, record in run.records(attempt).items():
            expected = run.records(1)[step]
            assert record.scalars["dead_experts"] == expected.scalars["dead_experts"]
            for name in ("expert_load", "dropped_tokens", "qk_clip_gamma"):
                assert record.vectors[name].values() == pytest.approx(expected.vectors[name].values(), abs=5e-3), name
            for name in ("group_grad_norm", "group_clip_ratio"):
                assert record.vectors[name].values() == pytest.approx(expected.vectors[name].values(), rel=0.01), name
                assert record.vectors[name].shape == (len(groups),)
            assert min(record.vectors["group_clip_ratio"].values()) < 1
    assert any(min(record.vectors["expert_load"].values()) == 0 for record in run.records(1).values())
