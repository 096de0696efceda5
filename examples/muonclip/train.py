"""MuonClip on a plain PyTorch model, on the CPU in half a minute: `python examples/muonclip/train.py`.

A small byte-level language model learns this very file. Nothing in the model knows of MuonClip: `parameter_groups`
and a pattern say what is special about its parameters, `fused_projection` says what makes the logits of each head, and
`LogitRecorder` reads the largest one off the calls of `scaled_dot_product_attention`.

`torchrun --standalone --nproc-per-node 2 examples/muonclip/train.py` trains the same on two processes, each with some
rows of every parameter (FSDP2).
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trimtab_trainer.collectives import GroupPeers
from trimtab_trainer.optim import (
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    Schedule,
    ShardedMuonClip,
    fused_projection,
    parameter_groups,
    routing_table,
)

WIDTH, HEADS, LAYERS, TOKENS, BATCH = 64, 4, 2, 64, 16


class Block(nn.Module):
    """Attention and MLP, as PyTorch has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH) for _ in range(2)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [batch, tokens, width]."""
        fused = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = fused.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [batch, tokens, 256]."""
        x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))


def shard(model: LanguageModel) -> GroupPeers:
    """Deal the rows of every parameter out to the processes that torchrun started."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return GroupPeers()


def train(steps: int, threshold: float) -> list[float]:
    """Train, and return the losses."""
    torch.manual_seed(0)
    model = LanguageModel()
    fused = ParameterGroup(pattern="*.qkv.weight", split=(WIDTH, WIDTH, WIDTH))
    peers = shard(model) if "RANK" in os.environ else None
    config = MuonClipConfig(
        groups=(fused, *parameter_groups(model, adamw=("scores.weight",))), qk_clip_threshold=threshold
    )
    attention = [
        fused_projection(f"blocks.{layer}.qkv", block.qkv, heads=HEADS) for layer, block in enumerate(model.blocks)
    ]
    if peers is None:
        optimizer = MuonClip(model.named_parameters(), attention, config)
    else:
        optimizer = ShardedMuonClip(model.named_parameters(), attention, config, peers)
    first = peers is None or peers.rank == 0
    schedule = Schedule(warmup_steps=steps // 10, total_steps=steps, shape="wsd")
    recorder = LogitRecorder(LAYERS, threshold=lambda: optimizer.lowest_threshold)
    if first:
        print(routing_table(optimizer.routes))

    text = torch.tensor(list(Path(__file__).read_bytes()))
    windows = text.unfold(0, TOKENS + 1, 1)
    losses: list[float] = []
    for step in range(1, steps + 1):
        batch = windows[torch.randint(len(windows), (BATCH,))]
        if peers is not None:
            batch = batch.chunk(peers.size)[peers.rank]
        told = step == 1 or step % 20 == 0
        recorder.exact = told  # of other steps no one sees the heads that are not clipped
        with recorder:
            scores = model(batch[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()

        optimizer.set_lr(schedule.factor(step))
        logits, mean = recorder.max_logits(), loss.detach()
        if peers is not None:
            peers.max(logits)
            peers.sum(mean.div_(peers.size))
        update = optimizer.step(logits)
        losses.append(mean.item())
        if first and told:
            clipped = int((update.qk_clip_gamma < 1).sum())
            print(f"step {step:4}  loss {mean:.3f}  largest logit {logits.max():.1f}  heads clipped {clipped}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threshold", type=float, default=20.0, help="low, so that something is to be seen")
    arguments = parser.parse_args()
    train(arguments.steps, arguments.threshold)
    if dist.is_initialized():
        # Gloo's threads give tensors back late, and Python would abort the process for it while it ends.
        sys.stdout.flush()
        os._exit(0)
