"""What trainer, operator and command line say of a store that refuses: one sentence, the same meaning, no secret."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_ranks import FAST, Ranks, new_state
from object_store_fixture import ADMIN, Credentials, ObjectStoreServer
from refusing_store import SECRET_WORD, refusing_store
from trimtab_cli.adapters.object_store import BucketAddress
from trimtab_cli.adapters.object_store import ObjectStore as CommandStore
from trimtab_cli.errors import CliError
from trimtab_operator.adapters.s3 import S3CheckpointStores
from trimtab_operator.errors import OperatorError
from trimtab_trainer.adapters.s3 import ObjectStore, StoreTimeouts
from trimtab_trainer.checkpointing import Backlog, SaveFailed
from trimtab_trainer.errors import StoreError

SECRET = Credentials("access", "s3cr3t-key")
ONCE = StoreTimeouts(attempts=1)

REFUSALS: dict[str, tuple[int, str, tuple[str, str, str], str]] = {
    "wrong bucket": (404, "NoSuchBucket", ("StoreRefused", "StoreRefused", "NotFound"), "bucket"),
    "wrong secret key": (
        403,
        "SignatureDoesNotMatch",
        ("StoreRefused", "CredentialsRefused", "NotAllowed"),
        "SignatureDoesNotMatch",
    ),
    "wrong access key": (
        403,
        "InvalidAccessKeyId",
        ("StoreRefused", "CredentialsRefused", "NotAllowed"),
        "InvalidAccessKeyId",
    ),
    "no right": (403, "AccessDenied", ("StoreRefused", "StoreRefused", "NotAllowed"), "AccessDenied"),
    "wrong region": (
        400,
        "AuthorizationHeaderMalformed",
        ("StoreRefused", "WrongRegion", "NotAllowed"),
        "another region (eu-west-1): name the endpoint of that region",
    ),
    "wrong clock": (
        403,
        "RequestTimeTooSkewed",
        ("StoreUnavailable", "StoreTroubled", "Unreachable"),
        "clock and that of this machine differ",
    ),
    "full bucket": (403, "QuotaExceeded", ("StoreUnavailable", "StoreTroubled", "Unreachable"), "no room left"),
}


@pytest.fixture
async def stores() -> AsyncIterator[S3CheckpointStores]:
    made = S3CheckpointStores()
    yield made
    await made.close()


async def refused(stores: S3CheckpointStores, endpoint: str) -> Any:
    secret = {"AWS_ACCESS_KEY_ID": SECRET.access_key, "AWS_SECRET_ACCESS_KEY": SECRET.secret_key}
    with pytest.raises(OperatorError) as error:
        await stores.open("s3://bucket/team", endpoint, secret).check()
    return error.value


def trainers_store(endpoint: str) -> ObjectStore:
    return ObjectStore(
        "bucket", endpoint=endpoint, access_key=SECRET.access_key, secret_key=SECRET.secret_key, timeouts=ONCE
    )


@pytest.mark.parametrize(("status", "code", "kinds", "words"), REFUSALS.values(), ids=REFUSALS)
async def test_every_refusal_is_one_sentence_that_says_what_to_do(
    stores: S3CheckpointStores, status: int, code: str, kinds: tuple[str, str, str], words: str
) -> None:
    with refusing_store(status, code, region="eu-west-1") as endpoint:
        with pytest.raises(StoreError) as told_by_trainer:
            trainers_store(endpoint).list("team/")
        told_by_operator = await refused(stores, endpoint)
        address = BucketAddress("bucket", endpoint, SECRET.access_key, SECRET.secret_key)
        with pytest.raises(CliError) as told_by_command:
            CommandStore(address).sizes("team/")
    found = (told_by_trainer.value, told_by_operator, told_by_command.value)
    assert tuple(type(one).__name__ for one in found) == kinds
    for one in found:
        assert words in str(one)
        assert "\n" not in str(one)
        assert SECRET_WORD not in str(one)
        assert SECRET.secret_key not in str(one)
    assert str(told_by_operator).startswith("checkpoint.")


async def test_a_store_that_is_full_and_cannot_serve_is_not_called_dead(stores: S3CheckpointStores) -> None:
    with refusing_store(507, "InsufficientStorage") as endpoint:
        message = str(await refused(stores, endpoint))
    assert "no room left" in message
    assert message.endswith("; trying again")


@pytest.mark.parametrize(
    ("status", "code", "words"), [(507, "", "no room left"), (503, "SlowDown", "cannot serve now")]
)
def test_a_save_to_a_store_without_room_fails_with_what_the_jobs_condition_says(
    tmp_path: Path, status: int, code: str, words: str
) -> None:
    with refusing_store(status, code) as endpoint:
        limits = type(FAST)(save_deadline_seconds=0.5)
        ranks = Ranks(trainers_store(endpoint), tmp_path / "world", world_size=1, limits=limits)
        try:
            ranks.save([new_state(1)], 20)
            assert ranks.run(lambda rank: ranks.checkpointers[rank].flush(60)) == [False]
            (failed,) = ranks.drain(0)
        finally:
            ranks.close()
    assert isinstance(failed, SaveFailed)
    backlog = Backlog()
    backlog.note(failed, 1)
    assert words in backlog.sentence
    assert "none is stored yet" in backlog.sentence


def test_what_the_real_server_answers_is_told_in_the_same_words(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket("refusing")
    with pytest.raises(CliError, match="the access key is wrong"):
        CommandStore(BucketAddress(bucket, object_store.endpoint, "unknown", "x")).sizes("")
    with pytest.raises(CliError, match="the secret key is wrong"):
        CommandStore(BucketAddress(bucket, object_store.endpoint, "admin-access", "x")).sizes("")
    with pytest.raises(CliError, match="The bucket no-such-bucket does not exist"):
        CommandStore(BucketAddress("no-such-bucket", object_store.endpoint, "admin-access", "admin-secret")).sizes("")


async def test_operator_and_command_line_take_keys_without_the_line_break_of_a_secret_made_from_files(
    object_store: ObjectStoreServer, stores: S3CheckpointStores
) -> None:
    bucket = object_store.new_bucket()
    object_store.client().put_object(Bucket=bucket, Key="key", Body=b"body")
    access, secret = f"{ADMIN.access_key}\n", f"{ADMIN.secret_key}\n"
    held = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
    assert await stores.open(f"s3://{bucket}", object_store.endpoint, held).get("key") == b"body"
    assert CommandStore(BucketAddress(bucket, object_store.endpoint, access, secret)).get("key") == b"body"


def test_a_request_that_cannot_be_sent_is_not_quoted_by_the_command_line(object_store: ObjectStoreServer) -> None:
    broken = BucketAddress("bucket", object_store.endpoint, f"{ADMIN.access_key}\nmore", ADMIN.secret_key)
    with pytest.raises(CliError, match="HTTPClientError") as caught:
        CommandStore(broken).get("key")
    assert ADMIN.access_key not in str(caught.value)
