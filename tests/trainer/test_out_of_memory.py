"""Who runs out of memory is told what to lower, and what is advised helps; every refusal is the allocator's own."""

import resource
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from scripted_session import ScriptedSession, lone_world
from trimtab_contract.keys import RunId
from trimtab_trainer.assembly import prepare
from trimtab_trainer.batches import Batch
from trimtab_trainer.collectives import GroupPeers, World
from trimtab_trainer.config import DataConfig, Environment, TrainerConfig
from trimtab_trainer.errors import OutOfMemory, PeerLost
from trimtab_trainer.loop import Trainee, train
from trimtab_trainer.memory import for_building, for_training, saying_what_to_lower
from trimtab_trainer.model import ExpertsConfig, TransformerConfig
from trimtab_trainer.session import Session

MORE_THAN_THERE_IS = 1 << 45
SAMPLES = 128
BULKY = TransformerConfig(width=8, layers=1, heads=1, sequence=32, vocab_size=1 << 16)
"""A gibibyte of logits where all samples are computed at once."""

ROOM_BYTES = 512 << 20


ENVIRONMENT = Environment(
    run=RunId("lab", "large", "uid-1"),
    world=1,
    rank=0,
    world_size=1,
    processes_per_node=1,
    hostname="host",
    redis_url="",
    redis_username="",
    redis_password="",
    checkpoint_bucket="bucket",
    checkpoint_root="runs",
    s3_endpoint="",
    checkpoint_every=1,
    progress_deadline=1.0,
)
"""Nothing of it is reached before the model is built."""


class OneStep(ScriptedSession):
    """Hands out one batch of many samples."""

    def batches(self) -> Iterator[Batch]:
        """The batch of step 1."""
        samples = torch.randint(0, 256, (SAMPLES, 33), generator=torch.Generator().manual_seed(5))
        yield Batch(1, 1, 0, samples[:, :-1], samples[:, 1:], torch.arange(SAMPLES), None)

    def report(self, scalars: Any, vectors: Any) -> None:
        """Keep the record."""
        self.scalars.append(dict(scalars))


@contextmanager
def little_memory() -> Generator[None]:
    """What this process asks for beyond what it has and half a gibibyte is refused."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def train_one_step(world: World, micro_batches: int) -> OneStep:
    """One step of the real loop."""
    trainee = Trainee(config(global_batch=SAMPLES, model=BULKY, gradient_accumulation_steps=micro_batches))
    session = OneStep(trainee, lambda _parameters: None, 1)
    train(cast("Session", session), trainee, world)
    return session


def config(**changes: Any) -> TrainerConfig:
    defaults: dict[str, Any] = {"global_batch": 8, "model": TransformerConfig()}
    return TrainerConfig(steps=100, data=DataConfig(path="unused"), **{**defaults, **changes})


def test_a_step_without_memory_says_what_to_lower_and_is_done_when_it_is_lowered() -> None:
    advice = r"can't allocate memory.*; to need less, raise gradientAccumulationSteps \(now 1\) to a larger"
    with lone_world() as world, little_memory():
        with pytest.raises(OutOfMemory, match=advice) as raised:
            train_one_step(world, 1)
        assert isinstance(raised.value.__cause__, RuntimeError)
        del raised
        assert train_one_step(world, 32).scalars


def test_a_model_that_is_too_large_says_what_makes_it_smaller() -> None:
    enormous = config(model=TransformerConfig(vocab_size=MORE_THAN_THERE_IS))
    with pytest.raises(OutOfMemory, match=rf"lower model\.width .* or model\.vocabSize \({MORE_THAN_THERE_IS}\)"):
        prepare(ENVIRONMENT, enormous, "")


@pytest.mark.parametrize("changed", [{"count": MORE_THAN_THERE_IS, "mlp_ratio": 3}, {"mlp_ratio": MORE_THAN_THERE_IS}])
def test_experts_that_are_too_many_or_too_wide_are_named(changed: dict[str, int]) -> None:
    experts = ExpertsConfig(**{"count": 4, **changed})
    named = rf"lower model\.experts\.count \(now {experts.count}\), model\.experts\.mlpRatio \({experts.mlp_ratio}\), "
    with pytest.raises(OutOfMemory, match=named + r"model\.width \(128\), .* or model\.vocabSize \(256\)"):
        prepare(ENVIRONMENT, config(model=TransformerConfig(experts=experts)), "")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_memory_that_a_gpu_or_python_has_not_is_the_same_error(error: Exception) -> None:
    with pytest.raises(OutOfMemory, match="to need less, lower the number"), saying_what_to_lower("lower the number"):
        raise error


def test_another_error_is_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised, saying_what_to_lower("lower the number"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert type(raised.value) is RuntimeError


def test_the_advice_names_what_can_still_be_lowered_and_what_it_is_now() -> None:
    assert for_training(config(), 2) == (
        "raise gradientAccumulationSteps (now 1) to a larger divisor of 4, so that a micro-batch has fewer than 4 "
        "samples, or set model.activationCheckpointing: true, or set parallelism: sharded, "
        "or lower model.sequence (now 128), or give the pods more memory (spec.trainer.resourcesPerNode)"
    )
    lowest = for_training(config(gradient_accumulation_steps=8), 1)
    assert "gradientAccumulationSteps" not in lowest
    assert "parallelism" not in lowest
    assert for_building(config()) == (
        "lower model.width (now 128), model.layers (4) or model.vocabSize (256), "
        "or give the pods more memory (spec.trainer.resourcesPerNode)"
    )
    as_wide_as_the_model_says = config(model=TransformerConfig(mlp_ratio=3, experts=ExpertsConfig(count=8)))
    assert for_building(as_wide_as_the_model_says).startswith(
        "lower model.experts.count (now 8), model.experts.mlpRatio (3), model.width (128), model.layers (4) or "
    )


@pytest.mark.parametrize("own", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_what_a_device_refuses_within_an_exchange_is_no_fault_of_a_peer(
    own: type[RuntimeError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        peers = GroupPeers()
        failures = [own("CUDA out of memory"), RuntimeError("Connection closed by peer")]
        monkeypatch.setattr(dist, "all_reduce", Mock(side_effect=failures))
        for told in (own, PeerLost):
            with pytest.raises(told):
                peers.sum(torch.ones(1))
    finally:
        dist.destroy_process_group()
