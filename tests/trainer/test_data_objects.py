"""Sources in S3: the same windows as from disk, few requests, and an honest error when an object is not what it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_contract.data_position import Order
from trimtab_trainer.adapters.s3 import ObjectStore, StoreTimeouts
from trimtab_trainer.config import DataConfig, SourceKind
from trimtab_trainer.data import DataReader, Patience, Windows
from trimtab_trainer.data.object_blobs import BlockCache, ObjectBlob
from trimtab_trainer.errors import BadConfig, DataUnreadable

BODY = bytes(range(256)) * 64


class CountingStore(ObjectStore):
    """Counts the requests for bytes."""

    requests = 0

    def stretch(self, key: str, offset: int, length: int, into: Callable[[bytes], object]) -> int:
        self.requests += 1
        return super().stretch(key, offset, length, into)


def store_of(server: ObjectStoreServer, bucket: str) -> CountingStore:
    return CountingStore(
        bucket,
        endpoint=server.endpoint,
        access_key=ADMIN.access_key,
        secret_key=ADMIN.secret_key,
        timeouts=StoreTimeouts(connect_seconds=1, read_seconds=1, attempts=1),
    )


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket("data")


@pytest.fixture
def store(object_store: ObjectStoreServer, bucket: str) -> CountingStore:
    return store_of(object_store, bucket)


def opened(store: ObjectStore, path: str, patience: float = 0.0, **fields: Any) -> Windows:
    config = DataConfig(path=path, **fields)
    reader = DataReader(config, sequence=8, global_batch=4, store_of=lambda _bucket: store, patience=Patience(patience))
    return Windows(*reader.opened())


@pytest.mark.parametrize("order", Order)
def test_objects_give_the_windows_of_the_same_files_on_disk(store: CountingStore, tmp_path: Path, order: Order) -> None:
    for name, body in (("part-0.bin", BODY), ("part-1.bin", BODY[:1000])):
        store.put(f"set/{name}", body)
        (tmp_path / name).write_bytes(body)
    store.put("set/part-x/part-2.bin", b"another folder")
    from_disk = opened(store, f"{tmp_path}/part-*.bin", order=order, seed=4)
    from_s3 = opened(store, f"s3://{store.bucket}/set/part-*.bin", order=order, seed=4)
    assert from_s3.description.changes_since(from_disk.description) == ()
    for window in (0, 1, 40, 511, 542):
        assert from_s3.read(window).tolist() == from_disk.read(window).tolist()
        assert from_s3.window_digest(window) == from_disk.window_digest(window)


def test_windows_that_follow_each_other_cost_one_request_for_many(store: CountingStore) -> None:
    store.put("sequential.bin", BODY)
    windows = opened(store, f"s3://{store.bucket}/sequential.bin")
    at_start = store.requests
    for window in range(256):
        windows.read(window)
    assert store.requests - at_start <= 1


def test_the_blocks_that_are_kept_are_bounded(store: CountingStore) -> None:
    store.put("blocks.bin", BODY)
    blob = ObjectBlob(store, "blocks.bin", len(BODY), BlockCache(block_bytes=64, capacity=256), Patience(0.0))
    assert [blob.read(offset, 10) for offset in (60, 60, 64)] == [BODY[60:70], BODY[60:70], BODY[64:74]]
    assert store.requests == 2, "both blocks were there already"
    for offset in range(0, 640, 64):
        blob.read(offset, 1)
    before = store.requests
    blob.read(60, 1)
    assert store.requests == before + 1, "the oldest block made room"
    assert blob.read(100, 5000) == BODY[100:5100]


def test_documents_in_objects_are_indexed_like_files(store: CountingStore) -> None:
    store.put("docs.jsonl", b'{"text": "abcdefghij"}\n{"text": "klmnopqrst"}\n')
    windows = opened(store, f"s3://{store.bucket}/docs.jsonl", kind=SourceKind.JSONL)
    assert windows.read(0)[1].tolist() == [105, 106, 255, 107, 108, 109, 110, 111, 112]


@pytest.mark.parametrize("path", ["s3://{bucket}/absent.bin", "s3://{bucket}/absent-*", "s3://no-such-bucket/a.bin"])
def test_what_is_not_there_is_refused_by_the_field_and_the_address(
    object_store: ObjectStoreServer, bucket: str, path: str
) -> None:
    address = path.format(bucket=bucket)
    with pytest.raises(BadConfig) as caught:
        opened(store_of(object_store, address.split("/")[2]), address)
    (problem,) = caught.value.problems
    assert problem.startswith("data.path: ")
    assert address in problem
    assert "checkpoint.uri" not in problem


def test_an_object_that_was_replaced_by_a_longer_one_is_not_read(store: CountingStore) -> None:
    store.put("replaced.bin", BODY)
    windows = opened(store, f"s3://{store.bucket}/replaced.bin", order=Order.SHUFFLED)
    blob = ObjectBlob(store, "replaced.bin", len(BODY), BlockCache(block_bytes=64), Patience(0.0))
    store.put("replaced.bin", BODY + b"more")
    with pytest.raises(DataUnreadable, match="changed while it was read"):
        blob.read(0, 10)
    again = opened(store, f"s3://{store.bucket}/replaced.bin", order=Order.SHUFFLED)
    assert again.description.changes_since(windows.description)


def test_a_store_that_stays_away_is_an_error_and_one_that_comes_back_is_none(
    object_store: ObjectStoreServer, store: CountingStore
) -> None:
    store.put("away.bin", BODY)
    waits: list[int] = []

    def back() -> None:
        waits.append(1)
        object_store.thaw()

    impatient = ObjectBlob(store, "away.bin", len(BODY), BlockCache(block_bytes=64), Patience(0.0))
    patient = ObjectBlob(store, "away.bin", len(BODY), BlockCache(block_bytes=64), Patience(60.0, back))
    object_store.freeze()
    try:
        with pytest.raises(DataUnreadable, match=r"away\.bin cannot be read"):
            impatient.read(0, 10)
        assert patient.read(0, 10) == BODY[:10]
    finally:
        object_store.thaw()
    assert waits
