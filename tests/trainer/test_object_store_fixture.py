"""The object store the other tests rely on is a real one."""

import pytest
from botocore.exceptions import ClientError
from object_store_fixture import READER, ObjectStoreServer


def test_what_was_stored_survives_a_kill_of_the_server(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket()
    object_store.client().put_object(Bucket=bucket, Key="a/b", Body=b"kept")
    object_store.stop()
    object_store.start()
    assert object_store.client().get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"kept"


def test_a_reader_may_not_write(object_store: ObjectStoreServer) -> None:
    bucket = object_store.new_bucket()
    with pytest.raises(ClientError, match="AccessDenied"):
        object_store.client(READER).put_object(Bucket=bucket, Key="a", Body=b"no")
