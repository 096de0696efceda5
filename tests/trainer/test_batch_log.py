"""The log of what was read loses nothing while the store is away and lists nothing twice."""

import uuid
from pathlib import Path

import pytest
from object_store_fixture import ADMIN, READER, Credentials, ObjectStoreServer
from trimtab_contract import keys
from trimtab_contract.evidence import BatchLogEntry, decode_batch_log
from trimtab_contract.keys import RunId
from trimtab_trainer.adapters.s3 import ObjectStore, StoreTimeouts
from trimtab_trainer.data import BatchLog
from trimtab_trainer.errors import StoreRefused, StoreUnavailable


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket()


@pytest.fixture
def run() -> RunId:
    return RunId("team", "run", uuid.uuid4().hex)


def opened(server: ObjectStoreServer, bucket: str, credentials: Credentials = ADMIN) -> ObjectStore:
    return ObjectStore(
        bucket,
        endpoint=server.endpoint,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        timeouts=StoreTimeouts(connect_seconds=1, read_seconds=1, attempts=1),
    )


def entry(step: int, attempt: int = 1) -> BatchLogEntry:
    return BatchLogEntry(attempt=attempt, step=step, window=step - 1, sha256=f"{step:064x}")


def logged(store: ObjectStore, run: RunId) -> list[BatchLogEntry]:
    return [found for key in store.list(keys.batches_prefix("r", run)) for found in decode_batch_log(store.get(key))]


def test_flushed_segments_together_hold_every_window_once(
    object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    store = opened(object_store, bucket)
    log = BatchLog(store, "r", run, 3)
    for steps in (range(1, 4), range(4, 8)):
        for step in steps:
            log.append(entry(step))
        log.flush()
    log.flush()
    assert logged(store, run) == [entry(step) for step in range(1, 8)]
    assert list(store.list(keys.batches_prefix("r", run))) == [
        keys.batches_segment("r", run, 1, 3, 1, 3),
        keys.batches_segment("r", run, 1, 3, 4, 7),
    ]


def test_a_new_attempt_and_a_step_that_falls_back_begin_a_new_segment(
    object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    store = opened(object_store, bucket)
    log = BatchLog(store, "r", run, 0)
    for each in (entry(5), entry(6), entry(4, attempt=2), entry(5, attempt=2)):
        log.append(each)
    log.flush()
    assert list(store.list(keys.batches_prefix("r", run))) == [
        keys.batches_segment("r", run, 1, 0, 5, 6),
        keys.batches_segment("r", run, 2, 0, 4, 5),
    ]


def test_what_is_trained_on_is_stored_once_for_each_attempt_beside_the_log(
    object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    store = opened(object_store, bucket)
    log = BatchLog(store, "r", run, 0, description=b"the data")
    for attempt in (1, 1, 2):
        log.append(entry(5, attempt))
        log.flush()
    described = store.list(keys.data_prefix("r", run))
    assert list(described) == [keys.data_object("r", run, 1), keys.data_object("r", run, 2)]
    assert store.get(keys.data_object("r", run, 1)) == b"the data"


def test_nothing_is_lost_or_doubled_when_the_store_was_away(
    object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    store = opened(object_store, bucket)
    log = BatchLog(store, "r", run, 0)
    log.append(entry(1))
    object_store.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            log.flush()
        log.append(entry(2))
        assert log.pending == 2
    finally:
        object_store.thaw()
    log.flush()
    assert logged(store, run) == [entry(1), entry(2)]
    assert (log.pending, log.dropped) == (0, 0)


def test_a_segment_whose_answer_was_lost_is_not_listed_twice(
    object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    store = LosesAnAnswer(opened(object_store, bucket))
    log = BatchLog(store, "r", run, 0)
    log.append(entry(1))
    with pytest.raises(StoreUnavailable):
        log.flush()
    log.append(entry(2))
    log.flush()
    assert logged(opened(object_store, bucket), run) == [entry(1), entry(2)]


class LosesAnAnswer(ObjectStore):
    """Stores, and says once that it did not."""

    def __init__(self, real: ObjectStore) -> None:
        self.__dict__ = real.__dict__
        self._lost = False

    def put(self, key: str, body: bytes | Path) -> None:
        super().put(key, body)
        if not self._lost:
            self._lost = True
            raise StoreUnavailable("the answer was lost")


def test_a_refusal_is_passed_on_and_memory_stays_bounded(
    object_store: ObjectStoreServer, bucket: str, run: RunId
) -> None:
    log = BatchLog(opened(object_store, bucket, READER), "r", run, 0, max_entries=4)
    for step in range(1, 4):
        log.append(entry(step))
    with pytest.raises(StoreRefused, match=r"checkpoint\.uri"):
        log.flush()
    for step in range(4, 10):
        log.append(entry(step))
    assert log.pending <= 4
    assert log.pending + log.dropped == 9
