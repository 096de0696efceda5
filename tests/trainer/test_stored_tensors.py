"""A tensor that torch wrote is found where its bytes lie; what is written in another way is left to torch."""

import pickle
import zipfile
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor
from trimtab_trainer.checkpointing.stored_tensors import elements_begin, tensor_in

TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def saved(value: Any) -> memoryview:
    """What `torch.save` writes, in memory that may be written to."""
    file = BytesIO()
    torch.save(value, file)
    return memoryview(bytearray(file.getvalue()))


def found_in(body: memoryview) -> Tensor:
    found = tensor_in(body)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_of_element_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 100, (3, 5)).to(dtype)
    found = found_in(saved(tensor))
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


@pytest.mark.parametrize(
    "tensor",
    [torch.rand(4, 6).T, torch.rand(8, 3)[2:5, 1:], torch.tensor(2.5), torch.empty(0, 3)],
    ids=["transposed", "part of a larger one", "scalar", "empty"],
)
def test_any_layout_comes_back(tensor: Tensor) -> None:
    found = found_in(saved(tensor))
    assert found.shape == tensor.shape
    assert torch.equal(found, tensor)


def test_the_tensor_is_the_memory_it_was_found_in() -> None:
    body = saved(torch.zeros(1000))
    found = found_in(body)
    body[: len(body) // 2] = bytes(len(body) // 2)
    body[len(body) // 4] = 1
    assert bool(found.any())


@pytest.mark.parametrize(
    "value",
    [torch.nn.Parameter(torch.rand(2)), torch.rand(2).to(torch.float8_e4m3fn), {"a": torch.rand(2)}, 7],
    ids=["parameter", "eight bits", "mapping", "number"],
)
def test_what_is_no_plain_tensor_is_left_to_torch(value: Any) -> None:
    assert tensor_in(saved(value)) is None


def test_what_torch_did_not_write_is_left_to_torch() -> None:
    assert tensor_in(memoryview(bytearray(pickle.dumps([1.0])))) is None
    assert tensor_in(memoryview(bytearray())) is None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_first_bytes_tell_where_the_elements_are(dtype: torch.dtype) -> None:
    body = saved(torch.randint(0, 100, (1000, 3)).to(dtype))
    begin = elements_begin(body[:4096])
    assert begin is not None
    body[begin : begin + 1000 * 3 * dtype.itemsize] = bytes(1000 * 3 * dtype.itemsize)
    assert not found_in(body).any()


@pytest.mark.parametrize("head", [b"", b"no archive", b"archive/data/0", b"PK\3\4", b"PK\3\4/data/0"])
def test_first_bytes_that_tell_nothing_are_no_error(head: bytes) -> None:
    assert elements_begin(memoryview(head)) is None


def test_an_archive_in_another_form_is_read_too() -> None:
    """As Python writes one, with a comment: torch's writer has none."""
    tensor, body = torch.rand(300, 7), saved(torch.zeros(0))
    with zipfile.ZipFile(BytesIO(saved(tensor))) as written:
        file = BytesIO()
        with zipfile.ZipFile(file, "w") as other:
            for entry in written.infolist():
                other.writestr(entry.filename, written.read(entry))
            other.comment = b"by hand"
        body = memoryview(bytearray(file.getvalue()))
    assert torch.equal(found_in(body), tensor)
    with zipfile.ZipFile(BytesIO(saved(tensor))) as written:
        file = BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as other:
            for entry in written.infolist():
                other.writestr(entry.filename, written.read(entry))
    assert tensor_in(memoryview(bytearray(file.getvalue()))) is None


def test_an_archive_that_is_cut_anywhere_has_no_tensor() -> None:
    whole = saved(torch.rand(3, 3))
    assert [at for at in range(len(whole)) if tensor_in(whole[:at]) is not None] == []
