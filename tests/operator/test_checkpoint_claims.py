"""What a trainer says it saved, looked at on a real S3 server."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from object_store_fixture import ADMIN, ObjectStoreServer
from run_states import attempts, incident, latch, run_state
from saving_trainer import OBJECTS, STORED, WEIGHTS, Trainer
from trimtab_contract.checkpoints import (
    FiniteScan,
    StoredSlice,
)
from trimtab_contract.directives import CheckpointReference
from trimtab_operator.adapters.s3 import S3CheckpointStore, S3CheckpointStores
from trimtab_operator.claims import look_at_claims
from trimtab_operator.errors import StoreRefused, StoreUnavailable
from trimtab_operator.observation import CheckpointClaim
from trimtab_operator.records import Rejections
from trimtab_operator.run_state import Checkpoint, CheckpointState, RunState

INDEX = "rank-000001.bin.index.json"
SECRET = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("claims")


@pytest.fixture
async def store(object_store: ObjectStoreServer, bucket: str) -> AsyncIterator[S3CheckpointStore]:
    made = S3CheckpointStores()
    yield made.open(f"s3://{bucket}/team", object_store.endpoint, SECRET)
    await made.close()


@pytest.fixture
def trainer(object_store: ObjectStoreServer, bucket: str) -> Trainer:
    return Trainer(object_store, bucket)


async def look(
    store: S3CheckpointStore,
    trainer: Trainer,
    *references: CheckpointReference,
    state: RunState | None = None,
    rejections: Rejections | None = None,
) -> tuple[CheckpointClaim, ...]:
    return await look_at_claims(
        store, trainer.run, state or run_state(), references, 100, rejections or Rejections(trainer.run)
    )


async def test_a_complete_checkpoint_is_usable_and_its_evidence_is_the_manifest(
    store: S3CheckpointStore, trainer: Trainer
) -> None:
    reference = trainer.save()
    (claim,) = await look(store, trainer, reference)
    assert claim.usable
    assert claim.attempt == 1
    assert claim.loss == 1.5
    size = sum(map(len, OBJECTS.values()))
    assert f"sizes of 4 objects ({size} bytes) agree" in claim.why
    assert [(one.key, one.sha256, one.store) for one in claim.evidence] == [
        (reference.key, reference.sha256, "checkpoint")
    ]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda one: one.save(leave_out="rank-000001.bin"), "object rank-000001.bin has no bytes instead of 12"),
        (lambda one: one.save(cut="rank-000000.bin"), "object rank-000000.bin has 6 bytes instead of 7"),
        (lambda one: one.save(leave_out=INDEX), f"object {INDEX} has no bytes instead of {len(OBJECTS[INDEX])}"),
        (lambda one: one.save(cut=INDEX), f"object {INDEX} has {len(OBJECTS[INDEX]) - 1} bytes"),
        (lambda one: one.save(schema=2), "has an index, which schema 2 does not know"),
        (lambda one: one.save(replicas_agree=False), "replicas disagreed when it was saved"),
        (
            lambda one: one.save(finite=FiniteScan(nonfinite=3, tensors=("head",))),
            "3 elements of head are not finite",
        ),
        (lambda one: one.save(run="lab/other/uid"), "belongs to run lab/other/uid"),
        (lambda one: one.save(step=10, manifest_step=11), "its manifest says step 11"),
        (lambda one: one.save(attempt=1, manifest_attempt=2), "its manifest says attempt 2"),
        (lambda one: msgspec.structs.replace(one.save(), sha256="0" * 64), "SHA-256 is not the one the trainer named"),
        (lambda one: one.nothing(), "does not exist"),
        (lambda one: one.save(trigger="Suspect"), "the state at which the run was held: evidence, never a target"),
    ],
)
async def test_a_checkpoint_that_cannot_be_trusted_is_refused_with_its_reason(
    store: S3CheckpointStore, trainer: Trainer, make: Callable[[Trainer], CheckpointReference], why: str
) -> None:
    (claim,) = await look(store, trainer, make(trainer))
    assert not claim.usable
    assert why in claim.why


@pytest.mark.parametrize("schema", [1, 2])
async def test_what_an_older_version_saved_is_as_good(store: S3CheckpointStore, trainer: Trainer, schema: int) -> None:
    older = {name: msgspec.structs.replace(STORED[name], index="") for name in WEIGHTS}
    if schema == 2:
        sliced = {"slices": (StoredSlice(name="head", offset=0, length=7, sha256=older["rank-000000.bin"].sha256),)}
        older["rank-000000.bin"] = msgspec.structs.replace(older["rank-000000.bin"], **sliced)
    (claim,) = await look(store, trainer, trainer.save(schema=schema, objects=older))
    assert claim.usable
    assert "sizes of 2 objects (19 bytes) agree" in claim.why


async def test_what_a_newer_version_saved_is_neither_good_nor_bad(store: S3CheckpointStore, trainer: Trainer) -> None:
    """A trainer's image may be newer than the operator: what is condemned stays so when the operator is upgraded."""
    (claim,) = await look(store, trainer, trainer.save(schema=9))
    assert (claim.usable, claim.newer) == (False, True)
    assert "schema 9" in claim.why
    assert "use a Trimtab as new as the one that saved it" in claim.why


async def test_what_is_no_manifest_is_refused(store: S3CheckpointStore, trainer: Trainer) -> None:
    (claim,) = await look(store, trainer, trainer.junk())
    assert not claim.usable
    assert "manifest cannot be decoded" in claim.why


@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"key": "x" * 3000},
        {"key": "team/\0/manifest.json"},
        {"key": "team/../manifest.json"},
        {"key": "journal/manifest.json"},
        {"step": 11},
        {"step": -10},
        {"sha256": "x" * 50_000},
    ],
)
async def test_a_claim_that_is_no_checkpoint_of_this_run_is_ignored_and_hides_no_other(
    store: S3CheckpointStore, trainer: Trainer, change: dict[str, Any]
) -> None:
    true = trainer.save(20)
    false = msgspec.structs.replace(trainer.save(), **change)
    foreign = msgspec.structs.replace(
        false, key=Trainer.prefix(trainer, 10).replace("lab/job", "lab/other") + "manifest.json"
    )
    rejections = Rejections(trainer.run)
    claims = await look(store, trainer, false, foreign, true, rejections=rejections)
    assert rejections.count == 2
    assert [(claim.reference, claim.usable) for claim in claims] == [(true, True)]


@pytest.mark.parametrize(("step", "attempt"), [(101, 1), (10**11, 1), (10, 99), (10, 0), (81, 1), (80, 2)])
async def test_a_checkpoint_that_the_surviving_history_cannot_contain_is_no_candidate(
    store: S3CheckpointStore, trainer: Trainer, step: int, attempt: int
) -> None:
    state = run_state(attempts=attempts((None, 0), (1, 80)) if step in {80, 81} else attempts((None, 0)))
    assert await look(store, trainer, trainer.save(step, attempt=attempt), state=state) == ()


async def test_the_state_of_a_hold_is_known_also_when_it_is_stored_after_the_run_went_back(
    store: S3CheckpointStore, trainer: Trainer
) -> None:
    held = incident(latch=latch(first_bad_step=88), held_step=90)
    history = attempts((None, 0), (1, 80))
    late, sound, elsewhere = (
        trainer.save(90, trigger="Suspect"),
        trainer.save(90),
        trainer.save(89, trigger="Suspect"),
    )
    for state in (run_state(attempts=history, incident=held), run_state(attempts=history, closed=(held,))):
        (claim,) = await look(store, trainer, late, sound, elsewhere, state=state)
        assert (claim.reference, claim.attempt, claim.usable) == (late, 1, False)


@pytest.mark.parametrize(("step", "attempt"), [(0, 1), (80, 1), (81, 2), (100, 2)])
async def test_every_step_that_was_trained_can_have_been_saved(
    store: S3CheckpointStore, trainer: Trainer, step: int, attempt: int
) -> None:
    (claim,) = await look(
        store, trainer, trainer.save(step, attempt=attempt), state=run_state(attempts=attempts((None, 0), (1, 80)))
    )
    assert (claim.usable, claim.attempt) == (True, attempt)


async def test_a_manifest_too_large_to_be_one_is_refused(
    store: S3CheckpointStore, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = store.get

    async def get_little(key: str, _limit: int) -> bytes:
        return await get(key, 20)

    monkeypatch.setattr(store, "get", get_little)
    (claim,) = await look(store, trainer, trainer.save())
    assert (claim.usable, claim.why) == (False, "its manifest is larger than any manifest can be")


async def test_what_s3_does_not_hand_out_hides_no_other_checkpoint(
    store: S3CheckpointStore, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, open_one, get = trainer.save(10), trainer.save(20), store.get

    async def get_some(key: str, limit: int) -> bytes:
        if key == locked.key:
            raise StoreRefused("S3 refuses (InvalidObjectState)")
        return await get(key, limit)

    monkeypatch.setattr(store, "get", get_some)
    assert [claim.reference for claim in await look(store, trainer, locked, open_one)] == [open_one]


async def test_what_the_journal_knows_is_not_looked_at_again(store: S3CheckpointStore, trainer: Trainer) -> None:
    known, new = trainer.save(10), trainer.save(20)
    state = run_state(checkpoints=(Checkpoint(reference=known, attempt=1, state=CheckpointState.COMMITTED),))
    claims = await look(store, trainer, known, new, new, state=state)
    assert [claim.reference for claim in claims] == [new]


async def test_a_silent_store_refuses_nothing(object_store: ObjectStoreServer, bucket: str, trainer: Trainer) -> None:
    reference = trainer.save()
    stores = S3CheckpointStores()
    store = stores.open(f"s3://{bucket}/team", "http://127.0.0.1:9", SECRET)
    with pytest.raises(StoreUnavailable):
        await look(store, trainer, reference)
    await stores.close()
