"""A step that is not finite changes nothing but what was damaged already.

The real loop in one process, with a scripted session, so that every tensor can be compared before and after.
"""

from collections.abc import Iterator

import pytest
import torch
from scripted_session import lone_world, snapshot, train_steps
from torch import Tensor
from trimtab_trainer.checkpointing import TrainingState
from trimtab_trainer.collectives import World
from trimtab_trainer.faults import flip_bit
from trimtab_trainer.replicas import MOST_NAMED, nonfinite_tensors

QUERY, KEY, HEAD, MLP = (
    "blocks.0.attention.query.weight",
    "blocks.0.attention.key.weight",
    "head.weight",
    "blocks.1.down.weight",
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with lone_world() as joined:
        yield joined


@pytest.mark.parametrize(
    ("name", "culprit"), [(QUERY, "attention logits of layer 0"), (KEY, "attention logits of layer 0"), (HEAD, "")]
)
def test_a_flipped_exponent_bit_is_withheld_and_reaches_no_other_weight_and_no_moment(
    world: World, name: str, culprit: str
) -> None:
    session = train_steps(world, lambda parameters: flip_bit(parameters[name], 7, 30))
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
    session = train_steps(world, lambda parameters: flip_bit(parameters[MLP], 7, 30))
    assert session.bad == [None, None]
    assert session.scalars[1]["nonfinite"] == 0


def test_an_undisturbed_step_updates_every_parameter(world: World) -> None:
    session = train_steps(world, lambda _: None)
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

    trainee = train_steps(world, ruin).trainee
    (told,) = nonfinite_tensors(TrainingState(trainee.model, trainee.optimizer), world)
    assert len(dict(trainee.named_parameters())) > MOST_NAMED
    assert told.count(", ") == MOST_NAMED
    assert told.endswith(" more tensors")
