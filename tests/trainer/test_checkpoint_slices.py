"""Slices of a checkpoint: each is hashed by itself, only those needed are read, and a damaged one is named."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from breaking_store import BreakingStore
from checkpoint_ranks import Ranks, image, new_state
from object_store_fixture import ObjectStoreServer
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import RestoreFailure
from trimtab_trainer.checkpointing.reading import Place, VerifiedReader
from trimtab_trainer.checkpointing.shards import METADATA_NAME, ShardReading, read_shards
from trimtab_trainer.checkpointing.staging import StagingRoom
from trimtab_trainer.checkpointing.state import tensors_of
from trimtab_trainer.errors import RestoreFailed

SHARD = "__1_0.distcp"


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> BreakingStore:
    return BreakingStore(object_store, object_store.new_bucket())


@pytest.fixture(scope="module")
def ranks(store: BreakingStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    opened = Ranks(store, tmp_path_factory.mktemp("two"))
    yield opened
    opened.close()


@pytest.fixture
def reference(ranks: Ranks) -> CheckpointReference:
    return ranks.saved([new_state(7), new_state(7)], 30)


def prefix_of(reference: CheckpointReference) -> str:
    return reference.key.removesuffix(keys.MANIFEST_NAME)


def manifest_of(store: ObjectStore, reference: CheckpointReference) -> CheckpointManifest:
    return decode_manifest(store.get(reference.key))


def replaced(store: ObjectStore, reference: CheckpointReference, body: bytes) -> CheckpointReference:
    """Another manifest under the same key, and the reference that fits it."""
    store.put(reference.key, body)
    return msgspec.structs.replace(reference, sha256=sha256_hex(body))


def failure(ranks: Ranks, reference: CheckpointReference) -> RestoreFailed:
    """Restore over another state, which every rank must refuse and keep what it has."""
    states = [new_state(8), new_state(8)]
    outcomes = ranks.restore(reference, states)
    assert all(isinstance(outcome, RestoreFailed) for outcome in outcomes), outcomes
    assert [image(state) for state in states] == [image(new_state(8))] * 2
    return outcomes[0]


def test_slices_cover_their_object_hash_as_told_and_hold_every_tensor(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    manifest = manifest_of(store, reference)
    named: set[str] = set()
    for name, stored in manifest.objects.items():
        body, end = store.get(f"{prefix_of(reference)}{name}"), 0
        assert sha256_hex(body) == stored.sha256
        for part in stored.slices:
            assert part.offset == end
            end += part.length
            assert sha256_hex(body[part.offset : end]) == part.sha256
            named.add(part.name)
        assert end == (stored.size if name.endswith(".distcp") else 0)
    assert named >= manifest.tensors.keys()


def test_a_checkpoint_is_one_that_dcp_itself_reads(
    store: BreakingStore, reference: CheckpointReference, tmp_path: Path
) -> None:
    for key in store.list(prefix_of(reference)):
        store.get_to(key, tmp_path / key.rpartition("/")[2])
    flat = StagingRoom().copy(new_state(8).flat())
    read_shards(tmp_path, flat)
    expected = tensors_of(new_state(7).flat())
    assert {name: tensor.numpy().tobytes() for name, tensor in tensors_of(flat).items()} == {
        name: tensor.numpy().tobytes() for name, tensor in expected.items()
    }


def test_a_damaged_slice_is_named_with_its_object(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    key = f"{prefix_of(reference)}{SHARD}"
    body = bytearray(store.get(key))
    damaged = manifest_of(store, reference).objects[SHARD].slices[-1]
    body[damaged.offset + damaged.length // 2] ^= 4
    store.put(key, bytes(body))
    told = failure(ranks, reference)
    assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_DAMAGED, key)
    assert damaged.name in told.detail


def test_a_slice_that_the_manifest_does_not_list_is_not_read(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    manifest = manifest_of(store, reference)
    shard = manifest.objects[SHARD]
    fewer = {**manifest.objects, SHARD: msgspec.structs.replace(shard, slices=shard.slices[:-1])}
    forged = replaced(store, reference, encode_manifest(msgspec.structs.replace(manifest, objects=fewer)))
    assert failure(ranks, forged).reason == RestoreFailure.MANIFEST_INCONSISTENT


def test_a_smaller_world_reads_every_shard_once_and_nothing_of_ranks_that_are_gone(
    store: BreakingStore, reference: CheckpointReference, tmp_path: Path
) -> None:
    alone = Ranks(store, tmp_path, world_size=1)
    try:
        state = new_state(8)
        store.read.clear()
        alone.restore(reference, [state])
    finally:
        alone.close()
    assert image(state) == image(new_state(7))
    objects = manifest_of(store, reference).objects
    read = {name: sum(place.length for place in store.read if place.object_name == name) for name in objects}
    assert read == {name: 0 if name == "rank-000001.json" else stored.size for name, stored in objects.items()}


def test_a_rank_that_needs_one_tensor_reads_only_its_slices(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    objects = manifest_of(store, reference).objects
    reader = VerifiedReader(
        store, prefix_of(reference), objects, time.monotonic() + 60, threading.Event(), lambda: None
    )
    name = "model.head.weight"
    flat = {name: StagingRoom().copy(new_state(8).flat())[name]}
    reading = ShardReading(store.get(f"{prefix_of(reference)}{METADATA_NAME}"), flat)
    store.read.clear()
    reader.read(reading.tensors, reading.load)
    expected = new_state(7).flat()[name]
    assert flat[name].numpy().tobytes() == expected.numpy().tobytes()
    lengths = [part.length for stored in objects.values() for part in stored.slices if part.name == name]
    assert [place.length for place in store.read] == lengths


def test_a_request_that_breaks_off_goes_on_with_the_slice_it_broke_off_in(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    objects = manifest_of(store, reference).objects
    reader = VerifiedReader(
        store, prefix_of(reference), objects, time.monotonic() + 60, threading.Event(), lambda: None
    )
    places = [Place(SHARD, part.offset, part.length) for part in objects[SHARD].slices]
    handed: dict[Place, str] = {}
    store.read.clear()
    store.breaks_after = places[2].offset + places[2].length // 2
    reader.read(places, lambda place, body: handed.setdefault(place, sha256_hex(bytes(body))))
    assert list(handed) == places
    assert list(handed.values()) == [part.sha256 for part in objects[SHARD].slices]
    size = objects[SHARD].size
    assert store.read == [Place(SHARD, 0, size), Place(SHARD, places[2].offset, size - places[2].offset)]


def without_slices(manifest: CheckpointManifest, schema: int) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(encode_manifest(manifest))
    for stored in fields["objects"].values():
        del stored["slices"]
    return msgspec.json.encode({**fields, "schema": schema})


def test_a_checkpoint_of_the_first_schema_is_restored_and_verified_whole(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    first = replaced(store, reference, without_slices(manifest_of(store, reference), 1))
    states = [new_state(8), new_state(8)]
    ranks.restore(first, states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2
    key = f"{prefix_of(reference)}{SHARD}"
    store.put(key, store.get(key)[:-1] + b"?")
    assert failure(ranks, first).object_name == key


def test_a_manifest_of_a_newer_schema_is_refused_and_both_versions_are_named(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    newer = replaced(store, reference, without_slices(manifest_of(store, reference), 3))
    told = failure(ranks, newer)
    assert told.reason == RestoreFailure.NEWER_SCHEMA, "whoever wrote it knew more: nothing is damaged"
    assert "schema 3" in told.detail
    assert "schemas 1 to 2" in told.detail
