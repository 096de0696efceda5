"""Deleting a checkpoint on a real S3 server: its own objects, those only, and only while this operator leads."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from object_store_fixture import ADMIN, READER, Credentials, ObjectStoreServer
from run_states import run_state
from saving_trainer import OBJECTS, Trainer
from trimtab_contract.directives import Action, CheckpointReference, Directive
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.s3 import (
    S3CheckpointStore,
    S3CheckpointStores,
    S3Credentials,
    S3JournalStore,
    S3Location,
)
from trimtab_operator.checkpoint_remover import CheckpointRemover
from trimtab_operator.commands import Draft
from trimtab_operator.journal import Identity, RunJournal
from trimtab_operator.run_state import Checkpoint, CheckpointState, JournalAction, RunState

FOREVER = float("inf")


@dataclass
class Lease:
    """A Lease of 15 seconds as the one who holds it sees it."""

    epoch: int = 1
    duration_seconds: float = 15.0
    holds: bool = True

    def valid(self) -> bool:
        return self.holds


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("retention")


@pytest.fixture
async def stores() -> AsyncIterator[S3CheckpointStores]:
    made = S3CheckpointStores()
    yield made
    await made.close()


@pytest.fixture
async def journal(object_store: ObjectStoreServer, bucket: str) -> AsyncIterator[S3JournalStore]:
    made = S3JournalStore(S3Location(bucket, object_store.endpoint), S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    yield made
    await made.close()


class Scene:
    """A run with two checkpoints, the older one of which is being deleted."""

    def __init__(self, server: ObjectStoreServer, bucket: str, stores: S3CheckpointStores, journal: S3JournalStore):
        self.trainer = Trainer(server, bucket)
        self.journal, self.lease = journal, Lease()
        self.kept, self.going = self.trainer.save(20), self.trainer.save(10)
        self.woken = asyncio.Event()
        self.continued: dict[str, str] | None = {}
        self.remover = CheckpointRemover(
            self.run, journal, self.lease, self.woken.set, continued=lambda: self.continued
        )
        self._server, self._bucket, self._stores = server, bucket, stores

    @property
    def run(self) -> RunId:
        return self.trainer.run

    @property
    def prefix(self) -> str:
        return self.going.key.removesuffix("manifest.json")

    def store(self, identity: Credentials = ADMIN) -> S3CheckpointStore:
        secret = {"AWS_ACCESS_KEY_ID": identity.access_key, "AWS_SECRET_ACCESS_KEY": identity.secret_key}
        return self._stores.open(f"s3://{self._bucket}/team", self._server.endpoint, secret)

    def state(self, **changes: object) -> RunState:
        def known(reference: CheckpointReference, state: CheckpointState) -> Checkpoint:
            return Checkpoint(reference=reference, attempt=1, state=state)

        checkpoints = (known(self.going, CheckpointState.DELETING), known(self.kept, CheckpointState.VERIFIED))
        return replace(run_state(checkpoints=checkpoints, seq=0), **changes)  # pyright: ignore[reportArgumentType] fields vary

    def stored(self) -> set[str]:
        listed = self._server.client().list_objects_v2(Bucket=self._bucket, Prefix=f"team/{self.run}/")
        return {item["Key"] for item in listed.get("Contents", ())}

    async def work(self, identity: Credentials = ADMIN, state: RunState | None = None) -> None:
        """From the intent to whatever became of it."""
        state, store = state or self.state(), self.store(identity)
        due = self.remover.attend(100.0, state, store)
        assert due == 115.0
        assert self.remover.attend(115.0, state, store) == FOREVER
        await asyncio.wait_for(self.woken.wait(), 60)
        self.woken.clear()


@pytest.fixture
def scene(object_store: ObjectStoreServer, bucket: str, stores: S3CheckpointStores, journal: S3JournalStore) -> Scene:
    return Scene(object_store, bucket, stores, journal)


async def test_a_checkpoint_goes_with_all_that_it_consists_of_and_nothing_else(scene: Scene) -> None:
    beside = f"team/{scene.run}/records/a000001/000000000001-000000000010"
    scene.trainer.put(beside, b"records")
    before = scene.stored()
    await scene.work()
    assert before - scene.stored() == {scene.going.key, *(scene.prefix + name for name in OBJECTS)}
    (removal,) = scene.remover.removals(scene.state())
    assert removal.deleted
    assert removal.key == scene.going.key


async def test_nothing_goes_before_the_lease_of_a_former_leader_has_run_out(scene: Scene) -> None:
    before = scene.stored()
    assert scene.remover.attend(100.0, scene.state(), scene.store()) == 115.0
    assert scene.remover.attend(114.9, scene.state(), scene.store()) == 115.0
    await scene.remover.close()
    assert scene.stored() == before


async def test_where_somebody_else_keeps_files_nothing_is_deleted_and_they_are_named(scene: Scene) -> None:
    scene.trainer.put(scene.prefix + "notes/why.txt", b"look at this")
    before = scene.stored()
    await scene.work()
    assert scene.stored() == before
    (removal,) = scene.remover.removals(scene.state())
    assert not removal.deleted
    assert "notes/why.txt" in removal.message


async def test_a_checkpoint_that_a_newer_version_saved_is_left_as_it_is_and_the_version_is_named(scene: Scene) -> None:
    scene.going = scene.trainer.save(10, schema=9)
    before = scene.stored()
    await scene.work()
    assert scene.stored() == before
    (removal,) = scene.remover.removals(scene.state())
    assert not removal.deleted
    assert "schema 9" in removal.message
    assert "use a Trimtab as new as the one that saved it" in removal.message


async def test_an_operator_that_was_killed_behind_the_manifest_leaves_what_the_next_one_finishes(scene: Scene) -> None:
    for name in OBJECTS:
        scene.trainer.client.delete_object(Bucket=scene.trainer.bucket, Key=scene.prefix + name)
    scene.trainer.client.delete_object(Bucket=scene.trainer.bucket, Key=scene.going.key)
    for name in ("__0_0.distcp", "__0_0.distcp.index.json", "rank-000001.json", ".metadata"):
        scene.trainer.put(scene.prefix + name, b"left")
    await scene.work()
    assert not [key for key in scene.stored() if key.startswith(scene.prefix)]


async def test_credentials_that_may_not_delete_are_told_and_tried_again_later(scene: Scene) -> None:
    before = scene.stored()
    await scene.work(READER)
    assert scene.stored() == before
    assert "step 10" in scene.remover.trouble
    assert not scene.remover.removals(scene.state())
    assert 0 < scene.remover.attend(116.0, scene.state(), scene.store(READER)) < FOREVER
    assert scene.remover.attend(117.0, run_state(), scene.store(READER)) == FOREVER
    assert not scene.remover.trouble, "the trouble outlives its cause"


async def test_an_operator_that_is_led_by_another_deletes_nothing(scene: Scene) -> None:
    newer = RunJournal(scene.journal, scene.run, Identity("operator", "other", "uid", "image"))
    await newer.take_over(4)
    await newer.append(Draft(action=JournalAction.AUTOMATION_RELEASED, id="x", after={"hold": "x"}))
    before = scene.stored()
    await scene.work()
    assert scene.stored() == before
    assert not scene.remover.removals(scene.state())


async def test_an_operator_whose_lease_has_run_out_deletes_nothing(scene: Scene) -> None:
    before = scene.stored()
    scene.lease.holds = False
    await scene.work()
    assert scene.stored() == before


async def test_what_the_directive_in_force_restores_is_waited_for(scene: Scene) -> None:
    restore = Directive(epoch=1, seq=2, world=1, attempt=2, action=Action.HOLD, restore=scene.going)
    restoring = scene.state(directive=restore)
    assert scene.remover.attend(100.0, restoring, scene.store()) == FOREVER
    assert scene.remover.attend(900.0, restoring, scene.store()) == FOREVER
    assert scene.going.key in scene.stored()


async def test_a_key_that_is_no_checkpoint_of_this_run_is_left(scene: Scene) -> None:
    foreign = CheckpointReference(key=scene.going.key.replace("lab/job", "lab/other"), sha256="0" * 64, step=10)
    scene.trainer.put(foreign.key, b"somebody's")
    scene.going = foreign
    await scene.work()
    (removal,) = scene.remover.removals(scene.state())
    assert not removal.deleted


async def test_a_checkpoint_that_another_run_has_begun_to_go_on_from_since_the_intent_stays(scene: Scene) -> None:
    scene.continued = {scene.going.key: "lab/fork/uid"}
    before = scene.stored()
    await scene.work()
    assert scene.stored() == before
    (removal,) = scene.remover.removals(scene.state())
    assert (removal.deleted, removal.message) == (False, "not deleted, for run lab/fork/uid goes on from it")


async def test_nothing_goes_while_it_is_not_known_what_other_runs_go_on_from(scene: Scene) -> None:
    scene.continued = None
    before = scene.stored()
    await scene.work()
    assert scene.stored() == before
    assert scene.remover.removals(scene.state()) == ()
    assert "the journals of other runs, which may go on from it, are still being read" in scene.remover.trouble
