"""Shards in the form of torch.distributed.checkpoint (DCP), written without any local disk.

DCP detects no damage and unpickles: read only what was verified.
"""

import base64
import dataclasses
import gc
import os
import pickle
import threading
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO, IOBase
from itertools import accumulate
from pathlib import Path
from sys import intern
from typing import IO, Any, NamedTuple, Protocol, TypeGuard, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    DEFAULT_SUFFIX,
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,  # pyright: ignore[reportPrivateUsage] the form of `.metadata` that DCP's own reader knows
    _StoragePrefix,  # pyright: ignore[reportPrivateUsage] how its plan names a rank's object
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load  # pyright: ignore[reportUnknownVariableType] untyped path
from torch.distributed.checkpoint.storage import WriteResult

from trimtab_trainer.checkpointing.arrival import Apart
from trimtab_trainer.checkpointing.reading import Place
from trimtab_trainer.checkpointing.state import FlatState
from trimtab_trainer.checkpointing.stored_tensors import MemoryFile, elements_begin, tensor_in
from trimtab_trainer.errors import SaveBroken

METADATA_NAME = ".metadata"


class Sink(Protocol):
    """Where a rank's share goes, from its first byte to its last."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Take bytes over; returns how many."""
        ...

    def flush(self) -> None:
        """Called at the end of every tensor."""
        ...

    def slice(self, name: str, /) -> AbstractContextManager[None]:
        """What is written meanwhile is deserialised by itself."""
        ...


class ShardLayout:
    """Which rank writes which tensor: agreed on once, for names, types and shapes do not change during a run."""

    def __init__(self, flat: FlatState, *, rank: int, exchange: Callable[[str], list[str]]) -> None:
        """Agree with all ranks. `exchange` returns the texts of all ranks in rank order."""
        self._rank = rank
        writer, planner = _writer(_Memory()), DefaultSavePlanner()
        writer.set_up_storage_writer(rank == 0)
        planner.set_up_planner(flat, writer.storage_meta(), rank == 0)  # pyright: ignore[reportUnknownMemberType] untyped dict
        local = writer.prepare_local_plan(planner.create_local_plan())
        # Plans come from the ranks of this world, over its own process group.
        texts = exchange(_packed(local))
        with _uncollected():
            plans, metadata = planner.create_global_plan(_unpacked(texts))
            plans = writer.prepare_global_plan(plans)
            self._plan = plans[rank]
            self._object_name = _object_name(self._plan)
            # Of a world of a thousand ranks this is large, and no other rank needs it.
            self._metadata = metadata if rank == 0 else Metadata({})
            self._planned = [(_object_name(plan), _indexes(plan)) for plan in plans] if rank == 0 else []

    @property
    def object_name(self) -> str:
        """The object that holds this rank's share."""
        return self._object_name

    def write(self, flat: FlatState, sink: Sink) -> None:
        """Write this rank's share of a copy to `object_name`, a slice for each part of a tensor and each plain value.

        The form is the one that DCP's own reader knows. Raises SaveBroken, and what the sink raises.
        """
        planner = DefaultSavePlanner()
        planner.set_up_planner(flat, None, self._rank == 0)  # pyright: ignore[reportUnknownMemberType] untyped dict
        try:
            for item in _in_order(planner.finish_plan(self._plan)):
                with sink.slice(item.index.fqn):
                    _write(planner.resolve_data(item), sink)
        except RuntimeError as error:
            raise SaveBroken(f"writing {self.object_name} failed: {error}") from error

    def metadata(self, lengths: Sequence[Sequence[int]]) -> bytes:
        """On rank 0: `.metadata`, from the lengths of the slices that each rank has written. Raises SaveBroken.

        DCP has reported success for shards that were never written, so the slices are counted.
        """
        written: list[list[WriteResult]] = []
        for (name, indexes), own in zip(self._planned, lengths, strict=True):
            if len(indexes) != len(own):
                raise SaveBroken(f"{name} has {len(own)} slices, planned were {len(indexes)}")
            ends = accumulate(own)
            written.append(
                [
                    WriteResult(index, length, _StorageInfo(name, end - length, length))
                    for index, length, end in zip(indexes, own, ends, strict=True)
                ]
            )
        memory = _Memory()
        try:
            _writer(memory).finish(dataclasses.replace(self._metadata), written)
            return memory.files[METADATA_NAME]
        except (KeyError, RuntimeError) as error:
            raise SaveBroken(f"writing {METADATA_NAME} failed: {error!r}") from error


class Loaded(NamedTuple):
    """The names of the tensors that have all their values now, and whether those are where and as they arrived."""

    names: list[str]
    as_it_arrived: bool


class ShardReading:
    """Which slices of a checkpoint this rank needs for `into`, and how each gets there.

    Both `metadata` and the slices are unpickled: they must be known to be what was saved. Whatever torch raises passes
    through.
    """

    def __init__(self, metadata: bytes, into: FlatState) -> None:
        """`into` gives names, types and shapes, and is filled by `load`."""
        self._into = into
        with _uncollected():
            found = cast("Metadata", pickle.loads(metadata))  # noqa: S301 verified by the caller
        self._planner = DefaultLoadPlanner()
        self._planner.set_up_planner(into, found, is_coordinator=True)  # pyright: ignore[reportUnknownMemberType] untyped dict
        plan = self._planner.finish_plan(self._planner.create_local_plan())
        self._items: dict[Place, list[ReadItem]] = {}
        for item in plan.items:
            stored: _StorageInfo = found.storage_data[item.storage_index]
            self._items.setdefault(Place(stored.relative_path, stored.offset, stored.length), []).append(item)
        self._apart: dict[Place, tuple[Apart, Tensor]] = {}
        self._missing, self._lock = Counter(item.dest_index.fqn for item in plan.items), threading.Lock()

    @property
    def values(self) -> list[Place]:
        """Where plain values lie, which are unpickled."""
        return [place for place, items in self._items.items() if items[0].type is LoadItemType.BYTE_IO]

    @property
    def tensors(self) -> list[Place]:
        """Where chunks of tensors lie."""
        return [place for place, items in self._items.items() if items[0].type is not LoadItemType.BYTE_IO]

    def aside(self, place: Place, head: memoryview) -> Apart | None:
        """Where the elements of a slice arrive, if it seems to hold all of one tensor in its order: in that tensor.

        `load` looks whether it does.
        """
        items, begin = self._items[place], elements_begin(head)
        if begin is None or begin > len(head) or len(items) != 1 or any(items[0].storage_offsets):
            return None
        target = self._planner.resolve_tensor(items[0])
        memory = _memory_of(target)
        if memory is None or not 0 <= place.length - begin - len(memory) <= len(head) <= begin + len(memory):
            return None
        apart = Apart(begin, memory)
        self._apart[place] = apart, target
        return apart

    def name(self, place: Place) -> str:
        """Whose elements, or whose value, lie there."""
        return self._items[place][0].dest_index.fqn

    def load(self, place: Place, body: memoryview) -> "Loaded":
        """Deserialise one slice into `into`, where nothing of `body` itself stays; several may be at it at once.

        What `aside` has named need not be in `body`.
        """
        plain = self._items[place][0].type is LoadItemType.BYTE_IO
        found: object = None if plain else tensor_in(body)
        if place in self._apart:
            apart, target = self._apart.pop(place)
            if _same_elements(found, target) and found.data_ptr() == _address(body) + apart.begin:
                return Loaded(self._completed(place), as_it_arrived=True)
            body[apart.begin : apart.begin + len(apart.memory)] = apart.memory
        if found is None:
            found = torch.load(cast("IO[bytes]", MemoryFile(body)), map_location="cpu", weights_only=True)
        for item in self._items[place]:
            if isinstance(found, Tensor):
                target = self._planner.resolve_tensor(item)
                target.copy_(narrow_tensor_by_index(found, item.storage_offsets, item.lengths))
            else:
                self._into[item.dest_index.fqn] = found
        return Loaded([] if plain else self._completed(place), as_it_arrived=False)

    def _completed(self, place: Place) -> list[str]:
        with self._lock:
            self._missing.subtract(item.dest_index.fqn for item in self._items[place])
            return [name for name in {item.dest_index.fqn for item in self._items[place]} if not self._missing[name]]


def read_shards(folder: Path, into: FlatState) -> None:
    """Fill `into` from a verified folder, without speaking to other ranks; whatever DCP raises passes through."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(into, storage_reader=FileSystemReader(folder), no_dist=True)  # pyright: ignore[reportUnknownMemberType]


class _Memory(FileSystem):
    """What DCP takes for a file system: a disk that is full must not stand in a save's way to the object store."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[IOBase]:
        stream = BytesIO() if "w" in mode else BytesIO(self.files[str(path)])
        yield stream
        if "w" in mode:
            self.files[str(path)] = stream.getvalue()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return suffix

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self.files[str(new_path)] = self.files.pop(str(path))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """There are no folders."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return str(path) in self.files

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        del self.files[str(path)]


def _writer(memory: _Memory) -> FileSystemWriter:
    # One thread: with more, DCP has reported success for a save that failed.
    writer = FileSystemWriter("", single_file_per_rank=True, sync_files=False, thread_count=1)
    writer.fs = memory
    return writer


def _memory_of(tensor: Tensor) -> memoryview | None:
    """The bytes of a tensor in the order of its elements; None where they do not lie so, in this process's memory."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return cast("Any", tensor.detach().flatten().view(torch.uint8).numpy()).data


def _same_elements(found: object, target: Tensor) -> TypeGuard[Tensor]:
    """Whether the bytes of the one are those of the other."""
    return (
        isinstance(found, Tensor)
        and (found.dtype, found.shape) == (target.dtype, target.shape)
        and found.is_contiguous()
    )


def _address(body: memoryview) -> int:
    return torch.frombuffer(body, dtype=torch.uint8).data_ptr()


def _object_name(plan: SavePlan) -> str:
    return f"{cast('_StoragePrefix', plan.storage_data).prefix}0{DEFAULT_SUFFIX}"


def _in_order(plan: SavePlan) -> list[WriteItem]:
    """In which order a rank writes its share: plain values first."""
    return sorted(plan.items, key=lambda item: item.type is not WriteItemType.BYTE_IO)


def _indexes(plan: SavePlan) -> list[MetadataIndex]:
    """Of what a rank writes, in its order. Names are the same objects for all ranks: pickle writes each but once."""
    return [dataclasses.replace(item.index, fqn=intern(item.index.fqn)) for item in _in_order(plan)]


def _write(data: Tensor | BytesIO, sink: Sink) -> None:
    if isinstance(data, BytesIO):
        sink.write(data.getbuffer())
    else:
        torch.save(_compact(data), cast("IO[bytes]", sink))


def _compact(tensor: Tensor) -> Tensor:
    """Without the rest of a larger storage of which the tensor is a view, for all of it would be saved."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor.detach() if whole else tensor.detach().clone()


@contextmanager
def _uncollected() -> Generator[None]:
    """Where millions of objects are made that all stay: Python would look through them for garbage again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _packed(plan: SavePlan) -> str:
    """Of a model of many layers a plan says nearly the same for each: it shrinks by a factor of twenty and more."""
    return base64.b64encode(zlib.compress(pickle.dumps(plan), level=1)).decode()


def _unpacked(texts: Sequence[str]) -> list[SavePlan]:
    """Plans that were packed. What they say of where a part lies, and how large it is, is in memory once for each."""
    known: dict[torch.Size, torch.Size] = {}

    def size(values: Sequence[int]) -> torch.Size:
        found = torch.Size(values)
        return known.setdefault(found, found)

    class Unpickler(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
            if (module_name, global_name) == ("torch", "Size"):
                return size
            return super().find_class(module_name, global_name)

    # From the ranks of this world, never from the object store.
    return [Unpickler(BytesIO(zlib.decompress(base64.b64decode(text)))).load() for text in texts]
