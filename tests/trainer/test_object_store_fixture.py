"""The object store the other tests rely on is a real one."""

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from object_store_fixture import READER, ObjectStoreServer


def test_a_frozen_server_answers_nobody_and_a_thawed_one_has_kept_everything(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket()
    object_store.client().put_object(Bucket=bucket, Key="a/b", Body=b"kept")
    object_store.freeze()
    try:
        with pytest.raises(ReadTimeoutError):
            object_store.client(timeout=0.5).get_object(Bucket=bucket, Key="a/b")
    finally:
        object_store.thaw()
    assert object_store.client().get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"kept"


def test_a_reader_may_not_write(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket()
    with pytest.raises(ClientError, match="AccessDenied"):
        object_store.client(READER).put_object(Bucket=bucket, Key="a", Body=b"no")
