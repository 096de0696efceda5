"""Sharded parallelism (FSDP2): each rank keeps some rows of every parameter, of its gradient and of its moments.

A whole parameter exists only while its block is computed.
"""

from typing import Literal

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

Parallelism = Literal["replicated", "sharded"]


def shard(model: nn.Module, blocks: nn.ModuleList, ranks: int, device: torch.device) -> None:
    """Shard the parameters of `model` in place, those of each of its `blocks` as one group.

    They may be on the CPU: each group is moved to `device`, PyTorch's current one, when its turn comes.

    Every rank of the default process group calls it, with equal parameters. Forward and backward passes are exchanges
    from then on, and the gradient of a backward pass is the mean over the ranks.
    """
    mesh = init_device_mesh(device.type, (ranks,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
