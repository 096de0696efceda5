"""Replicas of a model of Hugging Face under PyTorch's own data parallelism, each with batches of its own.

Started by `torch.multiprocessing`; each rank leaves the checksum of its weights in `<folder>/<rank>.json`.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from rank_exits import leave
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM
from trimtab_trainer.integrations.muon_clip import MuonClipOptimizer
from trimtab_trainer.optim import MuonClipConfig, parameter_checksum

STEPS, VOCABULARY = 4, 32


def model_of(seed: int) -> LlamaForCausalLM:
    """A small model that attends with four heads."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**shape, vocab_size=VOCABULARY, use_cache=False, max_position_embeddings=64))


def story(rank: int, ranks: int, port: int, folder: str) -> None:
    """Train with every head above the threshold."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = DistributedDataParallel(model_of(0))
    optimizer = MuonClipOptimizer(model, MuonClipConfig(qk_clip_threshold=0.001, muon_lr=1e-2))
    clipped: list[int] = []
    for step in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(100 * rank + step))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        assert optimizer.telemetry is not None
        clipped.append(int((optimizer.telemetry.qk_clip_gamma < 1).sum()))
    total = parameter_checksum(model.named_parameters()).total
    (Path(folder) / f"{rank}.json").write_text(json.dumps({"total": total, "clipped": clipped}))
    leave()
