"""Ranks of a replicated world as real processes that divide Newton-Schulz work through gloo.

Started by `torch.multiprocessing`; each leaves what it saw in `<folder>/<rank>.json`.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sharded_ranks import config, same, trained, whole
from trimtab_trainer.collectives import World
from trimtab_trainer.errors import PeerLost
from trimtab_trainer.loop import Trainee
from trimtab_trainer.optim.config import ComputeType, NewtonSchulzMode


def trainee_of(mode: NewtonSchulzMode, dtype: ComputeType, world: World) -> Trainee:
    """A new trainee on this rank."""
    usual = config("replicated")
    settings = replace(usual.optimizer, newton_schulz_mode=mode, newton_schulz_dtype=dtype)
    made = Trainee(replace(usual, optimizer=settings))
    made.join(world)
    return made


def story(rank: int, ranks: int, port: int, folder: str) -> None:
    """Train divided and duplicated; then the last rank dies, and the others want to make another step."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    world = World(120)
    report: dict[str, Any] = {}
    trainee: Trainee | None = None
    for dtype in ("float32", "bfloat16"):
        duplicated, trainee = (trainee_of(mode, dtype, world) for mode in ("duplicated", "distributed"))
        theirs, ours = (trained(each, world) for each in (duplicated, trainee))
        report[dtype] = {
            "bits": same(whole(trainee), whole(duplicated)),
            "scalars": [ours.scalars, theirs.scalars],
        }
    assert trainee is not None
    world.agree([1])
    if rank == ranks - 1:
        _leave(report, rank, folder)
    model = trainee.config.model
    try:
        trainee.optimizer.step(torch.zeros(model.layers, model.heads))
    except PeerLost as error:
        report["ended by"] = str(error)
    _leave(report, rank, folder)


def _leave(report: dict[str, Any], rank: int, folder: str) -> None:
    (Path(folder) / f"{rank}.json").write_text(json.dumps(report))
    # Nothing is closed in order, as when a machine is lost.
    os._exit(0)
