"""What to lower when memory runs out: one error that names the settings and what they are now."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import torch

from trimtab_trainer.config import TrainerConfig
from trimtab_trainer.errors import OutOfMemory

_CPU_ALLOCATOR: Final = "DefaultCPUAllocator"
"""In the RuntimeError that PyTorch raises when the machine refuses memory; GPUs have a type of their own."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for and refused."""
    refused = isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)
    return refused or isinstance(error, (MemoryError, torch.OutOfMemoryError))


@contextmanager
def saying_what_to_lower(advice: str) -> Generator[None]:
    """Around work that takes memory: where it runs out, raises OutOfMemory with the advice; other errors pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise OutOfMemory(f"{said[0]}; to need less, {advice}") from error


def for_training(config: TrainerConfig, ranks: int) -> str:
    """What makes a step need less memory, the cheapest first."""
    steps = config.gradient_accumulation_steps
    share = config.global_batch // ranks
    ways = [f"lower model.sequence (now {config.model.sequence})", "give the pods more memory"]
    if config.parallelism == "replicated" and ranks > 1:
        ways.insert(0, "set parallelism: sharded")
    if not config.model.activation_checkpointing:
        ways.insert(0, "set model.activationCheckpointing: true")
    if share > steps:
        micro_batch = f"raise gradientAccumulationSteps (now {steps}) to a larger divisor of {share}"
        ways.insert(0, f"{micro_batch}, so that a micro-batch has fewer than {share // steps} samples")
    return f"{', or '.join(ways)} (spec.trainer.resourcesPerNode)"


def for_building(config: TrainerConfig) -> str:
    """What makes a model smaller; of a mixture of experts the experts first, which are most of it."""
    model, experts = config.model, config.model.experts
    wide = f"model.width (now {model.width})"
    if experts is not None:
        ratio = experts.mlp_ratio or model.mlp_ratio
        mixture = f"model.experts.count (now {experts.count}), model.experts.mlpRatio ({ratio})"
        wide = f"{mixture}, model.width ({model.width})"
    sizes = f"{wide}, model.layers ({model.layers}) or model.vocabSize ({model.vocab_size})"
    return f"lower {sizes}, or give the pods more memory (spec.trainer.resourcesPerNode)"
