"""Large tensors arrive where they belong, beside the live state; however they were stored, they are what was saved."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from breaking_store import BreakingStore
from checkpoint_of_two import store
from checkpoint_ranks import Ranks, image, new_state
from stored_slices import slices_of
from torch import Tensor
from trimtab_contract import keys
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import RestoreFailure
from trimtab_trainer.checkpointing.reading import Place, VerifiedReader
from trimtab_trainer.checkpointing.shards import ShardLayout, ShardReading
from trimtab_trainer.checkpointing.uploading import ObjectUpload, Pace
from trimtab_trainer.errors import RestoreFailed
from trimtab_trainer.model import TransformerConfig

__all__ = ["store"]

SHAPE = (96, 64)
WIDE = TransformerConfig(width=64, layers=1, heads=2, sequence=8)
"""Large enough for most of its tensors to arrive apart."""


class Shard:
    """One tensor as a checkpoint stores it, and what is needed to read it into another one."""

    def __init__(self, store: ObjectStore, name: str, saved: Tensor) -> None:
        flat, never = {"t": saved}, threading.Event()
        layout = ShardLayout(flat, rank=0, exchange=lambda text: [text])
        deadline = time.monotonic() + 60
        pace = Pace(None, never)
        key = f"{name}/{layout.object_name}"
        with ObjectUpload(store, key, pace=pace, deadline=deadline, stopped=never) as upload:
            layout.write(flat, upload)
        self._metadata = layout.metadata([[part.length for part in upload.slices]])
        stored = msgspec.structs.replace(upload.stored(0), slices=upload.slices)
        self._reader = VerifiedReader(store, f"{name}/", {layout.object_name: stored}, deadline, never, lambda: None)
        self._reader.learn_slices([layout.object_name])

    def read(self, into: Tensor) -> bytes:
        """Fill a tensor; returns the bytes that it was loaded with, beside what arrived in it."""
        reading, bodies = ShardReading(self._metadata, {"t": into}), list[bytes]()

        def load(place: Place, body: memoryview) -> None:
            assert reading.load(place, body).names == ["t"]
            bodies.append(bytes(body))

        self._reader.read(reading.tensors, load, reading.aside)
        (body,) = bodies
        return body


def noise() -> Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(3))


def test_the_elements_of_a_large_tensor_arrive_in_it_and_nowhere_else(store: BreakingStore) -> None:
    saved, found = noise(), torch.zeros(SHAPE)
    body = Shard(store, "large", saved).read(found)
    assert torch.equal(found, saved)
    rest = saved.numpy().tobytes()[4096:]
    assert rest not in body
    assert bytes(len(rest)) in body


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.int8])
def test_elements_of_every_type_arrive_bit_for_bit(store: BreakingStore, dtype: torch.dtype) -> None:
    saved, found = (noise() * 2).to(dtype), torch.zeros(SHAPE, dtype=dtype)
    Shard(store, f"type/{dtype}", saved).read(found)
    assert torch.equal(found, saved)


def transposed() -> Tensor:
    return torch.rand(SHAPE[::-1]).T


@pytest.mark.parametrize(
    ("save", "room"),
    [
        (transposed, lambda: torch.zeros(SHAPE)),
        (noise, lambda: torch.zeros(SHAPE[::-1]).T),
        (noise, lambda: torch.zeros(SHAPE, dtype=torch.int32)),
        (lambda: (noise() * 100).to(torch.complex64), lambda: torch.zeros(SHAPE, dtype=torch.complex64)),
        (lambda: torch.nn.Parameter(noise()), lambda: torch.zeros(SHAPE)),
    ],
    ids=["stored column by column", "wanted column by column", "wanted as integers", "complex", "a parameter"],
)
def test_what_lies_otherwise_than_it_is_wanted_is_copied(
    store: BreakingStore, request: pytest.FixtureRequest, save: Callable[[], Tensor], room: Callable[[], Tensor]
) -> None:
    saved, found = save(), room()
    Shard(store, f"otherwise/{request.node.callspec.id}", saved).read(found)
    assert torch.equal(found, saved.detach().to(found.dtype))


def test_a_request_that_breaks_off_in_the_midst_of_a_tensor_fills_it_again(store: BreakingStore) -> None:
    saved, found = noise(), torch.zeros(SHAPE)
    shard = Shard(store, "broken", saved)
    store.breaks_after = 12_000
    shard.read(found)
    assert store.breaks_after is None
    assert torch.equal(found, saved)


def test_a_bit_that_flipped_in_a_large_tensor_is_found_and_the_live_state_stays(
    store: BreakingStore, tmp_path: Path
) -> None:
    ranks = Ranks(store, tmp_path)
    try:
        reference = ranks.saved([new_state(7, WIDE), new_state(7, WIDE)], 30)
        key = f"{reference.key.removesuffix(keys.MANIFEST_NAME)}__1_0.distcp"
        largest = max(slices_of(store, reference, "__1_0.distcp"), key=lambda part: part.length)
        assert largest.length > 16_384
        body = bytearray(store.get(key))
        body[largest.offset + largest.length // 2] ^= 4
        store.put(key, bytes(body))
        states = [new_state(8, WIDE), new_state(8, WIDE)]
        for told in ranks.restore(reference, states):
            assert isinstance(told, RestoreFailed)
            assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_DAMAGED, key)
            assert largest.name in told.detail
        assert [image(state) for state in states] == [image(new_state(8, WIDE))] * 2
        body[largest.offset + largest.length // 2] ^= 4
        store.put(key, bytes(body))
        assert not any(isinstance(outcome, Exception) for outcome in ranks.restore(reference, states))
        assert [image(state) for state in states] == [image(new_state(7, WIDE))] * 2
    finally:
        ranks.close()
