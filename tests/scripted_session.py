"""The real loop, model, optimizer and reduction in this process; only the session is scripted.

So every tensor can be compared before and after a step, and anything can be done to the model between two steps.
"""

import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from trimtab_trainer.batches import Batch
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import DataConfig, TrainerConfig
from trimtab_trainer.loop import Trainee, train
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.session import Gate, Session

Damage = Callable[[dict[str, Tensor]], object]
"""What is done to the parameters, by name."""


@contextmanager
def lone_world() -> Generator[World]:
    """A world of this process."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    with patch.dict("os.environ", place):
        world = World(60.0)
    try:
        yield world
    finally:
        dist.destroy_process_group()


class ScriptedSession:
    """Hands out batches, withholds what is not finite, and does something to the model before the second one."""

    def __init__(self, trainee: Trainee, damage: Damage, steps: int) -> None:
        self.trainee, self.damage, self.steps = trainee, damage, steps
        self.bad: list[str | None] = []
        self.scalars: list[dict[str, float]] = []
        self.vectors: list[dict[str, Tensor]] = []
        self.before: dict[str, Any] = {}
        self.repeated = 0

    def batches(self) -> Iterator[Batch]:
        """The batches of steps 1 to `steps`."""
        generator = torch.Generator().manual_seed(5)
        for step in range(1, self.steps + 1):
            samples = torch.randint(0, 256, (4, 33), generator=generator)
            if step == 2:
                self.damage(dict(self.trainee.named_parameters()))
                self.before = snapshot(self.trainee)
            yield Batch(1, step, step - 1, samples[:, :-1], samples[:, 1:], torch.arange(4), None)

    def gate(self, bad: str | None, _loss: Tensor | None = None) -> Gate:
        """Let an update pass unless something is not finite."""
        self.bad.append(bad)
        return Gate.UPDATE if bad is None else Gate.WITHHOLD

    def progress(self) -> None:
        """Count how often a step was computed once more."""
        self.repeated += 1

    def report(self, scalars: Mapping[str, float], vectors: Mapping[str, Tensor]) -> None:
        """Keep the record."""
        assert all(vector.shape in {(2, 2), (2,)} for vector in vectors.values())
        self.scalars.append(dict(scalars))
        self.vectors.append(dict(vectors))


def snapshot(trainee: Trainee) -> dict[str, Any]:
    """A copy of the whole state."""
    flat = TrainingState(trainee.model, trainee.optimizer, trainee.scaler).flat()
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in flat.items()}


def train_steps(world: World, damage: Damage, steps: int = 2, **changes: Any) -> ScriptedSession:
    """Train a small model; `changes` are those of its configuration."""
    config = TrainerConfig(
        data=DataConfig(path="unused"),
        steps=100,
        global_batch=4,
        model=TransformerConfig(width=32, layers=2, heads=2, sequence=32),
        **changes,
    )
    trainee = Trainee(config)
    session = ScriptedSession(trainee, damage, steps)
    train(cast("Session", session), trainee, world)
    return session
