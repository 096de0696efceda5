"""Ranks of a sharded world as real processes: gloo, a shared coordination store, real S3.

Started by `torch.multiprocessing`; each leaves what it saw in `<folder>/<rank>.json`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from checkpoint_ranks import EVALUATION, FAST, RUN
from rank_exits import leave
from scripted_session import ScriptedSession
from torch import Tensor
from torch.distributed.tensor import DTensor
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.batches import Batch
from trimtab_trainer.checkpointing import Checkpointer, Saved, TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import DataConfig, TelemetryConfig, TrainerConfig
from trimtab_trainer.loop import Trainee, train
from trimtab_trainer.model import AttentionConfig, TransformerConfig
from trimtab_trainer.optim import MuonClipConfig
from trimtab_trainer.session import Session
from trimtab_trainer.sharding import Parallelism
from trimtab_trainer.tensors import floats

STEPS = 3


def config(parallelism: Parallelism, seed: int = 3) -> TrainerConfig:
    """A model with rows that no two ranks share alike, and logits that QK-Clip must shrink."""
    return TrainerConfig(
        data=DataConfig(path="unused"),
        steps=100,
        global_batch=6,
        gradient_accumulation_steps=2,
        parallelism=parallelism,
        seed=seed,
        model=TransformerConfig(
            vocab_size=257,
            width=36,
            layers=2,
            heads=2,
            sequence=32,
            dropout=0.1,
            bias=True,
            # Fewer rows than ranks: one of them has nothing of it.
            attention=AttentionConfig(sinks=True),
        ),
        optimizer=MuonClipConfig(qk_clip_threshold=0.02),
        telemetry=TelemetryConfig(health_every=2),
    )


class SharingSession(ScriptedSession):
    """Hands each rank its share of the batch."""

    def __init__(self, trainee: Trainee, world: World, first: int = 1) -> None:
        super().__init__(trainee, lambda _: None, 0)
        self.world, self.first = world, first

    def batches(self) -> Iterator[Batch]:
        """The next `STEPS` batches."""
        for step in range(self.first, self.first + STEPS):
            samples = torch.randint(0, 257, (6, 33), generator=torch.Generator().manual_seed(step))
            ids = torch.arange(6) + 6 * step
            share = slice(6 // self.world.size * self.world.rank, 6 // self.world.size * (self.world.rank + 1))
            yield Batch(1, step, step - 1, samples[share, :-1], samples[share, 1:], ids[share], None)

    def report(self, scalars: Any, vectors: Any) -> None:
        """Keep the record."""
        self.scalars.append(dict(scalars))
        self.vectors.append(dict(vectors))


def trainee_of(parallelism: Parallelism, world: World, seed: int = 3) -> Trainee:
    """A new trainee on this rank."""
    made = Trainee(config(parallelism, seed))
    made.join(world)
    return made


def trained(trainee: Trainee, world: World, first: int = 1) -> SharingSession:
    """Train some steps."""
    session = SharingSession(trainee, world, first)
    train(cast("Session", session), trainee, world)
    return session


def state_of(trainee: Trainee) -> TrainingState:
    """What a checkpoint of it holds."""
    return TrainingState(trainee.model, trainee.optimizer, trainee.scaler)


def whole(trainee: Trainee) -> dict[str, Any]:
    """The state with every tensor put together; every rank calls it."""
    flat = state_of(trainee).flat()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in flat.items()}


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether two states are equal bit for bit."""
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) if isinstance(value, Tensor) else value == theirs[name]
        for name, value in ours.items()
    )


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The largest distance between two elements of the same tensor, relative to the tensor's largest one."""
    return max(
        float((value - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-12))
        for name, value in ours.items()
        if isinstance(value, Tensor) and name.startswith("model.")
    )


def story(rank: int, ranks: int, port: int, place: dict[str, str]) -> None:
    """Train sharded and replicated, and restore from each other."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    world = World(120)
    # A checkpointer knows one layout of the state.
    checkpointers = {kind: _checkpointer(world, place, kind) for kind in ("sharded", "replicated")}

    sharded, replicated = trainee_of("sharded", world), trainee_of("replicated", world)
    ours, theirs = trained(sharded, world), trained(replicated, world)
    mine = sum(value.to_local().numel() for value in state_of(sharded).flat().values() if isinstance(value, DTensor))
    report: dict[str, Any] = {
        "share": mine / sum(value.numel() for value in whole(sharded).values() if isinstance(value, Tensor)),
        "apart": apart(whole(sharded), whole(replicated)),
        "scalars": [ours.scalars, theirs.scalars],
        "vectors": [
            [{name: floats(one) for name, one in vectors.items() if "logit" not in name} for vectors in session.vectors]
            for session in (ours, theirs)
        ],
        "clipped": [[float(one["qk_clip_gamma"].min()) for one in session.vectors] for session in (ours, theirs)],
        "windows": [float(loss) for loss in sharded.losses(torch.arange(66).view(2, 33))],
    }

    from_shards = _saved(checkpointers["sharded"], sharded, STEPS)
    from_replicas = _saved(checkpointers["replicated"], replicated, 2 * STEPS)
    copies: dict[str, Any] = {}
    for parallelism in ("sharded", "replicated"):
        for name, reference, original in (("shards", from_shards, sharded), ("replicas", from_replicas, replicated)):
            copy = trainee_of(parallelism, world)
            checkpointers[parallelism].restore(reference, state_of(copy), SkipLedger())
            copies[f"{name} into {parallelism}"] = same(whole(copy), whole(original))
            if name == "shards" and parallelism == "sharded":
                again = trained(copy, world, STEPS + 1).scalars
                copies["and on"] = again == trained(sharded, world, STEPS + 1).scalars and same(
                    whole(copy), whole(sharded)
                )
                checkpointers[parallelism].restore(reference, state_of(sharded), SkipLedger())
    report["restored"] = copies
    report["reference"] = [from_shards.key, from_shards.sha256, from_shards.step]
    if rank == 0:
        torch.save(whole(sharded), Path(place["folder"]) / "whole.pt")
    else:
        whole(sharded)
    (Path(place["folder"]) / f"{rank}.json").write_text(json.dumps(report))
    for checkpointer in checkpointers.values():
        checkpointer.close()
    world.agree([1])
    leave()


def _checkpointer(world: World, place: dict[str, str], kind: str) -> Checkpointer:
    store = ObjectStore(
        place["bucket"],
        endpoint=place["endpoint"],
        access_key=place["access_key"],
        secret_key=place["secret_key"],
    )
    return Checkpointer(
        store,
        root=place["root"],
        run=RUN,
        rank=world.rank,
        world_size=world.size,
        processes_per_node=1,
        host=f"host-{world.rank}",
        exchange=world.gather_text,
        coordination=world.store,
        staging=Path(place["folder"]) / kind,
        on_progress=lambda: None,
        limits=replace(FAST, save_deadline_seconds=300, restore_patience_seconds=60),
    )


def _saved(checkpointer: Checkpointer, trainee: Trainee, step: int) -> CheckpointReference:
    checkpointer.save(
        state_of(trainee),
        step=step,
        attempt=1,
        trigger="Final",
        next_window=step,
        skip=SkipLedger(),
        lr=None,
        learning_rate=0.01,
        evaluation=EVALUATION,
        config_sha256="c" * 64,
        code_sha256="d" * 64,
    )
    assert checkpointer.flush(300)
    return [event.reference for event in checkpointer.events() if isinstance(event, Saved)][-1]
