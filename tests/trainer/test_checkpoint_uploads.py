"""Objects on their way to a real S3 server: whole or not there at all, tried again, and never faster than allowed."""

import hashlib
import threading
import time
from collections.abc import Callable
from typing import IO, Any, cast

import pytest
import torch
from object_store_fixture import ADMIN, READER, Credentials, ObjectStoreServer
from trimtab_contract.checkpoints import StoredObject, sha256_hex
from trimtab_trainer.adapters.s3 import Bytes, ObjectStore, Part, StoreTimeouts
from trimtab_trainer.checkpointing.uploading import PART_BYTES, PARTS_IN_FLIGHT, ObjectUpload, Pace
from trimtab_trainer.errors import StoreRefused, StoreUnavailable

BODY = hashlib.shake_256(b"weights").digest(2 * PART_BYTES + 12_345)
TIMEOUTS = StoreTimeouts(connect_seconds=5, read_seconds=20, attempts=1)


class ShakyStore(ObjectStore):
    """The real store behind a network that breaks some requests."""

    def __init__(self, server: ObjectStoreServer, bucket: str, credentials: Credentials = ADMIN) -> None:
        super().__init__(
            bucket,
            endpoint=server.endpoint,
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
            timeouts=TIMEOUTS,
        )
        self.breaks = 0
        self.bodies: list[Bytes] = []
        self._lock = threading.Lock()

    def put_part(self, key: str, upload: str, number: int, body: Bytes) -> Part:
        with self._lock:
            self.breaks -= 1
            if self.breaks >= 0:
                raise StoreUnavailable("the connection broke")
            self.bodies.append(body)
        return super().put_part(key, upload, number, body)


@pytest.fixture(scope="module")
def store(object_store: ObjectStoreServer) -> ShakyStore:
    return ShakyStore(object_store, object_store.new_bucket())


def begun(store: ObjectStore, key: str, seconds: float = 60) -> ObjectUpload:
    stopped = threading.Event()
    return ObjectUpload(store, key, pace=Pace(None, stopped), deadline=time.monotonic() + seconds, stopped=stopped)


def _write_and_fail(upload: ObjectUpload, error: Exception) -> None:
    with upload:
        upload.write(BODY)
        raise error


def test_an_object_of_several_parts_arrives_whole_and_knows_its_slices(store: ShakyStore) -> None:
    with begun(store, "large") as upload:
        with upload.slice("first"):
            upload.write(BODY[:100])
        with upload.slice("second"):
            upload.write(memoryview(BODY)[100:PART_BYTES])
            upload.write(BODY[PART_BYTES:])
    assert store.get("large") == BODY
    stored = upload.stored(3, "large.index.json")
    assert stored == StoredObject(size=len(BODY), sha256=sha256_hex(BODY), rank=3, index="large.index.json")
    assert [(part.name, part.offset, part.length, part.sha256) for part in upload.slices] == [
        ("first", 0, 100, sha256_hex(BODY[:100])),
        ("second", 100, len(BODY) - 100, sha256_hex(BODY[100:])),
    ]


def test_parts_have_the_memory_of_those_that_have_arrived(store: ShakyStore) -> None:
    store.bodies.clear()
    with begun(store, "long") as upload:
        for _ in range(3):
            upload.write(BODY)
    assert store.get("long") == 3 * BODY
    assert len(store.bodies) == 7
    assert len({id(body) for body in store.bodies}) <= PARTS_IN_FLIGHT + 1


@pytest.mark.parametrize("body", [b"", b"small", BODY[:PART_BYTES]])
def test_an_object_of_any_size_arrives(store: ShakyStore, body: bytes) -> None:
    with begun(store, f"size-{len(body)}") as upload:
        upload.write(body)
    assert store.get(f"size-{len(body)}") == body


def test_a_part_that_did_not_arrive_is_sent_again(store: ShakyStore) -> None:
    store.breaks = 3
    with begun(store, "again") as upload:
        upload.write(BODY)
    assert store.breaks < 0
    assert store.get("again") == BODY


def test_what_cannot_be_finished_leaves_no_object_and_no_parts(
    object_store: ObjectStoreServer, store: ShakyStore
) -> None:
    store.breaks = 1_000_000
    try:
        with pytest.raises(StoreUnavailable, match="the connection broke"), begun(store, "broken", 0.5) as upload:
            upload.write(BODY)
    finally:
        store.breaks = 0
    with pytest.raises(RuntimeError, match="the tensor is gone"):
        _write_and_fail(begun(store, "broken"), RuntimeError("the tensor is gone"))
    assert not store.exists("broken")
    uploads: dict[str, Any] = object_store.client().list_multipart_uploads(Bucket=store.bucket)
    assert uploads.get("Uploads", []) == []


def test_a_failure_inside_torch_is_told_as_the_stores_own_answer(
    object_store: ObjectStoreServer, store: ShakyStore
) -> None:
    refused = ShakyStore(object_store, store.bucket, READER)
    with pytest.raises(StoreRefused, match="CreateMultipartUpload"), begun(refused, "refused", 0.2) as upload:
        torch.save(torch.arange(3 * PART_BYTES // 4), cast("IO[bytes]", upload))


def test_uploads_of_a_process_share_its_pace() -> None:
    waits: list[float] = []

    class Noted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    pace = Pace(1.0, Noted())
    for _ in range(3):
        pace.wait_for(1_000_000)
    assert waits[0] == 0
    assert 0.9e6 < waits[1] <= 1e6
    assert 1.9e6 < waits[2] <= 2e6


def test_a_stretch_beyond_the_end_is_empty(store: ShakyStore) -> None:
    store.put("short", b"abcdef")
    found: list[bytes] = []
    take: Callable[[bytes], Any] = found.append
    assert store.stretch("short", 2, 3, take) == 6
    assert store.stretch("short", 4, 100, take) == 6
    assert store.stretch("short", 6, 1, take) == 0
    assert found == [b"cde", b"ef"]
