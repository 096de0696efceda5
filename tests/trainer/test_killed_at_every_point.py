"""SIGKILL at every point of save, upload, commit, verification and retention, on a real S3 server.

Each point is the moment before or after one request to a store; at each a real process ends. Nothing else is written: a
save leaves nothing on a local disk, which is looked at, too. Afterwards no checkpoint that looks whole fails to
restore, and none that was good is gone.
"""

import asyncio
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_ranks import RUN, Ranks, image, new_state
from killed_worker import MODEL, NOBODY, Task, Workers, workers
from object_store_fixture import ADMIN, ObjectStoreServer
from rollback_trail import running_trail
from run_states import attempts, run_state
from trimtab_contract import keys
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import Phase, parse_record, verify_chain
from trimtab_operator.adapters.s3 import S3CheckpointStores
from trimtab_operator.claims import look_at_claims
from trimtab_operator.observation import CheckpointClaim
from trimtab_operator.records import Rejections
from trimtab_trainer.adapters.s3 import ObjectStore

pytestmark = pytest.mark.timeout(600)

GOOD, KILLED = 10, 20
STEPS, NEEDLESS = (0, 20, 30, 40, 50), 20
MOST_POINTS = 100


@pytest.fixture(scope="module")
def killable() -> Iterator[Workers]:
    with workers() as process:
        yield process


@dataclass(frozen=True)
class Scene:
    """One run's bucket and journal, and a process in which its work is done and ended."""

    server: ObjectStoreServer
    task: Task
    workers: Workers

    @property
    def store(self) -> ObjectStore:
        task = self.task
        return ObjectStore(task.bucket, endpoint=task.endpoint, access_key=task.access_key, secret_key=task.secret_key)

    def do(self, kill: int = NOBODY, **changes: Any) -> tuple[int, list[str]]:
        return self.workers.do(replace(self.task, kill=kill, **changes))

    def save(self, step: int) -> None:
        """Store a checkpoint, undisturbed."""
        ended, passed = self.do(step=step)
        assert ended == 0, passed

    def objects(self) -> dict[str, set[str]]:
        """The names of the objects under each checkpoint's prefix."""
        found: dict[str, set[str]] = {}
        for key in self.store.list(keys.checkpoints_prefix(self.task.root, RUN)):
            folder, _, name = key.rpartition("/")
            found.setdefault(f"{folder}/", set()).add(name)
        return found

    def reference(self, prefix: str) -> CheckpointReference:
        """The manifest under a prefix as it lies there; of one that is not there any hash will do."""
        key = f"{prefix}{keys.MANIFEST_NAME}"
        body = self.store.get(key) if self.store.exists(key) else b""
        return CheckpointReference(
            key=key, sha256=sha256_hex(body), step=keys.manifest_identity(self.task.root, RUN, key)[0]
        )

    def claims(self, references: list[CheckpointReference]) -> dict[str, CheckpointClaim]:
        """What the operator makes of what a trainer might say of each, by prefix."""
        task = self.task
        secret = {"AWS_ACCESS_KEY_ID": task.access_key, "AWS_SECRET_ACCESS_KEY": task.secret_key}

        async def look() -> tuple[CheckpointClaim, ...]:
            stores = S3CheckpointStores()
            try:
                store = stores.open(f"s3://{task.bucket}/{task.root}", task.endpoint, secret)
                state = run_state(attempts=attempts((None, 0)))
                return await look_at_claims(store, RUN, state, tuple(references), KILLED, Rejections(RUN))
            finally:
                await stores.close()

        return {one.reference.key.removesuffix(keys.MANIFEST_NAME): one for one in asyncio.run(look())}

    def restores(self, reference: CheckpointReference, folder: Path) -> bool:
        """Whether a fresh trainer restores bit for bit what was saved."""
        ranks = Ranks(self.store, folder, world_size=1, root=self.task.root)
        try:
            state = new_state(99, MODEL)
            (outcome,) = ranks.restore(reference, [state])
            return not isinstance(outcome, Exception) and image(state) == image(new_state(reference.step + 1, MODEL))
        finally:
            ranks.close()


@pytest.fixture
def scene(object_store: ObjectStoreServer, killable: Workers, tmp_path: Path) -> Scene:
    task = Task(
        work="save",
        run=str(RUN),
        endpoint=object_store.endpoint,
        bucket=object_store.new_bucket("killed"),
        audit=object_store.new_bucket("audit"),
        root=f"team/{uuid.uuid4().hex}",
        access_key=ADMIN.access_key,
        secret_key=ADMIN.secret_key,
        folder=str(tmp_path / "staging"),
    )
    return Scene(object_store, task, killable)


def killed_at_every_point(scene: Scene, points: int, **task: Any) -> Iterator[tuple[int, list[str]]]:
    """End a process at the first point, the next one at the second, until one gets to its end."""
    for number in range(points):
        ended, passed = scene.do(number, **task)
        yield ended, passed
        if ended == 0:
            return


def test_a_trainer_killed_at_any_point_of_a_save_leaves_only_what_can_be_restored(scene: Scene, tmp_path: Path) -> None:
    scene.save(GOOD)
    (good,) = scene.objects()
    ends = list(killed_at_every_point(scene, MOST_POINTS, step=KILLED))
    assert [ended for ended, _ in ends] == [-signal.SIGKILL] * (len(ends) - 1) + [0]
    _expect_every_kind([passed[-1] for _, passed in ends[:-1]])
    found = scene.objects()
    references = {prefix: scene.reference(prefix) for prefix in found}
    claims = scene.claims(list(references.values()))
    whole = {prefix for prefix, names in found.items() if keys.MANIFEST_NAME in names}
    assert {prefix for prefix, claim in claims.items() if claim.usable} == whole
    assert good in whole
    assert len(found) > len(whole) > 2, "some ended before the manifest, and some behind it"
    assert not list(tmp_path.iterdir()), "something was left on the local disk"
    for number, prefix in enumerate(whole):
        assert scene.restores(references[prefix], tmp_path / f"restore-{number}"), prefix


def _expect_every_kind(killed_at: list[str]) -> None:
    """All that a save does is among the points; how often each comes is up to the size of the state."""
    wanted = [
        f"{when} {what}"
        for when in ("before", "after")
        for what in (
            "begin __0_0.distcp",
            "part of __0_0.distcp",
            "complete __0_0.distcp",
            "put __0_0.distcp.index.json",
            "put rank-000000.json",
            "put .metadata",
            "put manifest.json",
            "get manifest.json",
            "read .metadata",
            "read __0_0.distcp.index.json",
            "read __0_0.distcp",
        )
    ]
    assert [one for one in wanted if one not in killed_at] == []
    assert sum("part of" in one for one in killed_at) == 4, "there are no two parts"


class Bucket:
    """What lies in the two buckets before an operator begins: five checkpoints and the journal that knows them."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._client, self._task = scene, scene.server.client(), scene.task
        for step in STEPS:
            scene.save(step)
        self.before = scene.objects()
        self.references = {prefix: scene.reference(prefix) for prefix in self.before}
        in_order = sorted(self.references.values(), key=lambda one: one.step)
        self._journal = running_trail(in_order).bodies
        self._bodies = {
            f"{prefix}{name}": scene.store.get(f"{prefix}{name}")
            for prefix, names in self.before.items()
            for name in names
        }

    def set_back(self) -> None:
        """All of it as it was: what was deleted is there again, and what was appended is not."""
        there = {f"{prefix}{name}" for prefix, names in self._scene.objects().items() for name in names}
        for key in self._bodies.keys() - there:
            self._client.put_object(Bucket=self._task.bucket, Key=key, Body=self._bodies[key])
        known = {seq for seq, _ in self.records()}
        for seq, body in self._journal:
            if seq not in known:
                self._client.put_object(Bucket=self._task.audit, Key=keys.journal_record(RUN, seq), Body=body)
        for seq in known - {seq for seq, _ in self._journal}:
            self._client.delete_object(Bucket=self._task.audit, Key=keys.journal_record(RUN, seq))

    def records(self) -> list[tuple[int, bytes]]:
        listed = self._client.list_objects_v2(Bucket=self._task.audit, Prefix=keys.journal_prefix(RUN))
        found = [str(one["Key"]) for one in listed.get("Contents", ())]
        read = [self._client.get_object(Bucket=self._task.audit, Key=key)["Body"].read() for key in found]
        return list(zip(map(keys.journal_seq, found), read, strict=True))

    def prefixes(self, phase: Phase) -> set[str]:
        """The checkpoints of whose deletion there is a record of this phase."""
        parsed = [parse_record(body) for _, body in self.records()]
        found = [one.after or {} for one in parsed if one.action == "Deleting" and one.phase is phase]
        named = [one["checkpoint"]["key"] if "checkpoint" in one else one["key"] for one in found]
        return {str(key).removesuffix(keys.MANIFEST_NAME) for key in named}


def test_an_operator_killed_at_any_point_of_retention_takes_nothing_that_is_needed(
    scene: Scene, tmp_path: Path
) -> None:
    bucket = Bucket(scene)
    (needless,) = [prefix for prefix, one in bucket.references.items() if one.step == NEEDLESS]
    needed = {prefix: names for prefix, names in bucket.before.items() if prefix != needless}
    killed_at: list[str] = []
    for number in range(MOST_POINTS):
        bucket.set_back()
        ended, passed = scene.do(number, work="retire", step=max(STEPS))
        now = scene.objects()
        left = now.pop(needless, set())
        assert now == needed, f"killed {passed[-1]}"
        if left != bucket.before[needless]:
            assert bucket.prefixes(Phase.INTENT) == {needless}, "data went without an intent"
            assert keys.MANIFEST_NAME not in left, "half of a checkpoint looks whole"
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed_at.append(passed[-1])
        assert scene.do(work="retire", step=max(STEPS))[0] == 0, "the next operator finishes"
        assert scene.objects() == needed, f"killed {passed[-1]}"
        assert bucket.prefixes(Phase.INTENT) == bucket.prefixes(Phase.RESULT) == {needless}
        assert not verify_chain(bucket.records()).problems
    wanted = ["append Takeover", "append Deleting Intent", "append Deleting Result"]
    wanted += ["list", "get manifest.json", "list uploads"]
    wanted += [f"delete {name}" for name in bucket.before[needless]]
    assert sorted(killed_at) == sorted(f"{when} {what}" for when in ("before", "after") for what in wanted)
    newest = max(needed, key=lambda prefix: bucket.references[prefix].step)
    assert scene.restores(bucket.references[newest], tmp_path / "restore")
