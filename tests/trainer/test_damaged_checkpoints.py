"""Nothing damaged or of another shape is put into the live state; and what ranks verify of each other's objects."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_ranks import RUN, TINY, Ranks, image, new_state
from object_store_fixture import ObjectStoreServer
from opened_worlds import equal_states, expect_failure, root, store, world
from stored_slices import manifest_of, prefix_of, rewritten
from trimtab_contract import keys
from trimtab_contract.directives import CheckpointReference
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import RestoreFailure, TrainingState, Verified, VerifyFailed
from trimtab_trainer.errors import RestoreFailed

__all__ = ["root", "store", "world"]


def flipped_bit(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flipped_bit, id="flipped bit"),
        pytest.param(lambda body: body[:-1], id="truncated"),
        pytest.param(lambda body: body[: len(body) // 2] + bytes(64) + body[len(body) // 2 + 64 :], id="zeroed"),
        pytest.param(lambda body: body + b"\0", id="longer"),
    ],
)
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "__1_0.distcp.index.json", "rank-000001.json"])
def test_a_damaged_object_is_never_loaded(
    world: Callable[..., Ranks], store: ObjectStore, damage: Callable[[bytes], bytes], name: str
) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    key = f"{prefix_of(reference)}{name}"
    store.put(key, damage(store.get(key)))
    assert expect_failure(ranks, reference, RestoreFailure.OBJECT_DAMAGED) == key


def test_two_shards_that_changed_places_are_never_loaded(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    first, second = (f"{prefix_of(reference)}__{rank}_0.distcp" for rank in range(2))
    bodies = store.get(first), store.get(second)
    store.put(first, bodies[1])
    store.put(second, bodies[0])
    expect_failure(ranks, reference, RestoreFailure.OBJECT_DAMAGED)


def test_shards_of_another_checkpoint_are_found_by_their_content(
    world: Callable[..., Ranks], store: ObjectStore
) -> None:
    ranks = world()
    reference, other = ranks.saved(equal_states(7), 30), ranks.saved(equal_states(9), 40)
    objects, theirs = (dict(manifest_of(store, one).objects) for one in (reference, other))
    for name in ("__0_0.distcp", "__0_0.distcp.index.json"):
        store.put(f"{prefix_of(reference)}{name}", store.get(f"{prefix_of(other)}{name}"))
        objects[name] = theirs[name]
    forged = rewritten(store, reference, objects=objects)
    expect_failure(ranks, forged, RestoreFailure.CONTENT_MISMATCH)


def test_a_missing_object_is_named(
    world: Callable[..., Ranks], store: ObjectStore, object_store: ObjectStoreServer
) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    key = f"{prefix_of(reference)}__1_0.distcp"
    object_store.client().delete_object(Bucket=store.bucket, Key=key)
    assert expect_failure(ranks, reference, RestoreFailure.OBJECT_MISSING) == key


def test_a_manifest_of_another_hash_is_refused(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    store.put(reference.key, store.get(reference.key).replace(b"0.01", b"0.02"))
    expect_failure(ranks, reference, RestoreFailure.MANIFEST_DAMAGED)


def test_a_missing_manifest_is_refused(world: Callable[..., Ranks], root: str) -> None:
    ranks = world()
    key = keys.checkpoint_prefix(root, RUN, 30, 1, "abc") + keys.MANIFEST_NAME
    reference = CheckpointReference(key=key, sha256="0" * 64, step=30)
    expect_failure(ranks, reference, RestoreFailure.OBJECT_MISSING)


def test_damage_on_one_rank_only_stops_every_rank(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    states = [new_state(8), new_state(8)]
    odd = [states[0], TrainingState(torch.nn.Linear(2, 2), states[1].optimizer)]
    before = [image(state) for state in odd]
    outcomes = ranks.restore(reference, odd)
    assert [type(outcome) for outcome in outcomes] == [RestoreFailed, RestoreFailed]
    assert outcomes[0].reason == RestoreFailure.STRUCTURE_MISMATCH
    assert [image(state) for state in odd] == before


def test_a_model_of_another_shape_is_told_tensor_by_tensor(world: Callable[..., Ranks], store: ObjectStore) -> None:
    ranks = world(world_size=1)
    reference = ranks.saved([new_state(7)], 30)
    (outcome,) = ranks.restore(reference, [new_state(8, replace(TINY, vocab_size=64, bias=True))])
    assert isinstance(outcome, RestoreFailed)
    assert "model.blocks.0.attention.key.bias: saved is none, this run has float32 [16]" in outcome.detail
    assert re.search(r"; and [0-9]+ more$", outcome.detail)
    (outcome,) = ranks.restore(reference, [new_state(8, replace(TINY, vocab_size=64))])
    for name in ("model.embedding.weight", "model.head.weight"):
        assert f"{name}: saved is float32 [256, 16], this run has float32 [64, 16]" in outcome.detail


def test_two_hosts_verify_each_others_objects(world: Callable[..., Ranks]) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    assert ranks.verdict() == Verified(reference, "host-0,host-1")


def test_one_node_only_has_its_own_word(world: Callable[..., Ranks]) -> None:
    ranks = world(processes_per_node=2)
    reference = ranks.saved(equal_states(7), 30)
    assert ranks.verdict() == Verified(reference, "self")


def test_an_object_changed_in_the_store_is_named(
    world: Callable[..., Ranks], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ObjectStore.put

    def bit_rot(self: ObjectStore, key: str, body: bytes | Path) -> None:
        if key.endswith("__1_0.distcp") and isinstance(body, bytes):
            body = flipped_bit(body)
        stored(self, key, body)

    monkeypatch.setattr(ObjectStore, "put", bit_rot)
    ranks = world()
    ranks.saved(equal_states(7), 30)
    verdict = ranks.verdict()
    assert isinstance(verdict, VerifyFailed)
    assert verdict.object_name == "__1_0.distcp"
