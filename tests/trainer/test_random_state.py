"""The random numbers of one rank go on where a checkpoint was taken, whoever drew them."""

import random

import msgspec
import numpy as np
import pytest
import torch
from trimtab_trainer.checkpointing.random_state import RankState, rank_state, restore_rank_state


def drawn() -> list[float]:
    return [random.random(), random.gauss(), float(np.random.rand()), float(np.random.randn()), torch.rand(1).item()]


def test_every_generator_goes_on_where_it_was() -> None:
    drawn()  # one of two normal numbers waits for the next call
    kept = rank_state()
    first = drawn()
    assert drawn() != first
    restore_rank_state(kept)
    assert drawn() == first


def test_a_checkpoint_of_an_older_version_leaves_the_others_as_they_are() -> None:
    older = msgspec.structs.replace(msgspec.json.decode(rank_state(), type=RankState), numpy=None, python=None)
    random.seed(5)
    expected = random.Random(5).random()
    restore_rank_state(msgspec.json.encode(older))
    assert random.random() == expected


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        restore_rank_state(b'{"torch_cpu": 3}')


@pytest.mark.parametrize("in_use", [True, False])
def test_a_device_that_nothing_was_computed_on_is_left_alone(in_use: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.ones(16, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", asked.append)
    restore_rank_state(rank_state())
    assert len(asked) == in_use
