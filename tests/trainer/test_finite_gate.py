"""A step that is not finite changes nothing but what was damaged already.

The real loop, model, optimizer and reduction in one process; only the session is scripted, so that every tensor can be
compared before and after.
"""

import socket
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from trimtab_trainer.batches import Batch
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.config import DataConfig, TrainerConfig
from trimtab_trainer.faults import flip_bit
from trimtab_trainer.loop import Trainee, train
from trimtab_trainer.model import TransformerConfig
from trimtab_trainer.replicas import MOST_NAMED, nonfinite_tensors
from trimtab_trainer.session import Gate, Session

QUERY, KEY, HEAD, MLP = (
    "blocks.0.attention.query.weight",
    "blocks.0.attention.key.weight",
    "head.weight",
    "blocks.1.down.weight",
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch, socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
        chosen.close()
        for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
            patch.setenv(name, str(value))
        yield World(60.0)
        dist.destroy_process_group()


class ScriptedSession:
    """Hands out batches, withholds what is not finite, and does something to the model before the second one."""

    def __init__(self, trainee: Trainee, damage: Any) -> None:
        self.trainee, self.damage = trainee, damage
        self.bad: list[str | None] = []
        self.scalars: list[dict[str, float]] = []
        self.before: dict[str, Any] = {}

    def batches(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(5)
        for step in (1, 2):
            samples = torch.randint(0, 256, (4, 33), generator=generator)
            if step == 2:
                self.damage(dict(self.trainee.named_parameters()))
                self.before = snapshot(self.trainee)
            yield Batch(1, step, step - 1, samples[:, :-1], samples[:, 1:], torch.arange(4), None)

    def gate(self, bad: str | None) -> Gate:
        self.bad.append(bad)
        return Gate.UPDATE if bad is None else Gate.WITHHOLD

    def report(self, scalars: Mapping[str, float], vectors: Mapping[str, Tensor]) -> None:
        assert all(vector.shape == (2, 2) for vector in vectors.values())
        self.scalars.append(dict(scalars))


def snapshot(trainee: Trainee) -> dict[str, Any]:
    flat = TrainingState(trainee.model, trainee.optimizer).flat()
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in flat.items()}


def train_two_steps(world: World, damage: Any) -> ScriptedSession:
    config = TrainerConfig(
        data=DataConfig(path="unused"),
        steps=100,
        global_batch=4,
        model=TransformerConfig(width=32, layers=2, heads=2, sequence=32),
    )
    trainee = Trainee(config)
    session = ScriptedSession(trainee, damage)
    train(cast("Session", session), trainee, world)
    return session


@pytest.mark.parametrize(
    ("name", "culprit"), [(QUERY, "attention logits of layer 0"), (KEY, "attention logits of layer 0"), (HEAD, "")]
)
def test_a_flipped_exponent_bit_is_withheld_and_reaches_no_other_weight_and_no_moment(
    world: World, name: str, culprit: str
) -> None:
    session = train_two_steps(world, lambda parameters: flip_bit(parameters[name], 7, 30))
    assert session.bad[0] is None
    assert session.bad[1] is not None
    assert session.bad[1].startswith(culprit)
    assert session.scalars[1]["skipped_update"] == 1
    assert session.scalars[1]["nonfinite"] > 0
    after = snapshot(session.trainee)
    for key, value in session.before.items():
        assert torch.equal(after[key], value) if isinstance(value, Tensor) else after[key] == value, key
        if isinstance(value, Tensor) and key != f"model.{name}":
            assert bool(value.isfinite().all()), key
    assert after["optimizer.count"] == 1


def test_a_flipped_mlp_bit_passes_the_gate_so_only_replicas_can_tell(world: World) -> None:
    session = train_two_steps(world, lambda parameters: flip_bit(parameters[MLP], 7, 30))
    assert session.bad == [None, None]
    assert session.scalars[1]["nonfinite"] == 0


def test_an_undisturbed_step_updates_every_parameter(world: World) -> None:
    session = train_two_steps(world, lambda _: None)
    after = snapshot(session.trainee)
    unchanged = [
        key for key, value in session.before.items() if key.startswith("model.") and torch.equal(after[key], value)
    ]
    assert unchanged == []
    assert session.scalars[1]["skipped_update"] == 0
    assert session.scalars[1]["update_rms"] > 0


def test_a_state_that_is_broken_all_over_is_told_in_few_words(world: World) -> None:
    """An acknowledgement that grew with the model would be dropped as no trainer's, and the run never held."""

    def ruin(named: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for parameter in named.values():
                parameter.fill_(float("nan"))

    trainee = train_two_steps(world, ruin).trainee
    (told,) = nonfinite_tensors(TrainingState(trainee.model, trainee.optimizer), world)
    assert len(dict(trainee.named_parameters())) > MOST_NAMED
    assert told.count(", ") == MOST_NAMED
    assert told.endswith(" more tensors")
