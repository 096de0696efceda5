"""How large a checkpoint's records become in a world of a thousand ranks, and what rank 0 has to do for them.

`python -m benchmarks.many_ranks`. Every rank has a part of every tensor, as when the state is sharded. The tensors
themselves are left out: the ranks' plans, shares and indexes are made up, and go through the trainer's own code and a
real coordination store in one process.
"""

import argparse
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Size
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] it is documented as here
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from trimtab_contract.checkpoints import (
    CheckpointManifest,
    EvaluationProbe,
    FiniteScan,
    StoredObject,
    StoredSlice,
    TensorDescription,
    decode_manifest,
    encode_manifest,
    sha256_hex,
)
from trimtab_contract.slice_index import SliceIndex, decode_index, encode_index, index_name
from trimtab_trainer.checkpointing.coordination import Board
from trimtab_trainer.checkpointing.saving import _Share  # pyright: ignore[reportPrivateUsage] what a rank tells rank 0
from trimtab_trainer.checkpointing.shards import (
    ShardLayout,
    _packed,  # pyright: ignore[reportPrivateUsage] how a rank tells the others its plan
)

from benchmarks.figures import Figure, Measurement, write

RANKS, TENSORS, SAVES = 1024, 600, 5
ROWS, COLUMNS = 4, 4096
SLICE_BYTES = ROWS * COLUMNS * 4 + 1500
PARTS = ("query", "key", "value", "out", "up", "down", "attention_norm", "mlp_norm")
KIB, MEGABYTE = 1024, 1e6


@dataclass(frozen=True)
class World:
    """So many ranks that share so many tensors."""

    ranks: int
    tensors: int

    @property
    def names(self) -> list[str]:
        """As those of a model and its momentum."""
        return [
            f"{kind}.blocks.{number // len(PARTS)}.{PARTS[number % len(PARTS)]}.weight"
            for kind in ("model", "optimizer.momentum")
            for number in range(self.tensors // 2)
        ]

    def plan(self, rank: int) -> SavePlan:
        """What a rank has to write."""
        properties, whole = TensorProperties(dtype=torch.float32), Size([ROWS * self.ranks, COLUMNS])

        def item(name: str) -> WriteItem:
            offsets = Size([ROWS * rank, 0])
            chunk = ChunkStorageMetadata(offsets=offsets, sizes=Size([ROWS, COLUMNS]))
            data = TensorWriteData(chunk=chunk, properties=properties, size=whole)
            return WriteItem(index=MetadataIndex(name, offsets), type=WriteItemType.SHARD, tensor_data=data)

        return SavePlan([item(name) for name in self.names], planner_data={name: (name,) for name in self.names})

    def slices(self, rank: int) -> tuple[StoredSlice, ...]:
        """Those of a rank's share."""
        return tuple(
            StoredSlice(
                name=name,
                offset=number * SLICE_BYTES,
                length=SLICE_BYTES,
                sha256=sha256_hex(f"{rank} {number}".encode()),
            )
            for number, name in enumerate(self.names)
        )

    def share(self, rank: int, index: bytes) -> _Share:
        """What a rank tells rank 0."""
        name, size, sha256 = f"__{rank}_0.distcp", SLICE_BYTES * self.tensors, sha256_hex(b"")
        objects = {
            name: StoredObject(size=size, sha256=sha256, rank=rank, index=index_name(name)),
            index_name(name): StoredObject(size=len(index), sha256=sha256, rank=rank),
            f"rank-{rank:06d}.json": StoredObject(size=20_000, sha256=sha256, rank=rank),
        }
        return _Share(objects=objects, lengths=(SLICE_BYTES,) * self.tensors)

    def manifest(self, shares: Sequence[_Share]) -> CheckpointManifest:
        """What rank 0 makes of the shares."""
        shape, sha256 = (ROWS * self.ranks, COLUMNS), sha256_hex(b"")
        return CheckpointManifest(
            run="team/run/0b7c",
            attempt=1,
            step=1000,
            world_size=self.ranks,
            next_window=1000,
            skip=(),
            lr=None,
            learning_rate=1e-3,
            optimizer_steps=1000,
            objects={name: stored for share in shares for name, stored in share.objects.items()},
            tensors={name: TensorDescription(dtype="float32", shape=shape) for name in self.names},
            replica_checksum=sha256[:16],
            replicas_agree=True,
            finite=FiniteScan(nonfinite=0),
            evaluation=EvaluationProbe(
                window=1000,
                window_sha256=sha256,
                losses=(2.345678901234,) * self.ranks,
                processors=("NVIDIA H100 80GB HBM3",) * self.ranks,
            ),
            config_sha256=sha256,
            code_sha256=sha256,
            versions={},
            trigger="Periodic",
            saved_at=1.0,
        )


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--tensors", type=int, default=TENSORS)
    arguments = parser.parse_args()
    world = World(arguments.ranks, arguments.tensors)
    write(
        "many_ranks",
        Measurement(
            title="Checkpoints of many ranks",
            about=(
                f"{world.ranks} ranks, each with a part of each of {world.tensors} tensors. The plans, which all ranks "
                "tell each other before the first save, and what each tells rank 0 at every save; then what rank 0 "
                "does with it, and what it stores."
            ),
            figures=_figures(world),
        ),
    )


def _figures(world: World) -> tuple[Figure, ...]:
    plans = [_packed(world.plan(rank)) for rank in range(world.ranks)]
    began = time.perf_counter()
    layout = ShardLayout({}, rank=0, exchange=lambda _: plans)
    agreed = time.perf_counter() - began
    name, slices = "__1_0.distcp", world.slices(1)
    index = encode_index(SliceIndex(name=name, sha256=sha256_hex(b""), slices=slices))
    told = [msgspec.json.encode(world.share(rank, index)) for rank in range(world.ranks)]
    board = Board(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), threading.Event())
    for rank, text in enumerate(told):
        board.announce(f"objects/{rank}", text)

    made: list[float] = []
    metadata = manifest = b""
    for _ in range(SAVES):
        began = time.perf_counter()
        bodies = board.wait([f"objects/{rank}" for rank in range(world.ranks)], time.monotonic() + 60)
        shares = [msgspec.json.decode(body, type=_Share) for body in bodies]
        metadata = layout.metadata([share.lengths for share in shares])
        manifest = encode_manifest(world.manifest(shares))
        made.append(time.perf_counter() - began)

    assert decode_index(index, name, decode_manifest(manifest).objects[name]) == slices
    inside = sum(len(msgspec.json.encode(world.slices(rank))) for rank in range(world.ranks))
    return (
        Figure("manifest, beside one that lists all slices itself", (len(manifest) / (len(manifest) + inside),)),
        Figure("manifest", (len(manifest) / KIB,), "KiB"),
        Figure("index of one rank", (len(index) / KIB,), "KiB"),
        Figure("`.metadata`", (len(metadata) / MEGABYTE,), "MB"),
        Figure("plan of one rank, packed", (len(plans[1]) / KIB,), "KiB"),
        Figure("what one rank tells rank 0 of its share", (len(told[1]) / KIB,), "KiB"),
        Figure("agreeing on the plans, once, on every rank", (agreed,), "s"),
        Figure("from the last share to the manifest, on rank 0", tuple(made), "s"),
    )


if __name__ == "__main__":
    main()
