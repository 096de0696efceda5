"""Worlds of the reference trainer whose ranks compute on a device that is none, with real Redis and S3."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from object_store_fixture import ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import TINY, Run, until
from trimtab_contract.directives import AckState, Action, Reason

pytestmark = pytest.mark.timeout(600)

MakeRun = Callable[..., Run]
SOURCES = Path(__file__).parents[2]
PATHS = os.pathsep.join(str(SOURCES / folder) for folder in ("contract", "trainer_image", "tests"))


@pytest.fixture
def make_run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[MakeRun]:
    """Make a run of ranks on the device; the end of every pod's log is printed, for pytest to show."""

    def make(name: str, config: dict[str, Any], **settings: Any) -> Run:
        folder = tmp_path / name
        folder.mkdir()
        return Run(
            redis_server,
            object_store,
            folder,
            object_store.new_bucket(),
            {**config, "telemetry": {**TINY["telemetry"], "exactMaxLogits": True, "healthEvery": 5}},
            program="device_trainer",
            **settings,
        )

    yield make
    for log in sorted(tmp_path.glob("*/log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def on_device(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": PATHS, **more}


def test_a_world_on_a_device_saves_is_rolled_back_and_trains_as_one_on_the_cpu_does(make_run: MakeRun) -> None:
    config = {
        "steps": 14,
        "gradientAccumulationSteps": 2,
        "model": {**TINY["model"], "dropout": 0.1, "experts": {"count": 2}},
        "faults": [
            {"attempt": 1, "step": 9, "rank": 1, "kind": "flipBit", "tensor": "blocks.0.attention.query.weight"}
        ],
    }
    run = make_run("device", config, variables=on_device())
    with run.world() as world:
        run.direct(Action.RUN)
        target = run.saved(5)
        hold = run.direct(Action.HOLD)
        held = run.ack(AckState.HOLDING, hold)
        restored = run.ack(AckState.RESTORED, run.direct(Action.HOLD, attempt=2, restore=target))
        assert restored.step == 5
        run.direct(Action.RUN, attempt=2, restore=target)
        run.ack(AckState.FINISHED, attempt=2)
        verified = run.ack(AckState.VERIFIED, checkpoint=run.saved(14, 2))
        assert verified.by not in {"", "self"}
        run.direct(Action.FINISH, attempt=2, restore=target)
        assert world.ended() == [0, 0]
    assert run.message(0).reason is Reason.FINISHED
    before, again = run.records(1), run.records(2)
    assert set(again) == set(range(6, 15))
    for step in range(6, min(held.step, 8) + 1):
        assert again[step].vectors == before[step].vectors
        assert again[step].scalars["loss"] == before[step].scalars["loss"]
    assert all("standin" in one for manifest in run.manifests() for one in manifest.evaluation.processors)

    other = make_run("cpu", {**config, "faults": []}, variables=on_device(DEVICE="cpu"))
    with other.world() as world:
        other.direct(Action.RUN)
        other.ack(AckState.FINISHED)
        other.direct(Action.FINISH)
        assert world.ended() == [0, 0]
    on_cpu = other.records(1)
    for step in range(1, 15):
        ours, theirs = (again if step > 5 else before)[step].scalars, on_cpu[step].scalars
        for name in ("loss", "loss_max", "grad_norm", "update_rms"):
            assert ours[name] == pytest.approx(theirs[name], rel=2e-3), (step, name)


def test_ranks_that_have_no_device_of_their_own_say_what_to_set(make_run: MakeRun) -> None:
    wanted = make_run("wanted", {"steps": 6, "device": "accelerator"}, variables=on_device(DEVICE="none"))
    crowded = make_run("crowded", {"steps": 6}, variables=on_device(LOCAL_WORLD_SIZE="2"))
    for run, said in ((wanted, "device: accelerator, and PyTorch sees none here"), (crowded, "device: the node has 1")):
        with run.world() as world:
            assert until("the end of rank 1", world.pods[1].poll)
        message = run.message(1)
        assert message.reason is Reason.BAD_CONFIG
        assert said in message.detail, message.detail
