"""What a metric record says of a mixture of experts."""

import torch
from torch import Tensor

from trimtab_trainer.collectives import World
from trimtab_trainer.model import ExpertTelemetry
from trimtab_trainer.tensors import stretches


@torch.no_grad()
def expert_metrics(experts: ExpertTelemetry | None, world: World) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Average over the ranks, whose shares have equal size; every rank calls it. Returns scalars and vectors."""
    if experts is None:
        return {}, {}
    parts = (experts.load.flatten(), experts.entropy, experts.dropped, experts.z_loss.view(1))
    packed = torch.cat([part.float() for part in parts])
    world.sum(packed)
    packed /= world.size
    flat, entropy, dropped, z_loss = stretches(packed, [len(part) for part in parts])
    load = flat.view_as(experts.load)
    scalars = {
        "router_entropy": entropy.mean().item(),
        "z_loss": z_loss.item(),
        "dead_experts": float((load == 0).sum().item()),
    }
    return scalars, {"expert_load": load, "layer_router_entropy": entropy, "dropped_tokens": dropped}
