"""A tensor as `torch.save` wrote it, where its bytes lie: `torch.load` would copy them, and costs more for small ones.

The file is a zip archive without compression: `data.pkl` says how the tensor lies in its storage, `data/0` is the
storage. Whatever is written in another way is left to `torch.load`.
"""

import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import SEEK_CUR, SEEK_END, SEEK_SET, BytesIO, RawIOBase
from typing import IO, Any, NamedTuple, cast

import torch
from torch import Tensor

_LOCAL_HEADER_BYTES = 30
_LOCAL_HEADER, _FIRST_STORAGE = b"PK\x03\x04", b"/data/0"
_LENGTHS = struct.Struct("<26xHH")
"""Of a local header: how long the name and the extra field are that follow it."""
_DIRECTORY_ENTRY = struct.Struct("<4s6xH12xLHHH8xL")
"""Signature, compression, size, lengths of name, extra field and comment, and where the local header is."""
_DIRECTORY_END = struct.Struct("<4s6xH4xLH")
"""Signature, number of entries, where the first one is, and the length of a comment."""
_TOO_LARGE = 0xFFFFFFFF
"""Stands for a number that is elsewhere."""


def tensor_in(body: memoryview) -> Tensor | None:
    """The tensor in `body`, in the same memory; None where it is written in a way that only `torch.load` knows.

    `body` must be known to be what was saved, and writable.
    """
    try:
        return _Archive(body).tensor()
    except (_Unfamiliar, zipfile.BadZipFile, KeyError, UnicodeDecodeError, pickle.UnpicklingError):
        return None


def elements_begin(head: memoryview) -> int | None:
    """Where the elements of a tensor begin, by the first bytes of what holds it; None where those do not tell.

    Nobody need have verified them: a wrong answer is told from `tensor_in`, once all of it is there.
    """
    name = bytes(head).find(_FIRST_STORAGE)
    header = bytes(head[: max(name, 0)]).rfind(_LOCAL_HEADER)
    if not 0 <= header <= len(head) - _LOCAL_HEADER_BYTES:
        return None
    name_bytes, extra_bytes = _LENGTHS.unpack_from(head, header)
    return header + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes


class MemoryFile(RawIOBase):
    """Bytes as a file that is not a copy of them, as BytesIO is."""

    def __init__(self, body: bytes | memoryview) -> None:
        super().__init__()
        self._body, self._at = memoryview(body), 0

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, room: Any, /) -> int:
        """See `io.RawIOBase`."""
        taken = min(len(room), len(self._body) - self._at)
        room[:taken] = self._body[self._at : self._at + taken]
        self._at += taken
        return taken

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """See `io.RawIOBase`."""
        begin = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: len(self._body)}[whence]
        if begin < 0:
            raise OSError(f"there is nothing {-begin} bytes before the first one")
        self._at = begin
        return begin

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._at


class _Unfamiliar(Exception):
    """Not what torch writes for a plain tensor on this kind of machine."""


@dataclass(frozen=True, slots=True)
class _Storage:
    """Where a tensor's elements are."""

    key: str
    dtype: torch.dtype
    count: int


class _Entry(NamedTuple):
    """Where a record's local header is, and how many bytes follow it."""

    header: int
    size: int
    compression: int


class _Archive:
    def __init__(self, body: memoryview) -> None:
        self._body, self._entries = body, _entries(body)
        self._folder = next(iter(self._entries), "").partition("/")[0]

    def tensor(self) -> Tensor:
        """The one tensor."""
        if bytes(self._record("byteorder")) != sys.byteorder.encode():
            raise _Unfamiliar
        found: object = _Unpickler(self._record("data.pkl"), self._elements).load()
        if not isinstance(found, Tensor):
            raise _Unfamiliar
        return found

    def _elements(self, storage: _Storage) -> Tensor:
        body = self._record(f"data/{storage.key}")
        if len(body) != storage.count * storage.dtype.itemsize:
            raise _Unfamiliar
        return torch.frombuffer(body, dtype=storage.dtype) if body else torch.empty(0, dtype=storage.dtype)

    def _record(self, name: str) -> memoryview:
        entry = self._entries[f"{self._folder}/{name}"]
        if entry.compression != zipfile.ZIP_STORED:
            raise _Unfamiliar
        name_bytes, extra_bytes = _LENGTHS.unpack_from(self._body, entry.header)
        begin = entry.header + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        return self._body[begin : begin + entry.size]


def _entries(body: memoryview) -> dict[str, _Entry]:
    """The archive's directory. Python's own reader, many times slower, is left what is too large for the usual form."""
    begin = len(body) - _DIRECTORY_END.size
    signature, count, at, comment = _DIRECTORY_END.unpack_from(body, begin) if begin >= 0 else (b"", 0, 0, 0)
    found: dict[str, _Entry] = {}
    if signature == b"PK\5\6" and not comment:
        while len(found) < count and at + _DIRECTORY_ENTRY.size <= begin:
            signature, compression, size, *lengths, header = _DIRECTORY_ENTRY.unpack_from(body, at)
            if signature != b"PK\1\2" or _TOO_LARGE in {size, header}:
                break
            at += _DIRECTORY_ENTRY.size
            found[str(body[at : at + lengths[0]], "utf-8")] = _Entry(header, size, compression)
            at += sum(lengths)
    if found and len(found) == count:
        return found
    with zipfile.ZipFile(cast("IO[bytes]", MemoryFile(body))) as archive:
        return {
            entry.filename: _Entry(entry.header_offset, entry.file_size, entry.compress_type)
            for entry in archive.infolist()
        }


class _Unpickler(pickle.Unpickler):
    """Knows what torch names in the pickle of a plain tensor, and nothing else."""

    def __init__(self, body: memoryview, elements: Callable[[_Storage], Tensor]) -> None:
        super().__init__(BytesIO(body))
        self._elements = elements

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _TYPED_STORAGES:
            return _TYPED_STORAGES[name]
        raise _Unfamiliar

    def persistent_load(self, pid: Any, /) -> _Storage:
        kind, dtype, key, _device, count = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise _Unfamiliar
        return _Storage(key, dtype, count)

    def _tensor(
        self, storage: _Storage, offset: int, shape: Sequence[int], stride: Sequence[int], *_: object
    ) -> Tensor:
        return self._elements(storage).as_strided(shape, stride, offset)


_TYPED_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
"""torch's names in the pickle, by the type of an element."""
