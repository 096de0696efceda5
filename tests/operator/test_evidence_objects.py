"""What is kept of an incident besides its records: statistics, batches with the ranks' hashes, places, the policy."""

import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from judged_runs import record
from object_store_fixture import ADMIN, ObjectStoreServer
from run_states import latch
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.data_description import DataDescription, SourceDescription, encode_data
from trimtab_contract.data_position import Order
from trimtab_contract.evidence import BatchLogEntry, encode_batch_log
from trimtab_contract.keys import (
    MAX_SEGMENT_STEPS,
    RunId,
    batches_segment,
    batches_stretches,
    data_object,
    policy_text,
)
from trimtab_contract.metrics import Vector
from trimtab_operator.adapters.ports import CheckpointStore
from trimtab_operator.adapters.s3 import S3CheckpointStores, S3Credentials, S3JournalStore, S3Location
from trimtab_operator.frozen_evidence import (
    MOST_RECORDS,
    MOST_SAMPLES,
    EvidenceFreezer,
    Suspicion,
    batches,
    order_of_data,
    placement,
    statistics,
)
from trimtab_operator.observation import PodPlace, Pods

RUN = RunId("lab", "demo", "uid")
DIGEST = f"sha256:{'ab' * 32}"
FIRED = latch(first_bad_step=10_003)
RECORDS = tuple(record(step, loss=2.0) for step in range(10_002, 10_006))
SUSPICION = Suspicion(
    latch=FIRED,
    body=b"records",
    records=RECORDS,
    pods=Pods(world=3, places=(PodPlace(0, "demo-3-0-x", "node-7", f"example/trainer@{DIGEST}"),)),
    ranks=2,
    data_order={"globalBatch": 16, "seed": 7},
)
DATA = DataDescription(
    order=Order.SHUFFLED,
    seed=7,
    global_batch=16,
    sequence=128,
    sources=(
        SourceDescription(name="web", kind="uint16", weight=0.7, samples=5_000, size=1, sha256="ab"),
        SourceDescription(name="books", kind="jsonl:text", weight=0.3, samples=700, size=1, sha256="cd"),
    ),
)


@pytest.fixture
async def journal(object_store: ObjectStoreServer) -> AsyncIterator[S3JournalStore]:
    location = S3Location(object_store.new_bucket("audit"), object_store.endpoint)
    store = S3JournalStore(location, S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    yield store
    await store.close()


@pytest.fixture
async def store(object_store: ObjectStoreServer) -> AsyncIterator[CheckpointStore]:
    """The job's bucket, where each of two ranks has logged what it read, in stretches of its own."""
    bucket = object_store.new_bucket("checkpoints")
    for rank, stretches in enumerate([((1, 5), (9_995, 10_004), (10_005, 10_020)), ((9_999, 10_020),)]):
        for first, last in stretches:
            entries = [
                BatchLogEntry(attempt=1, step=step, window=step - 1, sha256=f"{rank}-{step}")
                for step in range(first, last + 1)
            ]
            key = batches_segment("root", RUN, 1, rank, first, last)
            object_store.client().put_object(Bucket=bucket, Key=key, Body=encode_batch_log(entries))
    stores = S3CheckpointStores()
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    yield stores.open(f"s3://{bucket}/root", object_store.endpoint, secret)
    await stores.close()


async def test_every_object_is_kept_under_its_hash_and_says_what_it_is(
    journal: S3JournalStore, store: CheckpointStore
) -> None:
    kept = await EvidenceFreezer(RUN, journal).freeze(SUSPICION, store)
    bodies = [await journal.get_object(one.key) for one in kept[:4]]
    assert [sha256_hex(body) for body in bodies] == [one.sha256 for one in kept[:4]]
    assert bodies[0] == b"records"
    assert [json.loads(body)["kind"] for body in bodies[1:]] == ["VectorStatistics", "Batches", "Placement"]
    assert (kept[4].key, kept[4].sha256) == (policy_text(FIRED.policy_hash or ""), FIRED.policy_hash)


async def test_the_batches_of_the_suspect_steps_carry_what_each_rank_says_it_read(
    journal: S3JournalStore, store: CheckpointStore
) -> None:
    kept = await EvidenceFreezer(RUN, journal).freeze(SUSPICION, store)
    batches = json.loads(await journal.get_object(kept[2].key))
    assert batches["order"] == {"globalBatch": 16, "seed": 7}
    steps = {one["step"]: one for one in batches["steps"]}
    assert list(steps) == [10_002, 10_003, 10_004, 10_005]
    assert steps[10_003]["window"] == 10_002
    assert steps[10_003]["positions"] == [160_032, 160_047]
    assert steps[10_004]["sha256ByRank"] == {"0": "0-10004", "1": "1-10004"}
    assert steps[10_005]["sha256ByRank"] == {"0": "0-10005", "1": "1-10005"}
    assert steps[10_002]["sha256ByRank"] == {}, "the last healthy step is shown, and not suspect"


async def test_the_samples_of_the_suspect_steps_are_named_by_source_and_index(
    journal: S3JournalStore, store: CheckpointStore, object_store: ObjectStoreServer
) -> None:
    bucket = object_store.new_bucket("checkpoints")
    for attempt, description in ((1, DATA), (2, msgspec.structs.replace(DATA, seed=99))):
        key = data_object("root", RUN, attempt)
        object_store.client().put_object(Bucket=bucket, Key=key, Body=encode_data(description))
    stores = S3CheckpointStores()
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    described = stores.open(f"s3://{bucket}/root", object_store.endpoint, secret)
    kept = await EvidenceFreezer(RUN, journal).freeze(SUSPICION, described)
    await stores.close()
    batches = json.loads(await journal.get_object(kept[2].key))
    assert batches["data"]["seed"] == 7, "that of the attempt, not of a later one"
    order = DATA.data_order()
    for step in batches["steps"]:
        first, last = step["positions"]
        expected = [order.sample(position) for position in range(first, last + 1)]
        assert step["samples"] == [[("web", "books")[one.source], one.sample] for one in expected]


def test_of_huge_batches_only_as_many_samples_are_named_as_one_can_read() -> None:
    huge = msgspec.structs.replace(DATA, global_batch=MOST_SAMPLES // 2)
    steps = json.loads(batches(SUSPICION, {}, huge))["steps"]
    assert [one["samples"] is None for one in steps] == [False, False, True, True]
    assert [one["samples"] for one in json.loads(batches(SUSPICION, {}))["steps"]] == [None] * 4


async def test_without_the_ranks_logs_the_rest_is_kept(journal: S3JournalStore, store: CheckpointStore) -> None:
    elsewhere = replace(SUSPICION, latch=msgspec.structs.replace(FIRED, attempt=9))
    for suspicion, place in ((SUSPICION, None), (elsewhere, store)):
        kept = await EvidenceFreezer(RUN, journal).freeze(suspicion, place)
        batches = json.loads(await journal.get_object(kept[2].key))
        assert [one["sha256ByRank"] for one in batches["steps"]] == [{}] * 4


async def test_a_damaged_log_of_a_rank_delays_no_hold(
    journal: S3JournalStore, store: CheckpointStore, object_store: ObjectStoreServer
) -> None:
    bucket = object_store.new_bucket("checkpoints")
    key = batches_segment("", RUN, 1, 0, 10_000, 10_010)
    object_store.client().put_object(Bucket=bucket, Key=key, Body=b"no log")
    stores = S3CheckpointStores()
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    damaged = stores.open(f"s3://{bucket}", object_store.endpoint, secret)
    assert len(await EvidenceFreezer(RUN, journal).freeze(SUSPICION, damaged)) == 5
    await stores.close()


def test_statistics_are_by_layer_and_by_head_and_name_what_is_not_finite() -> None:
    gamma = Vector.pack((2, 3), [1.0, 0.5, 0.75, math.nan, 1.0, math.inf])
    (shown,) = json.loads(statistics([record(5, vectors={"qk_clip_gamma": gamma})]))["records"]
    vector = shown["vectors"]["qk_clip_gamma"]
    assert vector["shape"] == [2, 3]
    assert vector["values"] == [[1.0, 0.5, 0.75], ["NaN", 1.0, "Infinity"]]
    assert vector["layers"] == [
        {"min": 0.5, "mean": 0.75, "max": 1.0, "nonfinite": 0},
        {"min": 1.0, "mean": 1.0, "max": 1.0, "nonfinite": 2},
    ]


def test_of_a_long_divergence_the_first_and_the_last_records_are_spelt_out() -> None:
    shown = json.loads(statistics([record(step, loss=1.0) for step in range(1, 400)]))["records"]
    steps = [one["step"] for one in shown]
    assert len(steps) == MOST_RECORDS
    assert (steps[0], steps[-1]) == (1, 399)


def test_the_placement_names_pods_nodes_and_digests() -> None:
    unpulled = PodPlace(1, "demo-3-1-y", "", "")
    (one, other) = json.loads(placement(replace(SUSPICION.pods, places=(*SUSPICION.pods.places, unpulled))))["pods"]
    assert one == {
        "index": 0,
        "pod": "demo-3-0-x",
        "node": "node-7",
        "image": f"example/trainer@{DIGEST}",
        "digest": DIGEST,
    }
    assert other["digest"] is None


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (
            {"seed": 1, "globalBatch": 8, "data": {"order": "shuffled", "path": "x"}},
            ["data.order", "globalBatch", "seed"],
        ),
        ({"data": "text"}, []),
        ({}, []),
    ],
)
def test_only_what_gives_positions_their_meaning_is_taken_of_the_configuration(
    config: dict[str, Any], found: list[str]
) -> None:
    assert sorted(order_of_data(config)) == found


def test_the_stretches_of_a_log_cover_every_segment_that_can_hold_a_step() -> None:
    for first in (1, 9_999, 10_000, 10_001, 123_456):
        prefixes = batches_stretches("root", RUN, 1, 0, first, first + 50)
        assert len(prefixes) <= 3
        for begins in range(max(1, first - MAX_SEGMENT_STEPS + 1), first + 51, 997):
            key = batches_segment("root", RUN, 1, 0, begins, begins + 5)
            assert any(key.startswith(prefix) for prefix in prefixes), (first, begins)
