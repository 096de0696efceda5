"""Records from stream and archive: what no trainer can mean is left out and said, and hides nothing beside it."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from judged_runs import record
from object_store_fixture import ADMIN, ObjectStoreServer
from structlog.testing import capture_logs
from trimtab_contract.keys import RunId, records_segment
from trimtab_contract.metrics import encode_archive
from trimtab_operator.adapters.ports import Rejected
from trimtab_operator.adapters.s3 import S3CheckpointStore, S3CheckpointStores
from trimtab_operator.errors import NotFound, ObjectTooLarge, StoreRefused
from trimtab_operator.records import REMEMBERED_REJECTIONS, RecordFeed, Rejections

RUN = RunId("lab", "demo", "uid")
SECRET = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}


@pytest.fixture
async def store(object_store: ObjectStoreServer) -> AsyncIterator[S3CheckpointStore]:
    bucket, made = object_store.new_bucket("archive"), S3CheckpointStores()
    segments = {
        records_segment("team", RUN, 1, 1, 2): encode_archive([record(1), record(2)]),
        records_segment("team", RUN, 1, 3, 3): b"\x91\x81\xa1a" + b"\x91" * 5000,
        records_segment("team", RUN, 1, 4, 4): encode_archive([record(4)]),
    }
    for key, body in segments.items():
        object_store.client().put_object(Bucket=bucket, Key=key, Body=body)
    yield made.open(f"s3://{bucket}/team", object_store.endpoint, SECRET)
    await made.close()


def feed_of(store: S3CheckpointStore) -> RecordFeed:
    feed = RecordFeed(cast("Any", None), RUN, Rejections(RUN))
    feed.store = store
    return feed


async def test_a_stretch_that_cannot_be_read_hides_no_other(store: S3CheckpointStore) -> None:
    feed = feed_of(store)
    assert [one.step for one in await feed.archived(1, 1, 4)] == [1, 2, 4]
    assert feed.rejections.count == 1


@pytest.mark.parametrize("error", [ObjectTooLarge("too large"), StoreRefused("refused"), NotFound("gone")])
async def test_a_stretch_that_s3_does_not_hand_out_hides_no_other(
    store: S3CheckpointStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    feed, get = feed_of(store), store.get

    async def get_some(key: str) -> bytes:
        if key.endswith("1-000000000002"):
            raise error
        return await get(key)

    monkeypatch.setattr(store, "get", get_some)
    assert [one.step for one in await feed.archived(1, 1, 4)] == [4]


def test_what_is_rejected_is_said_once_in_one_line_and_takes_no_more_room() -> None:
    rejections = Rejections(RUN)
    with capture_logs() as logs:
        for _ in range(3):
            rejections.add([Rejected("1-0", "noise"), Rejected("2-0", "noise")])
            rejections.add([])
    assert [(line["new"], line["id"], line["reason"]) for line in logs] == [(2, "1-0", "noise")]
    for first in range(0, 10 * REMEMBERED_REJECTIONS, REMEMBERED_REJECTIONS):
        rejections.add([Rejected(f"{first + one}-1", "noise") for one in range(REMEMBERED_REJECTIONS)])
    assert rejections.count == 2 + 10 * REMEMBERED_REJECTIONS
    assert sum(isinstance(held, dict) and len(held) for held in vars(rejections).values()) <= REMEMBERED_REJECTIONS
