"""The journal and checkpoint stores against a real S3 server."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator

import pytest
from object_store_fixture import ADMIN, READER, Credentials, ObjectStoreServer
from s3_gateway import Gateway
from trimtab_contract import keys
from trimtab_contract.keys import RunId
from trimtab_operator.adapters import bucket as bucket_module
from trimtab_operator.adapters.ports import Appended
from trimtab_operator.adapters.s3 import S3CheckpointStores, S3Credentials, S3JournalStore, S3Location
from trimtab_operator.errors import AuditStoreUnfit, Conflict, NotFound, StoreRefused, StoreUnavailable


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("audit")


@pytest.fixture
def run() -> RunId:
    return RunId("team", "job", str(uuid.uuid4()))


def credentials(identity: Credentials = ADMIN) -> S3Credentials:
    return S3Credentials(identity.access_key, identity.secret_key)


def secret(identity: Credentials = ADMIN) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": identity.access_key, "AWS_SECRET_ACCESS_KEY": identity.secret_key}


@pytest.fixture
async def journal(object_store: ObjectStoreServer, bucket: str) -> AsyncIterator[S3JournalStore]:
    made = S3JournalStore(S3Location(bucket, object_store.endpoint), credentials())
    yield made
    await made.close()


@pytest.fixture
async def stores() -> AsyncIterator[S3CheckpointStores]:
    made = S3CheckpointStores()
    yield made
    await made.close()


async def test_a_good_bucket_passes_the_probe_and_keeps_nothing_of_it(
    object_store: ObjectStoreServer, journal: S3JournalStore, bucket: str
) -> None:
    await journal.probe()
    assert "Contents" not in object_store.client().list_objects_v2(Bucket=bucket, Prefix="probe/")


async def test_a_bucket_that_ignores_conditions_is_unfit(object_store: ObjectStoreServer, bucket: str) -> None:
    async with Gateway(object_store, ignores_conditions_of="") as gateway:
        store = S3JournalStore(S3Location(bucket, gateway.endpoint), credentials())
        with pytest.raises(AuditStoreUnfit, match="If-None-Match"):
            await store.probe()
        await store.close()


async def test_a_bucket_that_fails_only_in_a_race_is_unfit(object_store: ObjectStoreServer, bucket: str) -> None:
    async with Gateway(object_store, ignores_conditions_of="-race") as gateway:
        store = S3JournalStore(S3Location(bucket, gateway.endpoint), credentials())
        with pytest.raises(AuditStoreUnfit, match="8 of 8 racing"):
            await store.probe()
        await store.close()


@pytest.mark.parametrize("identity", [READER, Credentials(ADMIN.access_key, "nonsense-secret")])
async def test_an_unusable_bucket_is_unfit_in_one_sentence(
    object_store: ObjectStoreServer, bucket: str, identity: Credentials
) -> None:
    store = S3JournalStore(S3Location(bucket, object_store.endpoint), credentials(identity))
    with pytest.raises(AuditStoreUnfit, match="the audit bucket cannot be used") as error:
        await store.probe()
    await store.close()
    assert "nonsense-secret" not in str(error.value)
    assert "\n" not in str(error.value)


async def test_a_missing_audit_bucket_is_named_and_not_made(object_store: ObjectStoreServer) -> None:
    name = f"missing-{uuid.uuid4().hex[:8]}"
    store = S3JournalStore(S3Location(name, object_store.endpoint), credentials())
    with pytest.raises(AuditStoreUnfit, match=f"'{name}' does not exist"):
        await store.probe()
    await store.close()
    assert name not in [each["Name"] for each in object_store.client().list_buckets()["Buckets"]]


async def test_of_eight_appenders_one_wins(journal: S3JournalStore, run: RunId) -> None:
    bodies = [f"writer {number}".encode() for number in range(8)]
    outcomes = await asyncio.gather(*(journal.append(run, 1, body) for body in bodies))
    assert sorted(outcomes) == [Appended.OTHER] * 7 + [Appended.WON]
    assert await journal.read(run) == ((1, bodies[outcomes.index(Appended.WON)]),)


async def test_the_same_record_again_is_the_same(journal: S3JournalStore, run: RunId) -> None:
    assert await journal.append(run, 1, b"{}") is Appended.WON
    assert await journal.append(run, 1, b"{}") is Appended.SAME
    assert await journal.append(run, 1, b"[]") is Appended.OTHER


async def test_a_lost_reply_is_found_out(
    object_store: ObjectStoreServer, bucket: str, journal: S3JournalStore, run: RunId
) -> None:
    async with Gateway(object_store, loses_replies=True) as gateway:
        store = S3JournalStore(S3Location(bucket, gateway.endpoint), credentials())
        assert await store.append(run, 1, b"mine") is Appended.SAME
        await journal.append(run, 2, b"theirs")
        assert await store.append(run, 2, b"mine") is Appended.OTHER
        await store.close()
    assert await journal.read(run) == ((1, b"mine"), (2, b"theirs"))


async def test_an_append_that_never_arrived_is_unavailable_and_may_be_repeated(
    bucket: str, journal: S3JournalStore, run: RunId
) -> None:
    unreachable = S3JournalStore(S3Location(bucket, "http://127.0.0.1:1"), credentials())
    with pytest.raises(StoreUnavailable):
        await unreachable.append(run, 1, b"mine")
    await unreachable.close()
    assert await journal.append(run, 1, b"mine") is Appended.WON


async def test_the_journal_is_read_in_order_with_its_gaps(journal: S3JournalStore, run: RunId) -> None:
    wanted = {seq: f"record {seq}".encode() for seq in (1, 2, 3, 5, 10, 11)}
    await asyncio.gather(*(journal.append(run, seq, body) for seq, body in wanted.items()))
    await journal.append(RunId(run.namespace, run.name, f"{run.uid}0"), 4, b"another run's")
    await journal.put_object(f"{keys.journal_prefix(run)}notes.txt", b"no record")
    await journal.put_object(f"{keys.journal_prefix(run)}nested/{7:012d}.json", b"no record either")
    assert await journal.read(run) == tuple(wanted.items())
    assert await journal.read(run, after=3) == tuple(item for item in wanted.items() if item[0] > 3)
    assert await journal.read(run, after=11) == ()


async def test_a_journal_longer_than_one_listing_is_read_whole(
    journal: S3JournalStore, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "LIST_PAGE", 3)
    for seq in range(1, 9):
        await journal.append(run, seq, str(seq).encode())
    assert [seq for seq, _ in await journal.read(run)] == list(range(1, 9))


async def test_every_run_with_a_journal_is_listed(object_store: ObjectStoreServer) -> None:
    location = S3Location(object_store.new_bucket("audit"), object_store.endpoint)
    store = S3JournalStore(location, credentials())
    runs = sorted(RunId(namespace, name, "uid") for namespace in ("a", "b") for name in ("one", "two"))
    assert await store.runs() == ()
    for run in runs:
        await store.append(run, 1, b"{}")
        await store.append(run, 2, b"{}")
    assert await store.runs() == tuple(runs)
    await store.close()


async def test_texts_are_kept_once_by_their_hash(journal: S3JournalStore) -> None:
    body = uuid.uuid4().bytes
    digest = hashlib.sha256(body).hexdigest()
    key = keys.policy_text(digest)
    assert await journal.put_object(key, body) == digest
    assert await journal.put_object(key, body) == digest
    assert await journal.get_object(key) == body
    with pytest.raises(Conflict, match="other bytes"):
        await journal.put_object(key, b"else")
    with pytest.raises(NotFound):
        await journal.get_object(keys.policy_text("0" * 64))


async def test_a_checkpoint_store_reads_objects_and_sizes(
    object_store: ObjectStoreServer, stores: S3CheckpointStores
) -> None:
    bucket = object_store.new_bucket("checkpoints")
    for key, body in {"root/a/x": b"12", "root/a/y": b"", "root/b": b"123"}.items():
        object_store.client().put_object(Bucket=bucket, Key=key, Body=body)
    store = stores.open(f"s3://{bucket}/root/", object_store.endpoint, secret(READER))
    await store.check()
    assert store.root == "root"
    assert await store.sizes("root/a/") == {"root/a/x": 2, "root/a/y": 0}
    assert await store.get("root/b") == b"123"
    with pytest.raises(NotFound):
        await store.get("root/missing")
    with pytest.raises(StoreRefused, match="larger than the 2 bytes"):
        await store.get("root/b", limit=2)


@pytest.mark.parametrize(
    ("uri", "endpoint", "identity", "sentence"),
    [
        ("s3://no-such-bucket/x", "", ADMIN, "checkpoint.uri: bucket 'no-such-bucket' does not exist"),
        ("s3://{bucket}/x", "", Credentials(ADMIN.access_key, "nonsense-secret"), "checkpoint.credentialsSecretRef"),
        ("s3://{bucket}/x", "", Credentials("nobody", "nonsense-secret"), "checkpoint.credentialsSecretRef"),
        ("/some/path", "", ADMIN, "checkpoint.uri: '/some/path' is not s3://"),
        ("s3://{bucket}/x", "not an address", ADMIN, "endpoint"),
        ("s3://{bucket}/x", "http://127.0.0.1:1", ADMIN, "checkpoint.endpoint"),
        ("s3://{bucket}/x", "", Credentials(ADMIN.access_key, ""), "no AWS_SECRET_ACCESS_KEY"),
    ],
)
async def test_a_wrong_checkpoint_store_is_refused_by_field(
    object_store: ObjectStoreServer,
    stores: S3CheckpointStores,
    bucket: str,
    uri: str,
    endpoint: str,
    identity: Credentials,
    sentence: str,
) -> None:
    with pytest.raises((StoreRefused, StoreUnavailable)) as error:
        await stores.open(uri.format(bucket=bucket), endpoint or object_store.endpoint, secret(identity)).check()
    assert sentence in str(error.value)
    assert "nonsense-secret" not in str(error.value)


async def test_a_store_that_is_away_is_unavailable_and_serves_again(
    object_store: ObjectStoreServer, journal: S3JournalStore, run: RunId
) -> None:
    await journal.append(run, 1, b"before")
    object_store.stop()
    try:
        with pytest.raises(StoreUnavailable):
            await journal.read(run)
        with pytest.raises(StoreUnavailable):
            await journal.append(run, 2, b"after")
    finally:
        object_store.start()
    assert await journal.append(run, 2, b"after") is not Appended.OTHER
    assert await journal.read(run) == ((1, b"before"), (2, b"after"))


def test_credentials_show_nothing_of_themselves() -> None:
    shown = f"{credentials()!r} {credentials()}"
    assert ADMIN.secret_key not in shown
    assert ADMIN.access_key not in shown
