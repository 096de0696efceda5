"""The bucket of the trail keeps versions, also one from before it did, and a key has one winner all the same."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from botocore.exceptions import ClientError
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_cli.adapters.object_store import BucketAddress, ObjectStore
from trimtab_cli.bucket_versions import ObjectVersions, Versioning
from trimtab_sandbox.s3_server import ensure_bucket

OLD, NEW = "journal/lab/demo/uid/000000000001.json", "journal/lab/demo/uid/000000000002.json"
ONCE = ObjectVersions(versions=1)


def _reader(server: ObjectStoreServer, bucket: str) -> ObjectStore:
    return ObjectStore(BucketAddress(bucket, server.endpoint, ADMIN.access_key, ADMIN.secret_key))


def _won(client: Any, bucket: str, key: str, body: bytes) -> bool:
    try:
        client.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as error:
        code = str(cast("Any", error).response["Error"].get("Code"))
        assert code in {"PreconditionFailed", "ConditionalRequestConflict"}, code
        return False
    return True


def test_a_bucket_from_before_keeps_versions_from_now_on_and_what_it_held_is_written_once(
    object_store: ObjectStoreServer,
) -> None:
    client, bucket = object_store.client(), object_store.new_bucket("audit")
    client.put_object(Bucket=bucket, Key=OLD, Body=b"first", IfNoneMatch="*")
    for _ in range(2):
        ensure_bucket(client, bucket, versioned=True)

    reader = _reader(object_store, bucket)
    assert reader.versioning() is Versioning.ENABLED
    assert not _won(client, bucket, OLD, b"second")
    assert reader.versions("") == {OLD: ONCE}
    assert reader.get(OLD) == b"first"


def test_of_writers_that_race_in_a_bucket_with_versions_one_wins_and_no_other_leaves_a_version(
    object_store: ObjectStoreServer,
) -> None:
    client, bucket = object_store.client(), object_store.new_bucket("audit")
    ensure_bucket(client, bucket, versioned=True)
    bodies = [f"racer {number}".encode() for number in range(8)]
    with ThreadPoolExecutor(len(bodies)) as racers:
        tries = [racers.submit(_won, client, bucket, NEW, body) for body in bodies]
        won = [one.result() for one in tries]

    reader = _reader(object_store, bucket)
    assert won.count(True) == 1
    assert reader.get(NEW) == bodies[won.index(True)]
    assert reader.versions("") == {NEW: ONCE}


def test_a_bucket_for_checkpoints_keeps_no_versions(object_store: ObjectStoreServer) -> None:
    client = object_store.client()
    ensure_bucket(client, "made-for-checkpoints", versioned=False)
    assert _reader(object_store, "made-for-checkpoints").versioning() is Versioning.OFF
