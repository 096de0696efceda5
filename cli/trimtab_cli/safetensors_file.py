"""Writing a safetensors file, tensor after tensor: none but the piece being written is in memory.

The format: the length of the header as a little-endian u64; the header as JSON, padded with spaces to a multiple of
eight bytes; and the tensors' elements one behind the other.
"""

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import BinaryIO

from trimtab_contract.checkpoints import TensorDescription

from trimtab_cli.tensor_archive import ITEM_BYTES

_ALIGNMENT = 8
_DTYPES: Mapping[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def in_file_order(tensors: Mapping[str, TensorDescription]) -> tuple[str, ...]:
    """The names in the order of the file: larger elements first, so that every tensor is aligned."""
    return tuple(sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name].dtype], name)))


def size_of(tensor: TensorDescription) -> int:
    """Bytes of a tensor's elements."""
    return prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def header(tensors: Mapping[str, TensorDescription], metadata: Mapping[str, str]) -> bytes:
    """What stands before the elements."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name in in_file_order(tensors):
        one = tensors[name]
        end = begin + size_of(one)
        entries[name] = {"dtype": _DTYPES[one.dtype], "shape": list(one.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(
    file: BinaryIO, tensors: Mapping[str, TensorDescription], metadata: Mapping[str, str], bodies: Iterable[bytes]
) -> int:
    """Write a whole file; `bodies` are the elements of each tensor `in_file_order`, in one piece or in several.

    Returns the bytes written.
    """
    written = file.write(header(tensors, metadata))
    for body in bodies:
        written += file.write(body)
    return written
