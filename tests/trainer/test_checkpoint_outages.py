"""The store may be away while a checkpoint is saved or restored."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from checkpoint_ranks import FAST, Ranks, image, new_state
from object_store_fixture import READER, ObjectStoreServer
from opened_worlds import equal_states, expect_failure, root, store, store_in, world
from trimtab_contract import keys
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import CheckpointBehind, CheckpointLimits, RestoreFailure, SaveFailed

__all__ = ["root", "store", "world"]


def test_a_save_waits_for_a_store_that_comes_back(world: Callable[..., Ranks], object_store: ObjectStoreServer) -> None:
    ranks = world()
    object_store.freeze()
    try:
        ranks.save(equal_states(7), 30)
        assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(1.5)) == [False, False]
    finally:
        object_store.thaw()
    assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [True, True]


@pytest.mark.parametrize("allowed", [1, 2])
def test_periodic_saves_are_left_out_while_as_many_as_allowed_are_pending_and_final_ones_are_not(
    world: Callable[..., Ranks], object_store: ObjectStoreServer, allowed: int
) -> None:
    ranks = world(limits=replace(FAST, max_pending=allowed))
    states, steps = equal_states(7), [30, 40, 50]
    object_store.freeze()
    try:
        for step in steps:
            ranks.save(states, step)
        ranks.save(states, 60, trigger="Final")
        behind = [CheckpointBehind(step, allowed, "Periodic") for step in steps[allowed:]]
        assert [ranks.drain(rank) for rank in range(2)] == [behind] * 2
    finally:
        object_store.thaw()
    assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [True, True]
    assert [event.reference.step for event in ranks.drain(1)[len(behind) :]] == [*steps[:allowed], 60]


def test_a_save_that_misses_its_deadline_leaves_nothing_that_could_be_chosen(
    world: Callable[..., Ranks], store: ObjectStore, object_store: ObjectStoreServer, root: str
) -> None:
    broken = store_in(object_store, store.bucket, READER)
    ranks = world(store=broken, limits=CheckpointLimits(save_deadline_seconds=1))
    ranks.save(equal_states(7), 30)
    assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False, False]
    for rank in range(2):
        (event,) = ranks.drain(rank)
        assert isinstance(event, SaveFailed)
        assert "checkpoint.uri" in event.detail
    assert not [key for key in store.list(root) if key.endswith(keys.MANIFEST_NAME)]


def test_a_restore_waits_for_a_store_that_comes_back(
    world: Callable[..., Ranks], object_store: ObjectStoreServer
) -> None:
    ranks = world()
    reference = ranks.saved(equal_states(7), 30)
    ranks.verdict()
    states = equal_states(8)
    object_store.freeze()
    # The first sign of progress of a restore from a store that does not answer is a failed attempt.
    ranks.on_progress = object_store.thaw
    try:
        ranks.restore(reference, states)
    finally:
        object_store.thaw()
    assert [image(state) for state in states] == [image(new_state(7))] * 2


def test_a_store_that_stays_away_fails_the_restore_and_nothing_else(
    world: Callable[..., Ranks], object_store: ObjectStoreServer
) -> None:
    reference = world().saved(equal_states(7), 30)
    impatient = world(limits=CheckpointLimits(restore_patience_seconds=1))
    object_store.freeze()
    try:
        expect_failure(impatient, reference, RestoreFailure.STORE_UNAVAILABLE)
    finally:
        object_store.thaw()
