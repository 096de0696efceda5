"""Shards in a local folder, written and read with torch.distributed.checkpoint (DCP).

DCP detects no damage and unpickles: read only a folder whose every file was verified whole.
"""

import base64
import dataclasses
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load  # pyright: ignore[reportUnknownVariableType] untyped path
from torch.distributed.checkpoint.storage import WriteResult

from trimtab_trainer.checkpointing.state import FlatState
from trimtab_trainer.errors import SaveBroken

METADATA_NAME = ".metadata"


class ShardLayout:
    """Which rank writes which tensor: agreed on once, for names, types and shapes do not change during a run."""

    def __init__(self, flat: FlatState, folder: Path, *, rank: int, exchange: Callable[[str], list[str]]) -> None:
        """Agree with all ranks. `exchange` returns the texts of all ranks in rank order."""
        self._rank = rank
        writer, planner = _writer(folder), DefaultSavePlanner()
        writer.set_up_storage_writer(rank == 0)
        planner.set_up_planner(flat, writer.storage_meta(), rank == 0)  # pyright: ignore[reportUnknownMemberType] untyped dict
        local = writer.prepare_local_plan(planner.create_local_plan())
        # Plans come from the ranks of this world, over its own process group.
        plans = cast("list[SavePlan]", [_unpacked(text) for text in exchange(_packed(local))])
        plans, self._metadata = planner.create_global_plan(plans)
        self._plan = writer.prepare_global_plan(plans)[rank]
        folder.rmdir()

    def write(self, flat: FlatState, folder: Path) -> str:
        """Write this rank's share of a copy; returns what rank 0 needs for `finish`. Raises SaveBroken."""
        writer, planner = _writer(folder), DefaultSavePlanner()
        writer.set_up_storage_writer(self._rank == 0)
        planner.set_up_planner(flat, writer.storage_meta(), self._rank == 0)  # pyright: ignore[reportUnknownMemberType] untyped dict
        folder.mkdir(parents=True, exist_ok=True)
        try:
            written = writer.write_data(planner.finish_plan(self._plan), planner)
            written.wait()
            return _packed(written.value())
        except (OSError, RuntimeError) as error:
            raise SaveBroken(f"writing shards to {folder} failed: {error}") from error

    def finish(self, folder: Path, results: list[str]) -> None:
        """On rank 0: write `.metadata` from what every rank's `write` returned. Raises SaveBroken.

        DCP has reported success for shards that were never written, so the results are counted.
        """
        written = cast("list[list[WriteResult]]", [_unpacked(text) for text in results])
        found = {result.index.fqn for share in written for result in share}
        missing = self._metadata.state_dict_metadata.keys() - found
        if missing:
            raise SaveBroken(f"no shard holds {', '.join(sorted(missing))}")
        try:
            _writer(folder).finish(dataclasses.replace(self._metadata), written)
        except (OSError, RuntimeError) as error:
            raise SaveBroken(f"writing {METADATA_NAME} to {folder} failed: {error}") from error


def read_shards(folder: Path, into: FlatState) -> None:
    """Fill `into` from a verified folder, without speaking to other ranks; whatever DCP raises passes through."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(into, storage_reader=FileSystemReader(folder), no_dist=True)  # pyright: ignore[reportUnknownMemberType]


def _writer(folder: Path) -> FileSystemWriter:
    # One thread: with more, DCP has reported success for a save that failed. No fsync: the folder is only a stop on
    # the way to the object store.
    return FileSystemWriter(folder, single_file_per_rank=True, sync_files=False, thread_count=1)


def _packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301 from a rank of this world, never from the object store
