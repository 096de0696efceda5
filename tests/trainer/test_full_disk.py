"""A trainer on a machine whose disk is full: nothing of a checkpoint is kept there."""

import uuid
from pathlib import Path

from checkpoint_ranks import Ranks, image, new_state
from full_disk import fill, small_disk
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_contract.checkpoints import CheckpointManifest
from trimtab_trainer.adapters.s3 import ObjectStore

__all__ = ["small_disk"]


def test_a_full_disk_is_in_no_saves_and_in_no_restores_way(object_store: ObjectStoreServer, small_disk: Path) -> None:
    fill(small_disk)
    store = ObjectStore(
        object_store.new_bucket("full-disk"),
        endpoint=object_store.endpoint,
        access_key=ADMIN.access_key,
        secret_key=ADMIN.secret_key,
    )
    ranks = Ranks(store, small_disk / "staging", root=f"tests/{uuid.uuid4().hex}")
    try:
        reference = ranks.saved([new_state(7), new_state(7)], 30)
        states = [new_state(8), new_state(8)]
        assert all(isinstance(one, CheckpointManifest) for one in ranks.restore(reference, states))
    finally:
        ranks.close()
    assert [image(one) for one in states] == [image(new_state(7))] * 2
