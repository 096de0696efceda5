"""Which device a rank takes, and how it is set up: what no machine without an accelerator shows by itself."""

from collections.abc import Iterator

import pytest
import torch
from trimtab_trainer.devices import own_device
from trimtab_trainer.fields import InvalidFields


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A node with two devices of CUDA; the ones that were made PyTorch's current one."""
    taken: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", taken.append)
    yield taken
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("wanted", ["auto", "accelerator"])
def test_the_own_device_computes_reproducibly_and_fills_no_memory_that_is_overwritten(
    wanted: str, taken: list[int]
) -> None:
    assert own_device(wanted, 1) == torch.device("cuda", 1)
    assert taken == [1]
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_the_cpu_is_left_as_it_is_where_it_is_wanted(taken: list[int]) -> None:
    assert own_device("cpu", 5) == torch.device("cpu")
    assert not taken
    assert not torch.are_deterministic_algorithms_enabled()


def test_there_are_as_many_devices_as_ranks(taken: list[int]) -> None:
    with pytest.raises(InvalidFields, match="the node has 2 of type cuda, and 3 ranks or more"):
        own_device("auto", 2)
    assert not taken
