"""What saves left that never ended goes after a day, and nothing that could still become a checkpoint."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from object_store_fixture import ADMIN, ObjectStoreServer
from refusing_store import refusing_store
from run_states import attempts, latch, run_state
from saving_trainer import OBJECTS, Trainer
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import GENESIS, Actor, JournalRecord, Phase
from trimtab_contract.keys import MANIFEST_NAME, RunId, checkpoint_prefix, run_prefix
from trimtab_operator.adapters.ports import Upload
from trimtab_operator.adapters.s3 import (
    S3CheckpointStore,
    S3CheckpointStores,
    S3Credentials,
    S3JournalStore,
    S3Location,
)
from trimtab_operator.checkpoint_remover import SEARCH_SPREAD_SECONDS, CheckpointRemover, _aborted
from trimtab_operator.commands import Append, Draft
from trimtab_operator.deletion import next_command
from trimtab_operator.journal_fold import fold
from trimtab_operator.leftovers import LEAST_AGE, NO_MANIFEST, find_leftovers
from trimtab_operator.observation import Leftover, Limits, Observation
from trimtab_operator.run_state import Checkpoint, CheckpointState, RunPhase, RunState

RUN, ROOT = RunId("lab", "job", "uid"), "team"
NOW = datetime(2026, 1, 10, tzinfo=UTC)
OLD, YOUNG = NOW - 2 * LEAST_AGE, NOW - LEAST_AGE / 2
LIMITS = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=40, generation=1, suspend=False)


def prefix(step: int, attempt: int = 1, random: str = "abc", run: RunId = RUN) -> str:
    return checkpoint_prefix(ROOT, run, step, attempt, random)


def known(step: int, attempt: int = 1, random: str = "known") -> Checkpoint:
    reference = CheckpointReference(key=f"{prefix(step, attempt, random)}{MANIFEST_NAME}", sha256="1" * 64, step=step)
    return Checkpoint(reference=reference, attempt=attempt, state=CheckpointState.VERIFIED)


def state(**changes: Any) -> RunState:
    """Two attempts, the second one since step 40, which has stored a checkpoint of step 60."""
    base: dict[str, Any] = {"attempts": attempts((None, 0), (1, 40)), "checkpoints": (known(30), known(60, 2))}
    return run_state(**{**base, **changes})


def found(objects: Mapping[str, datetime], *uploads: Upload, now: datetime = NOW, **changes: Any) -> list[str]:
    leftovers = find_leftovers(state(**changes), ROOT, RUN, objects, uploads, now)
    assert all(one.reference.sha256 == NO_MANIFEST for one in leftovers)
    return [one.reference.key.removesuffix(MANIFEST_NAME) for one in leftovers]


def test_objects_and_uploads_without_a_manifest_are_found_in_the_order_of_their_steps() -> None:
    shard, upload = f"{prefix(50, 2)}__0_0.distcp", Upload(f"{prefix(20)}__0_0.distcp", "u", OLD)
    assert found({shard: OLD}, upload) == [prefix(20), prefix(50, 2)]


def test_what_was_touched_within_a_day_is_left() -> None:
    old, young = f"{prefix(20)}__0_0.distcp", f"{prefix(20)}__1_0.distcp"
    assert found({old: OLD, young: YOUNG}) == []
    assert found({old: OLD}, Upload(young, "u", YOUNG)) == []
    assert found({old: OLD}) == [prefix(20)]


def test_what_has_a_manifest_or_is_known_to_the_journal_is_left() -> None:
    shard = f"{prefix(20)}__0_0.distcp"
    assert found({shard: OLD, f"{prefix(20)}{MANIFEST_NAME}": OLD}) == []
    assert found({shard: OLD}, checkpoints=(known(20, random="abc"), known(60, 2))) == []
    assert found({shard: OLD}, deleted=(f"{prefix(20)}{MANIFEST_NAME}",)) == []


def test_a_save_that_may_still_be_on_its_way_is_left_however_old_its_parts_are() -> None:
    newest = f"{prefix(70, 2)}__0_0.distcp"
    assert found({newest: OLD}) == []
    assert found({newest: OLD}, checkpoints=(known(80, 2),)) == [prefix(70, 2)], "a later one of the attempt is stored"
    assert found({newest: OLD}, attempts=attempts((None, 0), (1, 40), (2, 60))) == [prefix(70, 2)], "another is at it"
    assert found({f"{prefix(70, 3)}__0_0.distcp": OLD}) == [], "an attempt that the journal does not know"


def test_nothing_is_found_outside_the_runs_own_checkpoints() -> None:
    other = RunId("lab", "job", "uid2")
    keys = [
        f"{prefix(20, run=other)}__0_0.distcp",
        f"{run_prefix(ROOT, RUN)}records/a000001/000000000001-000000000010",
        f"{run_prefix(ROOT, RUN)}checkpoints/notes.txt",
        f"{run_prefix(ROOT, RUN)}checkpoints/mine/weights.bin",
        f"elsewhere/{prefix(20)}__0_0.distcp",
    ]
    assert found(dict.fromkeys(keys, OLD), *(Upload(key, "u", OLD) for key in keys)) == []


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(1, 3), st.sampled_from(["__0_0.distcp", MANIFEST_NAME])),
        st.integers(0, 72),
    )
)
def test_whatever_lies_there_only_what_is_old_and_over_and_has_no_manifest_is_found(
    stored: dict[tuple[int, int, str], int],
) -> None:
    objects = {
        f"{prefix(10 * step, attempt)}{name}": NOW - timedelta(hours=h) for (step, attempt, name), h in stored.items()
    }
    for one in found(objects):
        within = [time for key, time in objects.items() if key.startswith(one)]
        assert f"{one}{MANIFEST_NAME}" not in objects
        assert all(NOW - time >= LEAST_AGE for time in within)
        assert "-a000003-" not in one


def leftover(step: int = 20) -> Leftover:
    reference = CheckpointReference(key=f"{prefix(step)}{MANIFEST_NAME}", sha256=NO_MANIFEST, step=step)
    return Leftover(reference=reference, attempt=1, since=OLD.isoformat())


def decided(of: RunState, **changes: Any) -> Draft | None:
    observation = Observation(job="demo", now="", limits=LIMITS, leftovers=(leftover(),), **changes)
    command = next_command(of, observation)
    return command.draft if isinstance(command, Append) else None


def test_the_intent_names_the_prefix_and_says_why_and_is_written_once() -> None:
    draft = decided(state())
    assert draft is not None
    assert draft.phase is Phase.INTENT
    assert "its save never ended" in (draft.after or {})["why"]
    record = JournalRecord(
        seq=31,
        prev=GENESIS,
        id=draft.id,
        time="2026-01-10T00:00:00+00:00",
        actor=Actor(service_account="", pod="", pod_uid="", image="", epoch=1),
        action=draft.action.value,
        phase=draft.phase,
        after={"checkpoint": leftover().reference, "attempt": 1, "why": "x"},
    )
    after = fold(state(), record)
    assert after.checkpoint(leftover().reference.key) is not None
    assert decided(after) is None


@pytest.mark.parametrize(
    "changes",
    [{"phase": RunPhase.HOLDING}, {"phase": RunPhase.PENDING}, {"phase": RunPhase.COMPLETED}],
    ids=lambda one: one["phase"].value,
)
def test_nothing_is_cleared_away_while_anything_is_amiss_or_all_is_over(changes: dict[str, Any]) -> None:
    assert decided(state(**changes)) is None


def test_nothing_is_cleared_away_while_a_rule_fires() -> None:
    assert decided(state(), firing=latch()) is None


@dataclass
class Lease:
    """A Lease that holds."""

    epoch: int = 1
    duration_seconds: float = 15.0

    def valid(self) -> bool:
        return True


@pytest.fixture
async def stores() -> AsyncIterator[S3CheckpointStores]:
    made = S3CheckpointStores()
    yield made
    await made.close()


class Scene:
    """A run on a real S3 server that a save never ended of, seen three days later."""

    def __init__(self, server: ObjectStoreServer, stores: S3CheckpointStores) -> None:
        bucket = server.new_bucket("leftovers")
        self.trainer = Trainer(server, bucket)
        self.good = self.trainer.save(60)
        self.prefix = self.trainer.prefix(20)
        credentials = S3Credentials(ADMIN.access_key, ADMIN.secret_key)
        self.journal = S3JournalStore(S3Location(bucket, server.endpoint), credentials)
        secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
        self.store: S3CheckpointStore = stores.open(f"s3://{bucket}/team", server.endpoint, secret)
        self.woken = asyncio.Event()
        self.days = 3.0
        self.remover = CheckpointRemover(
            self.trainer.run, self.journal, Lease(), self.woken.set, lambda: datetime.now(UTC) + timedelta(self.days)
        )

    @property
    def state(self) -> RunState:
        good = Checkpoint(reference=self.good, attempt=1, state=CheckpointState.VERIFIED)
        return run_state(seq=0, checkpoints=(good,))

    def begin(self, name: str, prefix: str | None = None) -> str:
        """An upload in parts that nobody completes."""
        key = f"{prefix or self.prefix}{name}"
        place = {"Bucket": self.trainer.bucket, "Key": key}
        upload = str(self.trainer.client.create_multipart_upload(**place)["UploadId"])
        self.trainer.client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"part")
        return key

    def keys(self) -> set[str]:
        listed = self.trainer.client.list_objects_v2(Bucket=self.trainer.bucket, Prefix="team/")
        return {str(item["Key"]) for item in listed.get("Contents", ())}

    def unfinished(self) -> set[str]:
        listed = self.trainer.client.list_multipart_uploads(Bucket=self.trainer.bucket)
        return {str(item["Key"]) for item in listed.get("Uploads", ())}

    async def attended(self, now: float, of: RunState) -> None:
        self.remover.attend(now, of, self.store)
        await asyncio.wait_for(self.woken.wait(), 60)
        self.woken.clear()

    async def search(self) -> tuple[Leftover, ...]:
        self.remover.attend(0.0, self.state, self.store)
        await self.attended(float(SEARCH_SPREAD_SECONDS), self.state)
        return self.remover.leftovers


@pytest.fixture
async def scene(object_store: ObjectStoreServer, stores: S3CheckpointStores) -> AsyncIterator[Scene]:
    made = Scene(object_store, stores)
    yield made
    await made.remover.close()
    await made.journal.close()


async def test_on_a_real_server_they_are_found_and_go_and_all_else_stays(scene: Scene) -> None:
    other = replace(scene.trainer.run, uid="another")
    foreign = checkpoint_prefix("team", other, 20, 1, "abc")
    for name in OBJECTS:
        scene.trainer.put(f"{foreign}{name}", b"another run's")
    scene.trainer.put(f"{scene.prefix}rank-000000.json", b"left")
    before = scene.keys()
    uploads = {scene.begin("__0_0.distcp"), scene.begin("__0_0.distcp", foreign)}
    assert scene.unfinished() == uploads
    (left,) = await scene.search()
    assert left.reference.key == f"{scene.prefix}{MANIFEST_NAME}"
    entry = Checkpoint(reference=left.reference, attempt=1, state=CheckpointState.DELETING)
    going = replace(scene.state, checkpoints=(entry, *scene.state.checkpoints))
    assert scene.remover.attend(5000.0, going, scene.store) == 5015.0, "a Lease duration after the intent"
    await scene.attended(5015.0, going)
    (removal,) = scene.remover.removals(going)
    assert removal.deleted
    assert "1 objects" in removal.message
    assert "1 unfinished uploads" in removal.message
    assert before - scene.keys() == {f"{scene.prefix}rank-000000.json"}
    assert scene.unfinished() == uploads - {f"{scene.prefix}__0_0.distcp"}
    assert not scene.remover.leftovers


async def test_credentials_that_may_neither_list_nor_abort_uploads_stop_nothing_else(
    stores: S3CheckpointStores,
) -> None:
    with refusing_store(403, "AccessDenied") as endpoint:
        secret = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret"}
        store = stores.open("s3://bucket/team", endpoint, secret)
        assert await store.uploads("team/") == ()
        said = await _aborted(store, leftover().reference, (Upload(f"{prefix(20)}__0_0.distcp", "u", OLD),))
    assert "1 unfinished uploads, which the credentials may not abort" in said


async def test_on_the_day_itself_nothing_is_found(scene: Scene) -> None:
    scene.trainer.put(f"{scene.prefix}__0_0.distcp", b"on its way")
    scene.days = 0.0
    assert await scene.search() == ()


async def test_a_manifest_that_came_after_all_keeps_everything(scene: Scene) -> None:
    scene.trainer.put(f"{scene.prefix}__0_0.distcp", b"on its way")
    (left,) = await scene.search()
    scene.trainer.put(left.reference.key, b"{}")
    before = scene.keys()
    entry = Checkpoint(reference=left.reference, attempt=1, state=CheckpointState.DELETING)
    going = replace(scene.state, checkpoints=(entry, *scene.state.checkpoints))
    scene.remover.attend(5000.0, going, scene.store)
    await scene.attended(5015.0, going)
    (removal,) = scene.remover.removals(going)
    assert not removal.deleted
    assert "has ended after all" in removal.message
    assert scene.keys() == before
