"""The index of an object's slices: an object itself, verified whole, and read only for what this rank reads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import pytest
from breaking_store import BreakingStore
from checkpoint_of_two import INDEX, OTHER, OTHER_INDEX, SHARD, ranks, reference, refusal, store
from checkpoint_ranks import Ranks, image, new_state
from object_store_fixture import ObjectStoreServer
from stored_slices import manifest_of, prefix_of, rewritten, slices_of, with_index
from trimtab_contract.checkpoints import StoredObject, StoredSlice
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.slice_index import SliceIndex, encode_index
from trimtab_trainer.checkpointing import RestoreFailure, restoring
from trimtab_trainer.checkpointing.coordination import Board
from trimtab_trainer.checkpointing.reading import Place
from trimtab_trainer.checkpointing.shards import METADATA_NAME
from trimtab_trainer.errors import RestoreFailed

__all__ = ["ranks", "reference", "store"]


def failure(ranks: Ranks, store: BreakingStore, reference: CheckpointReference) -> RestoreFailed:
    """Restore over another state: every rank refuses, keeps what it has, and has read nothing of a tensor."""
    store.read.clear()
    told = refusal(ranks, reference)
    read = [place for place in store.read if place.object_name.endswith(".distcp")]
    assert all(place.object_name == SHARD and place.offset + place.length <= VALUES_END for place in read)
    return told


VALUES_END = 2522
"""The byte of SHARD at which the plain values end, which lie before all tensors; none are in the other one."""


def test_the_manifest_says_which_objects_have_plain_values_and_they_lie_where_these_tests_think(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    manifest = manifest_of(store, reference)
    values = [part for part in slices_of(store, reference, SHARD) if part.name not in manifest.tensors]
    assert values[-1].offset + values[-1].length == VALUES_END
    assert all(part.name in manifest.tensors for part in slices_of(store, reference, OTHER))
    assert {name: one.values for name, one in manifest.objects.items() if one.values} == {SHARD: len(values)}


def test_all_that_is_pickled_is_verified_before_the_first_of_it_is_unpickled(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    key = f"{prefix_of(reference)}{SHARD}"
    body = bytearray(store.get(key))
    body[VALUES_END - 1] ^= 1
    store.put(key, bytes(body))
    with patch.object(restoring, "ShardReading", side_effect=AssertionError("unpickled")) as unpickled:
        told = failure(ranks, store, reference)
    assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_DAMAGED, key)
    unpickled.assert_not_called()


def test_a_manifest_that_does_not_tell_of_plain_values_is_inconsistent(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    manifest = manifest_of(store, reference)
    silent = {name: msgspec.structs.replace(one, values=0) for name, one in manifest.objects.items()}
    told = failure(ranks, store, rewritten(store, reference, objects=silent))
    assert told.reason == RestoreFailure.MANIFEST_INCONSISTENT
    assert "plain values that the manifest does not tell of" in told.detail


def test_a_manifest_lists_no_slices_and_each_shard_has_an_index_of_its_own_rank(
    store: BreakingStore, reference: CheckpointReference
) -> None:
    objects = manifest_of(store, reference).objects
    assert {name: stored.index for name, stored in objects.items() if stored.index} == {
        SHARD: INDEX,
        OTHER: OTHER_INDEX,
    }
    assert [objects[name].rank for name in (OTHER_INDEX, INDEX)] == [0, 1]
    assert b"slices" not in store.get(reference.key)
    assert {f"{prefix_of(reference)}{name}" for name in objects} == set(store.list(prefix_of(reference))) - {
        reference.key
    }


def test_what_a_rank_tells_of_its_share_has_no_more_of_a_slice_than_its_length(
    ranks: Ranks, store: BreakingStore
) -> None:
    told: dict[str, bytes] = {}
    announce = Board.announce

    def heard(board: Board, key: str, value: bytes) -> None:
        told[key] = value
        announce(board, key, value)

    with patch.object(Board, "announce", heard):
        reference = ranks.saved([new_state(7), new_state(7)], 40)
    for rank, name in enumerate((OTHER, SHARD)):
        slices = slices_of(store, reference, name)
        (share,) = (value for key, value in told.items() if key.endswith(f"objects/{rank}"))
        lengths = msgspec.json.encode([part.length for part in slices])
        assert lengths in share
        assert not [part.name for part in slices if part.name.encode() in share or part.sha256.encode() in share]


def _flipped(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:]


@pytest.mark.parametrize("name", [INDEX, OTHER_INDEX])
@pytest.mark.parametrize("damage", [_flipped, lambda body: body[:-1], lambda _: b"", lambda body: body + b" "])
def test_a_damaged_index_is_named_before_anything_is_read_by_slice(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference, name: str, damage: Callable[[bytes], bytes]
) -> None:
    key = f"{prefix_of(reference)}{name}"
    store.put(key, damage(store.get(key)))
    told = failure(ranks, store, reference)
    assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_DAMAGED, key)


def test_an_index_that_is_gone_is_named(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference, object_store: ObjectStoreServer
) -> None:
    key = f"{prefix_of(reference)}{INDEX}"
    object_store.client().delete_object(Bucket=store.bucket, Key=key)
    told = failure(ranks, store, reference)
    assert (told.reason, told.object_name) == (RestoreFailure.OBJECT_MISSING, key)


def test_the_index_of_another_rank_or_step_in_its_place_is_damage(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    prefix, later = prefix_of(reference), ranks.saved([new_state(9), new_state(9)], 50)
    for other in (f"{prefix}{OTHER_INDEX}", f"{prefix_of(later)}{INDEX}"):
        store.put(f"{prefix}{INDEX}", store.get(other))
        assert failure(ranks, store, reference).reason == RestoreFailure.OBJECT_DAMAGED


class Forgery(NamedTuple):
    """An index that says otherwise of an object, with all hashes as they should be, and why it is refused."""

    slices: Callable[[Sequence[StoredSlice]], Sequence[StoredSlice]]
    told: str


def _moved(part: StoredSlice, offset: int = 0, length: int = 0) -> StoredSlice:
    return msgspec.structs.replace(part, offset=part.offset + offset, length=part.length + length)


FORGERIES = {
    "none": Forgery(lambda _: (), "its slices end at byte 0"),
    "the last is left out": Forgery(lambda own: own[:-1], "its slices end at byte"),
    "the first is left out": Forgery(lambda own: own[1:], "do not go on at byte 0"),
    "one is left out": Forgery(lambda own: (*own[:2], *own[3:]), "do not go on at byte"),
    "two overlap": Forgery(lambda own: (_moved(own[0], length=8), *own[1:]), "do not go on at byte"),
    "beyond the end": Forgery(lambda own: (*own[:-1], _moved(own[-1], length=8)), "its slices end at byte"),
    "one twice": Forgery(lambda own: (*own, own[-1]), "do not go on at byte"),
    "another order": Forgery(lambda own: own[::-1], "do not go on at byte 0"),
    "before the beginning": Forgery(lambda own: (_moved(own[0], offset=-8), *own[1:]), "do not go on at byte 0"),
    "an empty one": Forgery(
        lambda own: (msgspec.structs.replace(own[0], length=0), *own), "0 bytes of .* do not go on at byte 0"
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_slices_that_do_not_cover_their_object_are_refused(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference, forgery: Forgery
) -> None:
    stored = manifest_of(store, reference).objects[SHARD]
    slices = tuple(forgery.slices(slices_of(store, reference, SHARD)))
    index = encode_index(SliceIndex(name=SHARD, sha256=stored.sha256, slices=slices))
    told = failure(ranks, store, with_index(store, reference, SHARD, index))
    assert (told.reason, told.object_name) == (RestoreFailure.MANIFEST_INCONSISTENT, f"{prefix_of(reference)}{INDEX}")
    with pytest.raises(RestoreFailed, match=forgery.told):
        raise told


def test_a_sound_index_of_another_object_is_refused(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    own = store.get(f"{prefix_of(reference)}{INDEX}")
    later = ranks.saved([new_state(9), new_state(9)], 60)
    for body in (store.get(f"{prefix_of(reference)}{OTHER_INDEX}"), store.get(f"{prefix_of(later)}{INDEX}")):
        told = failure(ranks, store, with_index(store, reference, SHARD, body))
        assert told.reason == RestoreFailure.MANIFEST_INCONSISTENT
        assert f"not {SHARD} of" in told.detail
    states = [new_state(8), new_state(8)]
    ranks.restore(with_index(store, reference, SHARD, own), states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2, "what was forged again is all that fails"


def test_an_index_that_cannot_be_decoded_is_refused(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    told = failure(ranks, store, with_index(store, reference, SHARD, b'{"name": 1}'))
    assert told.reason == RestoreFailure.MANIFEST_INCONSISTENT
    assert f"the index of {SHARD} cannot be decoded" in told.detail


def test_an_object_without_an_index_is_not_read_by_slice(
    ranks: Ranks, store: BreakingStore, reference: CheckpointReference
) -> None:
    manifest = manifest_of(store, reference)
    bare = {**manifest.objects, SHARD: msgspec.structs.replace(manifest.objects[SHARD], index="")}
    forged = rewritten(store, reference, objects=bare)
    states = [new_state(8), new_state(8)]
    (told, _) = ranks.restore(forged, states)
    assert isinstance(told, RestoreFailed)
    assert (told.reason, told.object_name) == (RestoreFailure.MANIFEST_INCONSISTENT, f"{prefix_of(reference)}{SHARD}")
    assert [image(state) for state in states] == [image(new_state(8))] * 2


def test_a_world_reads_only_the_indexes_of_objects_that_it_reads_from(
    store: BreakingStore, reference: CheckpointReference, ranks: Ranks, tmp_path: Path
) -> None:
    """A fifth rank's share, which `.metadata` does not point to, may be what it will."""
    manifest = manifest_of(store, reference)
    prefix = prefix_of(reference)
    more = {
        "__4_0.distcp": StoredObject(size=1, sha256="0", rank=4, index="__4_0.distcp.index.json"),
        "__4_0.distcp.index.json": StoredObject(size=1, sha256="0", rank=4),
    }
    other = rewritten(store, reference, objects={**manifest.objects, **more})
    states = [new_state(8), new_state(8)]
    store.read.clear()
    ranks.restore(other, states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2
    read = [place.object_name for place in store.read]
    assert sorted(name for name in read if name.endswith(".index.json")) == [OTHER_INDEX] * 2 + [INDEX] * 2
    whole = {name: Place(name, 0, stored.size) for name, stored in manifest.objects.items()}
    for name in (METADATA_NAME, INDEX, OTHER_INDEX):
        assert store.read.count(whole[name]) == 2
    in_order = [read.index(name) for name in (INDEX, METADATA_NAME, OTHER_INDEX, OTHER)]
    assert in_order == sorted(in_order), "where plain values lie, the manifest says; the others follow from .metadata"
    assert not [key for key in store.list(prefix) if "__4_" in key]
