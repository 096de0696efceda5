"""A run that continues another one: whose checkpoints it may restore, and that it goes on as that one did."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoint_ranks import RUN, Ranks, image, new_state
from object_store_fixture import ADMIN, ObjectStoreServer
from opened_worlds import root, world
from redis_fixture import RedisServer
from trainer_world import ROOT, Run
from trimtab_contract import keys
from trimtab_contract.checkpoints import decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.directives import AckState, Action, CheckpointReference, LearningRateOverride, Reason
from trimtab_contract.keys import RunId
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.checkpointing import RestoreFailure
from trimtab_trainer.errors import RestoreFailed

__all__ = ["root", "world"]

OLDER, STRANGER = RunId("team", "older", "1a"), RunId("team", "stranger", "2b")


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> ObjectStore:
    bucket = object_store.new_bucket()
    return ObjectStore(bucket, endpoint=object_store.endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)


def refused(ranks: Ranks, reference: CheckpointReference) -> RestoreFailed:
    """Why a reference is not restored: the same on every rank, which keeps what it had."""
    states = [new_state(99), new_state(99)]
    outcomes = ranks.restore(reference, states)
    assert {(one.reason, one.detail) for one in outcomes} == {(outcomes[0].reason, outcomes[0].detail)}
    assert [image(state) for state in states] == [image(new_state(99))] * 2
    return outcomes[0]


def test_a_checkpoint_of_the_continued_run_is_restored_and_those_that_follow_are_the_runs_own(
    world: Callable[..., Ranks],
) -> None:
    reference = world(run_id=OLDER).saved([new_state(7), new_state(7)], 30)
    ranks, states = world(source=OLDER), [new_state(8), new_state(8)]
    manifests = ranks.restore(reference, states)
    assert [image(state) for state in states] == [image(new_state(7))] * 2
    assert (manifests[0].run, manifests[0].step) == (str(OLDER), 30)
    own = ranks.saved(states, 40)
    assert own.key.startswith(keys.checkpoints_prefix(ranks.root, RUN))
    assert ranks.restore(own, states)[0].run == str(RUN)


def test_a_checkpoint_of_a_run_that_nobody_named_is_refused(world: Callable[..., Ranks]) -> None:
    reference = world(run_id=STRANGER).saved([new_state(7), new_state(7)], 30)
    assert refused(world(), reference).reason == RestoreFailure.OTHER_RUN
    error = refused(world(source=OLDER), reference)
    assert error.reason == RestoreFailure.OTHER_RUN
    assert str(RUN) in error.detail
    assert str(OLDER) in error.detail


@pytest.mark.parametrize("run", [RUN, STRANGER])
def test_a_manifest_in_the_continued_runs_place_that_is_not_its_own_is_refused(
    world: Callable[..., Ranks], store: ObjectStore, run: RunId
) -> None:
    reference = world(run_id=OLDER).saved([new_state(7), new_state(7)], 30)
    manifest = decode_manifest(store.get(reference.key))
    body = encode_manifest(msgspec.structs.replace(manifest, run=str(run)))
    store.put(reference.key, body)
    error = refused(world(source=OLDER), msgspec.structs.replace(reference, sha256=sha256_hex(body)))
    assert (error.reason, error.detail) == (RestoreFailure.OTHER_RUN, f"it belongs to run {run}")


@pytest.mark.timeout(600)
def test_it_goes_on_bit_for_bit_as_the_run_it_continues_did(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    bucket = object_store.new_bucket()
    told: dict[str, Any] = {"skip": ((3, 4), (11, 11)), "lr": LearningRateOverride(scale=0.5, until_step=12)}
    older = Run(redis_server, object_store, tmp_path, bucket, {"steps": 14})
    with older.world(ranks=1):
        older.direct(Action.RUN, **told)
        older.ack(AckState.FINISHED)
        source = older.saved(10)
    stored = set(older.objects(keys.run_prefix(ROOT, older.id)))

    newer = Run(redis_server, object_store, tmp_path, bucket, {"steps": 14}, source=older.id)
    with newer.world(ranks=1):
        told["restore"] = source
        assert newer.ack(AckState.RESTORED, newer.direct(Action.HOLD, **told)).step == 10
        newer.direct(Action.RUN, **told)
        newer.ack(AckState.FINISHED)
        own = newer.saved(14)

    lost, found = older.records(), newer.records()
    assert list(found) == [11, 12, 13, 14]
    for step, record in found.items():
        assert record.window == lost[step].window
        # A vector's name tells how exactly the largest logits are known, which may depend on how long a world runs.
        common = record.vectors.keys() & lost[step].vectors.keys()
        assert "qk_clip_gamma" in common
        assert all(record.vectors[name] == lost[step].vectors[name] for name in common)
        for name in ("loss", "loss_max", "grad_norm", "clip_ratio", "lr", "update_rms"):
            assert record.scalars[name] == lost[step].scalars[name], (step, name)
    assert found[13].scalars["lr"] > found[12].scalars["lr"]
    manifests = {one.step: one for one in newer.manifests()}
    assert manifests[14].replica_checksum == older.manifests()[-1].replica_checksum
    assert own.key.startswith(keys.checkpoints_prefix(ROOT, newer.id))
    assert set(older.objects(keys.run_prefix(ROOT, older.id))) == stored


@pytest.mark.timeout(600)
def test_under_another_configuration_it_does_not_begin_and_every_field_of_the_data_is_named(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    bucket = object_store.new_bucket()
    older = Run(redis_server, object_store, tmp_path, bucket, {"steps": 6})
    with older.world(ranks=1):
        older.direct(Action.RUN)
        source = older.saved(5)
    config = {"steps": 8, "globalBatch": 4, "seed": 5, "data": {"order": "shuffled", "seed": 3}}
    newer = Run(redis_server, object_store, tmp_path, bucket, config, source=older.id)
    with newer.world(ranks=1):
        failed = newer.ack(AckState.FAILED, newer.direct(Action.HOLD, restore=source))
        assert newer.ack(AckState.REFUSED, newer.direct(Action.RUN, restore=source)).reason == Reason.RESTORE_REQUIRED
    assert failed.reason == Reason.CONFIG_MISMATCH
    for told in (
        "seed: was 0, is 5",
        "data.order: was sequential, is shuffled",
        "data.seed: was 0, is 3",
        "globalBatch: was 8, is 4",
    ):
        assert told in failed.detail
    assert not newer.records()
