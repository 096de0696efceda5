"""Real worlds of one, two and four processes that go on from each other's checkpoints.

We test that restoring is exact: in a world of as many ranks every later loss is the same bit for bit, however often one
goes back; in a world of another size the same samples are trained, and the losses agree as far as sums may differ.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_story import Story, far_apart, later
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import Run
from trimtab_contract.directives import AckState, Action, CheckpointReference

pytestmark = pytest.mark.timeout(600)

STEPS = 22
EVERY = 5
CONFIG: dict[str, Any] = {
    "steps": STEPS,
    "model": {"width": 32, "layers": 2, "heads": 2, "sequence": 32, "dropout": 0.1},
    "data": {"order": "shuffled", "seed": 5},
    # All that a step can keep for the next one: the loss scale doubles every few steps, and halves when it is too much.
    "precision": "float16",
    "lossScale": {"initial": 65536, "growthInterval": 4},
    "gradientAccumulationSteps": 2,
    "gradientClip": 0.5,
}
TOLERANCE = 2e-4
"""How far losses of worlds of different sizes lie apart at most, relative: they add up in another order."""


@pytest.fixture
def run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[Run]:
    yield Run(redis_server, object_store, tmp_path, object_store.new_bucket(), CONFIG, checkpoint_every=EVERY)
    for log in sorted(tmp_path.glob("log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def test_worlds_of_one_two_and_four_ranks_go_on_from_each_others_checkpoints(run: Run) -> None:
    story = Story(run, STEPS)
    begun: dict[int, int] = {}
    whole: dict[int, dict[str, float]] = {}
    handed_on: CheckpointReference | None = None
    for ranks in (2, 1, 4):
        story.number = begun[ranks] = story.attempt + 1
        with run.world(story.number, ranks=ranks) as world:
            run.ack(AckState.WAITING, world=story.number)

            # From the start, or from the checkpoint of a world of another size.
            first = story.train(handed_on)
            whole = whole or first
            assert far_apart(first, whole) < TOLERANCE
            assert min(one["clip_ratio"] for one in whole.values()) < 1
            assert len({one["loss_scale"] for one in whole.values()}) > 1

            # Back twice within one epoch, then back and around some windows, and back again as if nothing had been.
            early = run.saved(min(first) - 1 + EVERY, story.attempt)
            assert story.train(early) == later(first, early.step)
            late = run.saved(early.step + EVERY, story.attempt)
            assert story.train(late) == later(first, late.step)
            around = story.train(early, skip=((early.step + 1, early.step + 2),))
            assert around[early.step + 1] == first[early.step + 1]
            assert around[early.step + 2] != first[early.step + 2]
            assert story.train(early) == later(first, early.step)

            run.direct(Action.FINISH, world=story.number, attempt=story.attempt, restore=early)
            assert world.ended() == [0] * ranks
            # Worlds of different sizes add up differently: what is equal above is equal because restores are exact.
            assert handed_on is None or first != later(whole, handed_on.step)
            handed_on = early
    sizes = {manifest.attempt: manifest.world_size for manifest in run.manifests()}
    assert {begun[ranks]: ranks for ranks in begun}.items() <= sizes.items()
    for ranks in (1, 4):
        for look in (story.windows, story.contents):
            seen, expected = look(begun[ranks]), look(begun[2])
            assert {step: found for step, found in expected.items() if step in seen} == seen
