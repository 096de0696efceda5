"""Updates on an accelerator against those on the CPU, for machines that have one: `make test-accelerator`."""

import os
from collections.abc import Iterator

import device_checks
import pytest
import torch

pytestmark = pytest.mark.accelerator

DEVICE = os.environ.get("TRIMTAB_ACCELERATOR", "cuda")


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The checks take the accelerator in place of the device that is none."""
    monkeypatch.setattr(device_checks, "DEVICE", DEVICE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", device_checks.OF_NUMBERS)
def test_on_an_accelerator(name: str) -> None:
    device_checks.CHECKS[name]()
