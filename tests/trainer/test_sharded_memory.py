"""Whole parameters of a sharded model: only on the host, and given back one group after the other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_ranks import config
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from trimtab_trainer import sharding
from trimtab_trainer.collectives import GroupPeers
from trimtab_trainer.config import FaultConfig
from trimtab_trainer.faults import FaultInjector
from trimtab_trainer.loop import Trainee


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[GroupPeers]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield GroupPeers()
    dist.destroy_process_group()


def test_what_is_sharded_is_built_on_the_host_and_what_is_not_on_the_device() -> None:
    device = torch.device("meta")
    assert {one.device.type for _, one in Trainee(config("sharded"), device).named_parameters()} == {"cpu"}
    assert {one.device.type for _, one in Trainee(config("replicated"), device).named_parameters()} == {"meta"}


def test_nobody_keeps_a_whole_parameter_that_was_sharded(alone: GroupPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    trainee = Trainee(replace(config("sharded"), faults=(FaultConfig(attempt=1, step=2, rank=0, kind="exit"),)))
    faults = FaultInjector(trainee.config.faults, 0, dict(trainee.named_parameters()))
    whole = [[StorageWeakRef(one.untyped_storage()) for one in block.parameters()] for block in trainee.model.blocks]
    kept: list[int] = []
    real = sharding.fully_shard

    def counted(module: nn.Module, **settings: Any) -> None:
        kept.append(sum(not one.expired() for block in whole for one in block))
        real(module, **settings)

    monkeypatch.setattr(sharding, "fully_shard", counted)
    trainee.join(alone)  # pyright: ignore[reportArgumentType] all that it is asked for
    first, second = map(len, whole)
    assert kept == [first + second, second, 0]
    faults.before_forward(1, 1)
