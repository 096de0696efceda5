"""What computes this rank's numbers: where it is the same, the same numbers give the same bits."""

from pathlib import Path

import torch


def processor(device: torch.device) -> str:
    """PyTorch's version, the device, and on a CPU its instructions and threads, which decide the order of sums."""
    return f"torch {torch.__version__}, {_told(device)}"


def _told(device: torch.device) -> str:
    if device.type == "cpu":
        return f"{_cpu_model()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return device.type


def _cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return "CPU"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "CPU")
