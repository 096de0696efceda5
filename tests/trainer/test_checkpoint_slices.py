"""Slices of a checkpoint: each is hashed by itself, only those needed are read, and a damaged one is named."""

import threading
import time
from pathlib import Path

import msgspec
from breaking_store import BreakingStore
from checkpoint_of_two import INDEX, OTHER_INDEX, SHARD, ranks, reference, refusal, store
from checkpoint_ranks import Ranks, image, new_state
from stored_slices import manifest_of, of_schema, prefix_of, put_schema_2, replaced, rewritten, slices_of
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.checkpointing import RestoreFailure
from trimtab_trainer.checkpointing.reading import Place, VerifiedReader
from trimtab_trainer.checkpointing.shards import METADATA_NAME, ShardReading, read_shards
from trimtab_trainer.checkpointing.staging import StagingRoom
from trimtab_trainer.checkpointing.state import tensors_of

__all__ = ["ranks", "reference", "store"]


def test_slices_cover_their_object_hash_as_told_and_hold_every_tensor(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    manifest = manifest_of(store, reference)
    named: set[str] = set()
    for name, stored in manifest.objects.items():
        body, end = store.get(f"{prefix_of(reference)}{name}"), 0
        assert sha256_hex(body) == stored.sha256
        for part in slices_of(store, reference, name):
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
    damaged = slices_of(store, reference, SHARD)[-1]
    body[damaged.offset + damaged.length // 2] ^= 4
    store.put(key, bytes(body))
    told = refusal(ranks, reference)
    assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_DAMAGED, key)
    assert damaged.name in told.detail


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
    assert {INDEX, OTHER_INDEX} <= read.keys()


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
    reader.learn_slices(place.object_name for place in reading.tensors)
    store.read.clear()
    reader.read(reading.tensors, reading.load)
    expected = new_state(7).flat()[name]
    assert flat[name].numpy().tobytes() == expected.numpy().tobytes()
    lengths = [part.length for one in objects for part in slices_of(store, reference, one) if part.name == name]
    assert [place.length for place in store.read] == lengths


def test_a_request_that_breaks_off_goes_on_with_the_slice_it_broke_off_in(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    objects = manifest_of(store, reference).objects
    reader = VerifiedReader(
        store, prefix_of(reference), objects, time.monotonic() + 60, threading.Event(), lambda: None
    )
    slices = slices_of(store, reference, SHARD)
    places = [Place(SHARD, part.offset, part.length) for part in slices]
    reader.learn_slices([SHARD])
    handed: dict[Place, str] = {}
    store.read.clear()
    store.breaks_after = places[2].offset + places[2].length // 2
    reader.read(places, lambda place, body: handed.setdefault(place, sha256_hex(bytes(body))))
    assert list(handed) == places
    assert list(handed.values()) == [part.sha256 for part in slices]
    size = objects[SHARD].size
    assert store.read == [Place(SHARD, 0, size), Place(SHARD, places[2].offset, size - places[2].offset)]


def test_a_checkpoint_of_the_first_schema_is_restored_and_verified_whole(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    first = replaced(store, reference, of_schema(manifest_of(store, reference), 1))
    states = [new_state(8), new_state(8)]
    ranks.restore(first, states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2
    key = f"{prefix_of(reference)}{SHARD}"
    store.put(key, store.get(key)[:-1] + b"?")
    assert refusal(ranks, first).object_name == key


def test_a_checkpoint_that_a_version_of_schema_2_saved_is_restored_and_each_slice_is_verified(
    ranks: Ranks, store: BreakingStore
) -> None:
    second = put_schema_2(store, ranks.root)
    states = [new_state(8), new_state(8)]
    ranks.restore(second, states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2
    manifest = manifest_of(store, second)
    damaged = manifest.objects[SHARD].slices[2]
    key = f"{prefix_of(second)}{SHARD}"
    body = bytearray(store.get(key))
    body[damaged.offset + damaged.length // 2] ^= 4
    store.put(key, bytes(body))
    told = refusal(ranks, second)
    assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_DAMAGED, key)
    assert damaged.name in told.detail


def test_slices_of_schema_2_must_cover_their_object(ranks: Ranks, store: BreakingStore) -> None:
    second = put_schema_2(store, ranks.root)
    manifest = manifest_of(store, second)
    shard = manifest.objects[SHARD]
    fewer = {**manifest.objects, SHARD: msgspec.structs.replace(shard, slices=shard.slices[:-1])}
    forged = rewritten(store, second, objects=fewer)
    told = refusal(ranks, forged)
    assert (told.reason, told.object_name) == (RestoreFailure.MANIFEST_INCONSISTENT, f"{prefix_of(second)}{SHARD}")
    assert "its slices end at byte" in told.detail


def test_a_manifest_of_a_newer_schema_is_refused_and_both_versions_are_named(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    newer = replaced(store, reference, of_schema(manifest_of(store, reference), 4))
    told = refusal(ranks, newer)
    assert told.reason == RestoreFailure.NEWER_SCHEMA, "whoever wrote it knew more: nothing is damaged"
    assert "schema 4" in told.detail
    assert "schemas 1 to 3" in told.detail
