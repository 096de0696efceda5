"""The parameter checksum sees any one bit, any exchange, and names the tensor."""

import math
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
@pytest.mark.parametrize("more", [0, 1, 700])
def test_a_device_adds_up_what_the_host_does(dtype: torch.dtype, more: int) -> None:
    """In passes, which are computed here without one."""
    limits, modulus = torch.iinfo(dtype), 2**64
    for rows in (0, 1, checksum.ROWS, 2 * checksum.ROWS + 3):
        words = torch.randint(limits.min, limits.max, (rows * checksum.COLUMNS + more,), dtype=dtype)
        on_host = checksum.GrowingSum(words, 2**40 + 5, checksum._HostRoom()).result()
        on_device = checksum._device_sum(words, 2**40 + 5, checksum._Room())
        assert int(on_device) % modulus == on_host % modulus


@pytest.mark.parametrize("step", [1, 4096, 5000, 1 << 20])
def test_a_sum_grows_with_what_has_arrived(step: int) -> None:
    tensors = [*named(), ("d", torch.randn(700, checksum.COLUMNS + 3))]
    expected = parameter_checksum(tensors)
    arriving = torch.full_like(tensors[-1][1], math.nan)
    growing, memory = GrowingChecksum([*named(), ("d", arriving)]), memoryview(arriving.numpy()).cast("B")
    grown = growing.growing("d", memory)
    assert grown is not None
    values = tensors[-1][1].numpy().tobytes()
    step = max(step, len(values) // 3000)
    for begin in range(0, len(values), step):
        memory[begin : begin + step] = values[begin : begin + step]
        grown.take(min(begin + step, len(values)))
    # What has arrived is not read again.
    arriving[:600].zero_()
    growing.add("d", grown)
    assert growing.result() == expected


def test_no_sum_grows_in_memory_that_is_not_all_of_its_tensor() -> None:
    tensor = torch.randn(64, 64)
    growing, memory = GrowingChecksum([("a", tensor), ("b", tensor.T)]), memoryview(tensor.numpy()).cast("B")
    assert growing.growing("a", memory) is not None
    assert growing.growing("a", memory[4:]) is None
    assert growing.growing("a", memoryview(bytearray(tensor.nbytes))) is None
    assert growing.growing("b", memory) is None


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
