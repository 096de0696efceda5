"""What a metric record says of a mixture of experts."""

import torch
from torch import Tensor

from trimtab_trainer.collectives import World
from trimtab_trainer.model import ExpertTelemetry


@torch.no_grad()
def expert_metrics(experts: ExpertTelemetry | None, world: World) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Average over the ranks, whose shares have equal size; every rank calls it. Returns scalars and vectors."""
    if experts is None:
        return {}, {}
    packed = torch.cat((experts.load.flatten().float(), torch.stack((experts.entropy, experts.z_loss)).float()))
    world.sum(packed)
    packed /= world.size
    load = packed[:-2].view_as(experts.load)
    scalars = {
        "router_entropy": packed[-2].item(),
        "z_loss": packed[-1].item(),
        "dead_experts": float((load == 0).sum().item()),
    }
    return scalars, {"expert_load": load}
