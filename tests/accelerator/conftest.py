"""What these tests need."""

import os

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def accelerator() -> None:
    """End the run in one sentence where there is no device."""
    wanted = torch.device(os.environ.get("TRIMTAB_ACCELERATOR", "cuda"))
    if wanted.type == "cuda" and not torch.cuda.is_available():
        pytest.exit("PyTorch sees no CUDA device here: its kernels can be tested only where one is", returncode=1)
