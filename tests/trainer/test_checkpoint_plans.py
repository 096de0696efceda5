"""The plans that all ranks tell each other before the first save, and the `.metadata` that is made of them."""

import gc
import pickle
from functools import partial

import pytest
import torch
from checkpoint_ranks import new_state
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from trimtab_trainer.checkpointing.shards import ShardLayout, _packed
from trimtab_trainer.errors import SaveBroken


def sharded_plans(ranks: int) -> list[str]:
    """As all ranks tell them that have four rows of an embedding each."""
    return [_packed(_sharded_plan(rank, ranks)) for rank in range(ranks)]


def _sharded_plan(rank: int, ranks: int) -> SavePlan:
    offsets = torch.Size([4 * rank, 0])
    chunk = ChunkStorageMetadata(offsets=offsets, sizes=torch.Size([4, 8]))
    data = TensorWriteData(
        chunk=chunk, properties=TensorProperties(dtype=torch.float32), size=torch.Size([4 * ranks, 8])
    )
    item = WriteItem(index=MetadataIndex("embedding", offsets), type=WriteItemType.SHARD, tensor_data=data)
    return SavePlan([item], planner_data={"embedding": ("embedding",)})


def test_metadata_says_where_the_slices_of_all_ranks_lie_and_once_what_they_have_in_common() -> None:
    layout = ShardLayout({}, rank=0, exchange=lambda _: sharded_plans(4))
    found: Metadata = pickle.loads(layout.metadata([[100 + rank] for rank in range(4)]))
    storage = {index.offset: stored for index, stored in found.storage_data.items()}
    assert {offset: (stored.relative_path, stored.offset, stored.length) for offset, stored in storage.items()} == {
        (4 * rank, 0): (f"__{rank}_0.distcp", 0, 100 + rank) for rank in range(4)
    }
    described = found.state_dict_metadata["embedding"]
    assert isinstance(described, TensorStorageMetadata)
    assert len({id(chunk.sizes) for chunk in described.chunks}) == 1
    assert len({id(index.fqn) for index in found.storage_data}) == 1


def test_a_rank_other_than_the_first_keeps_no_plan_but_its_own() -> None:
    kept = {ranks: ShardLayout({}, rank=2, exchange=lambda _, ranks=ranks: sharded_plans(ranks)) for ranks in (4, 64)}
    assert kept[64].object_name == "__2_0.distcp"
    assert len(pickle.dumps(vars(kept[64]))) < 1.2 * len(pickle.dumps(vars(kept[4])))


def test_no_garbage_is_looked_for_while_the_plans_of_all_ranks_are_read(request: pytest.FixtureRequest) -> None:
    collections: list[str] = []

    def seen(phase: str, _info: object) -> None:
        collections.append(phase)

    def exchange(_own: str) -> list[str]:
        plans = sharded_plans(200)
        collections.clear()
        return plans

    request.addfinalizer(partial(gc.set_threshold, *gc.get_threshold()))
    gc.set_threshold(20)
    gc.callbacks.append(seen)
    try:
        layout = ShardLayout({}, rank=0, exchange=exchange)
        assert len(collections) < 10
    finally:
        gc.callbacks.remove(seen)
    assert gc.isenabled()
    assert layout.metadata([[100]] * 200)
    with pytest.raises(ValueError, match="invalid fill tensor-volume"):
        ShardLayout({}, rank=0, exchange=lambda _: sharded_plans(4)[:3])
    assert gc.isenabled()


def test_a_rank_that_wrote_other_slices_than_were_planned_makes_no_metadata() -> None:
    flat = new_state(7).flat()
    layout = ShardLayout(flat, rank=0, exchange=lambda text: [text])
    with pytest.raises(SaveBroken, match=rf"__0_0.distcp has {len(flat) - 1} slices, planned were {len(flat)}"):
        layout.metadata([[1] * (len(flat) - 1)])
    assert layout.metadata([[1] * len(flat)])
