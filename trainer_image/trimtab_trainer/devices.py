"""Which device a rank computes on: an accelerator of its own where PyTorch sees one, else the CPU."""

import os
from typing import Any, Final, Literal, cast

import torch
import torch.distributed as dist

from trimtab_trainer.fields import InvalidFields

Device = Literal["auto", "cpu", "accelerator"]

CPU: Final = torch.device("cpu")

_CUBLAS_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"


def own_device(wanted: Device, local_rank: int) -> torch.device:
    """The device of the rank that is `local_rank` on its node, which is PyTorch's current one from then on.

    On an accelerator operators are chosen that give the same bits for the same numbers, where there are such.

    Raises:
        InvalidFields: an accelerator is wanted and there is none, or there are fewer than ranks on the node.
    """
    accelerator = None if wanted == "cpu" else torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None and wanted == "accelerator":
        more = "request some in spec.trainer.resourcesPerNode, or set cpu"
        raise InvalidFields((f"device: accelerator, and PyTorch sees none here; {more}",))
    if accelerator is None:
        return CPU
    count = torch.accelerator.device_count()
    if local_rank >= count:
        found = f"the node has {count} of type {accelerator.type}, and {local_rank + 1} ranks or more"
        more = "set spec.trainer.numProcPerNode to at most as many, or device: cpu"
        raise InvalidFields((f"device: {found}; {more}",))
    # Read when the first product is computed on CUDA: without it cuBLAS may add up in another order each time.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Every new tensor would be filled besides, most of them only to be overwritten.
    cast("Any", torch.utils.deterministic).fill_uninitialized_memory = False
    torch.accelerator.set_device_index(local_rank)
    return torch.device(accelerator.type, local_rank)


def exchange_backend(device: torch.device) -> str:
    """How the ranks exchange tensors of `device`, and those in the memory of the host by gloo."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
