"""Ranks of a world that train a mixture of experts, whose router and experts are clipped by themselves, through gloo.

Started by `torch.multiprocessing`; each leaves what it saw in `<folder>/<rank>.json`.
"""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rank_exits import leave
from sharded_ranks import apart, config, trained, whole
from torch.nn import Parameter
from trimtab_trainer.accumulation import MicroBatches
from trimtab_trainer.collectives import World
from trimtab_trainer.config import TrainerConfig
from trimtab_trainer.loop import Trainee
from trimtab_trainer.model import ExpertsConfig
from trimtab_trainer.optim import GradientClip, GradientClipping, MuonClipConfig, ParameterGroup
from trimtab_trainer.reduction import GradientBuckets, ShardedGradients
from trimtab_trainer.sharding import Parallelism
from trimtab_trainer.tensors import floats

GROUPS = (
    ParameterGroup(pattern="*.router.weight", learning_rate_scale=0.1, gradient_clip=0.001),
    ParameterGroup(pattern="*.experts.*", learning_rate_scale=0.5, gradient_clip=0.03),
)
PARTS = {"query": (3.0, 2.0), "experts.0": (1.0, 5.0), "experts.1": (7.0, None)}
"""What each of two ranks has of three gradients of two elements, of each the same number; None is no gradient."""

BOUNDS = (ParameterGroup(pattern="experts.*", gradient_clip=2.0),)


def mixture(parallelism: Parallelism) -> TrainerConfig:
    """A model of which many experts are idle."""
    usual = config(parallelism)
    model = replace(usual.model, bias=False, dropout=0.0, experts=ExpertsConfig(count=24, top_k=1, mlp_ratio=1))
    optimizer = MuonClipConfig(groups=GROUPS)
    return replace(usual, model=model, optimizer=optimizer, gradient_clip=0.5, gradient_accumulation_steps=3)


def seen(parallelism: Parallelism, world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train some steps; what was recorded, and the state with every tensor put together."""
    trainee = Trainee(mixture(parallelism))
    trainee.join(world)
    session = trained(trainee, world)
    vectors = [{name: floats(one) for name, one in vectors.items()} for vectors in session.vectors]
    scalars = [{name: one[name] for name in ("loss", "grad_norm", "clip_ratio")} for one in session.scalars]
    return {"scalars": scalars, "vectors": vectors}, whole(trainee)


def one_rank(world: World, kept: Path) -> dict[str, Any]:
    """The same on one rank; its state lies in `kept` then."""
    found, state = seen("replicated", world)
    torch.save(state, kept)
    return found


def expected_clip() -> list[float]:
    """Norm and ratio of the rest and of the experts, for ranks whose parts are added up in a norm."""
    squares = {name: sum(2 * (part or 0.0) ** 2 for part in parts) for name, parts in PARTS.items()}
    rest, experts = math.sqrt(squares["query"]), math.sqrt(squares["experts.0"] + squares["experts.1"])
    return [rest, 1.0 / rest, experts, 2.0 / experts]


def clipped_parts(world: World) -> GradientClip:
    """Ranks have other elements of each gradient: here what each has of it, and one of them nothing."""
    parameters = [(name, Parameter(torch.zeros(2))) for name in PARTS]
    for (_, parameter), parts in zip(parameters, PARTS.values(), strict=True):
        part = parts[world.rank]
        parameter.grad = None if part is None else torch.full((2,), part)
    gradients = ShardedGradients(parameters, world)
    named = gradients.named()
    clip = GradientClipping(PARTS, BOUNDS, 1.0).clip([gradient for _, gradient in named], gradients.norms)
    for (name, gradient), parts in zip(named, PARTS.values(), strict=True):
        ratio = clip.groups[0].ratio if name.startswith("experts") else clip.ratio
        torch.testing.assert_close(gradient, torch.full((2,), (parts[world.rank] or 0.0) * ratio))
    return clip


def clipped_buckets(world: World) -> GradientClip:
    """Ranks have the mean of their gradients, where the backward pass of one did not come to some parameter.

    The numbers are such that the norms are those of `clipped_parts`: all of a parameter's gradient is from one rank.
    """
    parameters = [(name, Parameter(torch.zeros(2))) for name in PARTS]
    gradients = GradientBuckets(parameters, world, 1 << 20)
    gradients.zero()
    loss = torch.zeros(())
    for (_, parameter), parts in zip(parameters, PARTS.values(), strict=True):
        length = 2 * math.hypot(*(part or 0.0 for part in parts))
        if (parts[-1] is None) == (world.rank == 0):
            loss = loss + length * parameter.sum()
    loss.backward()
    nothing = torch.zeros(1, 0, 0)
    gradients.reduce(MicroBatches(losses=torch.zeros(1), logits=nothing, exactly=nothing.bool()))
    tensors = [gradient for _, gradient in gradients.named()]
    return GradientClipping(PARTS, BOUNDS, 1.0).clip(tensors, gradients.norms)


def story(rank: int, ranks: int, port: int, folder: str) -> None:
    """Train replicated and sharded, then clip what some rank has no gradient of."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    world = World(120)
    alone: dict[str, Any] = torch.load(Path(folder) / "alone.pt")
    report: dict[str, Any] = {}
    for parallelism in ("replicated", "sharded"):
        found, state = seen(parallelism, world)
        report[parallelism] = {**found, "apart": apart(state, alone)}
    for kind, clip in (("parts", clipped_parts(world)), ("buckets", clipped_buckets(world))):
        report[kind] = [clip.norm, clip.ratio, clip.groups[0].norm, clip.groups[0].ratio]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(report))
    world.agree([1])
    leave()
