"""One tensor as torch stores it, read without torch and without running anything that it names.

torch's file of a tensor is a zip archive: `data.pkl` says how the tensor lies in its storage, `data/0` is the storage.
The pickle is read by an unpickler that knows the few names torch writes there, and makes plain values of them.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
from trimtab_contract.checkpoints import TensorDescription

from trimtab_cli.errors import CliError

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element, by torch's name of its type."""

_REBUILDING = frozenset({"_rebuild_tensor_v2", "_rebuild_tensor_v3"})


class UnreadableTensor(CliError):
    """What is stored is no tensor of the kind that is expected."""


class _Layout(NamedTuple):
    """How a tensor lies in its storage: counted in elements."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Named:
    """Something of torch's that is only named: a type of storage or of element."""

    module: str
    name: str


class _Unpickler(pickle.Unpickler):
    """Makes a `_Layout`; refuses every name that is not one of torch's for a plain tensor."""

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "torch._utils" and name in _REBUILDING:
            return _layout
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module in {"torch", "torch.storage"} and (name.endswith("Storage") or name in ITEM_BYTES):
            return _Named(module, name)
        raise UnreadableTensor(f"it names {module}.{name}, which no plain tensor does")

    def persistent_load(self, pid: Any, /) -> Any:
        kind, _, key, _, _ = pid
        if kind != "storage":
            raise UnreadableTensor(f"it refers to a {kind!r}, and not to a storage")
        return str(key)


class Rows(NamedTuple):
    """Rows of a tensor that follow each other, little-endian and row by row; of a tensor without dimensions its one
    element."""

    number: int
    elements: bytes


def stored_rows(body: bytes, expected: TensorDescription) -> Rows:
    """What one slice holds of the tensor that is `expected`: all of its rows, or some; raises UnreadableTensor.

    `body` must be known to be what was saved.
    """
    try:
        return _read(body, expected)
    except UnreadableTensor:
        raise
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        ValueError,
        EOFError,
        AttributeError,
    ) as error:
        raise UnreadableTensor(f"it is no tensor as torch stores one: {error}") from error


def rows_of(shape: Sequence[int]) -> int:
    """Rows of a tensor of a shape."""
    return shape[0] if shape else 1


def _layout(storage: str, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object) -> _Layout:
    return _Layout(storage, offset, tuple(shape), tuple(stride))


def _read(body: bytes, expected: TensorDescription) -> Rows:
    size = ITEM_BYTES.get(expected.dtype)
    if size is None:
        raise UnreadableTensor(f"its elements are {expected.dtype}, for which safetensors has no name")
    with zipfile.ZipFile(BytesIO(body)) as archive:
        folder = archive.namelist()[0].partition("/")[0]
        order = archive.read(f"{folder}/byteorder")
        if order != b"little":
            raise UnreadableTensor(f"its bytes are in {order.decode(errors='replace')}-endian order")
        found: object = _Unpickler(BytesIO(archive.read(f"{folder}/data.pkl"))).load()
        if not isinstance(found, _Layout):
            raise UnreadableTensor("it is a plain value, and no tensor")
        storage = archive.read(f"{folder}/data/{found.storage}")
    if len(found.shape) != len(expected.shape) or found.shape[1:] != expected.shape[1:]:
        raise UnreadableTensor(f"it has shape {list(found.shape)}, the manifest says {list(expected.shape)}")
    return Rows(rows_of(found.shape), _contiguous(storage, found, size))


def _contiguous(storage: bytes, layout: _Layout, size: int) -> bytes:
    """The tensor's own elements, whatever the order in which they lie in the storage."""
    count = prod(layout.shape)
    last = layout.offset + sum((length - 1) * step for length, step in zip(layout.shape, layout.stride, strict=True))
    negative = min(layout.offset, *layout.stride, 0) < 0
    if count and (negative or (last + 1) * size > len(storage)):
        raise UnreadableTensor("its storage is shorter than the tensor")
    elements = np.frombuffer(storage, dtype=f"V{size}", count=len(storage) // size)
    view = np.lib.stride_tricks.as_strided(
        elements[layout.offset :],
        shape=layout.shape,
        strides=tuple(step * size for step in layout.stride),
        writeable=False,
    )
    return view.tobytes() if count else b""
