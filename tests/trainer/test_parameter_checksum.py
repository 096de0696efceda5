"""The parameter checksum sees any one bit, any exchange, and names the tensor."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from trimtab_trainer.model import Transformer, TransformerConfig
from trimtab_trainer.optim import checksum
from trimtab_trainer.optim.checksum import GrowingChecksum, parameter_checksum


def named(seed: int = 0) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (name, torch.randn(*shape, generator=generator)) for name, shape in (("a", (7, 5)), ("b", (9,)), ("c", (3, 4)))
    ]


def test_equal_parameters_have_equal_checksums() -> None:
    shape = TransformerConfig(width=16, layers=1, heads=1)
    first, second = (parameter_checksum(Transformer(shape, seed=3).named_parameters()) for _ in range(2))
    assert first == second
    assert first.first_difference(second) is None


@pytest.mark.parametrize("more", [0, 1, checksum.COLUMNS, checksum.ROWS * checksum.COLUMNS + checksum.COLUMNS + 3])
def test_the_checksum_is_the_defined_sum(more: int) -> None:
    tensors = [*named(), ("d", torch.randn(2 * checksum.ROWS * checksum.COLUMNS + more))]
    words = [word for _, tensor in tensors for word in tensor.view(torch.int32).flatten().tolist()]
    expected = sum((2 * index + 1) * word for index, word in enumerate(words)) % 2**64
    assert parameter_checksum(tensors).total == expected


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_a_device_adds_up_what_the_host_does(dtype: torch.dtype) -> None:
    """In passes, which are computed here without one."""
    limits = torch.iinfo(dtype)
    for rows in (1, checksum.ROWS, 2 * checksum.ROWS + 3):
        table = torch.randint(limits.min, limits.max, (rows, checksum.COLUMNS), dtype=dtype)
        on_host, on_device = checksum._sums_on_host(table), checksum._sums(table, checksum._Room())
        for expected, found in zip(on_host, on_device, strict=True):
            assert torch.equal(expected, found)


def test_tensors_may_be_added_in_any_order_or_not_at_all() -> None:
    growing = GrowingChecksum(named())
    growing.add("c")
    growing.add("a")
    assert growing.result() == parameter_checksum(named())


@pytest.mark.parametrize("bit", range(32))
def test_any_single_bit_is_seen_and_its_tensor_named(bit: int) -> None:
    tensors = named()
    before = parameter_checksum(tensors)
    words = tensors[1][1].view(torch.int32)
    words[4] ^= (1 << bit) if bit < 31 else -(1 << 31)
    after = parameter_checksum(tensors)
    assert after.total != before.total
    assert after.first_difference(before) == "b"


def test_exchanged_values_are_seen_within_and_across_tensors() -> None:
    before = parameter_checksum(named())
    within = named()
    within[0][1][[0, 3]] = within[0][1][[3, 0]]
    assert parameter_checksum(within).total != before.total
    across = named()
    first, second = across[0][1][2, 2].clone(), across[2][1][1, 1].clone()
    across[0][1][2, 2], across[2][1][1, 1] = second, first
    assert parameter_checksum(across).total != before.total


def test_bits_count_not_values() -> None:
    zero, minus_zero = [("z", torch.zeros(3))], [("z", -torch.zeros(3))]
    assert parameter_checksum(zero).total != parameter_checksum(minus_zero).total
    nan = [("z", torch.full((3,), torch.nan))]
    assert parameter_checksum(nan) == parameter_checksum(nan)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_seen_too(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).to(dtype).view(2, 3)
    before = parameter_checksum([("t", tensor)])
    transposed = parameter_checksum([("t", tensor.T)])
    tensor[1, 2] += 1
    assert len({before.total, transposed.total, parameter_checksum([("t", tensor)]).total}) == 3


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on the caller's thread, as in a trainer's pod that torchrun started."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_checksum_of_many_tensors_needs_room_for_one_pass_only() -> None:
    tensor = torch.ones(4 * checksum.ROWS * checksum.COLUMNS)
    many = [(str(number), tensor) for number in range(200)]
    parameter_checksum(many[:1])
    with ThreadPoolExecutor(1) as pool:
        # On a thread of its own, as a save does it: what the first thread has freed before is no room there.
        resting = pool.submit(resident_bytes, "VmRSS").result()
        Path("/proc/self/clear_refs").write_text("5")
        pool.submit(parameter_checksum, many).result()
        grown = resident_bytes("VmHWM") - resting
    assert grown < 32 * 8 * checksum.ROWS * checksum.COLUMNS


def resident_bytes(field: str) -> int:
    """Of this process, now (`VmRSS`) or at most since it was last reset (`VmHWM`)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[field].split()[0]) * 1024
