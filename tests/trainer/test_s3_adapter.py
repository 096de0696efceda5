"""Every answer of an S3 server becomes one of the trainer's own errors, and says what to do."""

import hashlib
import socketserver
import threading
from pathlib import Path

import pytest
from botocore.awsrequest import AWSHTTPConnection
from object_store_fixture import ADMIN, READER, Credentials, ObjectStoreServer
from trimtab_trainer.adapters import s3
from trimtab_trainer.adapters.s3 import ObjectStore, StoreTimeouts
from trimtab_trainer.errors import ObjectMissing, StoreRefused, StoreUnavailable


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStoreServer) -> str:
    return object_store.new_bucket()


def opened(server: ObjectStoreServer, bucket: str, credentials: Credentials = ADMIN) -> ObjectStore:
    return ObjectStore(
        bucket,
        endpoint=server.endpoint,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        timeouts=StoreTimeouts(connect_seconds=1, read_seconds=1, attempts=2),
    )


def test_bytes_and_files_come_back_as_they_were(object_store: ObjectStoreServer, bucket: str, tmp_path: Path) -> None:
    store = opened(object_store, bucket)
    large = tmp_path / "large"
    large.write_bytes(hashlib.shake_256(b"content").digest(9 * 1024 * 1024))
    store.put("come/back/small", b"small")
    store.put("come/back/large", large)
    store.get_to("come/back/large", tmp_path / "copy")
    assert store.get("come/back/small") == b"small"
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    assert store.list("come/back/") == {"come/back/large": large.stat().st_size, "come/back/small": 5}


def test_a_listing_goes_on_beyond_one_page(object_store: ObjectStoreServer, bucket: str) -> None:
    store = opened(object_store, bucket)
    expected = [f"pages/{number:04d}" for number in range(1001)]
    for key in expected:
        store.put(key, b"")
    assert list(store.list("pages/")) == expected


def test_an_absent_object_is_told_from_an_absent_bucket(object_store: ObjectStoreServer, bucket: str) -> None:
    store = opened(object_store, bucket)
    assert not store.exists("absent")
    with pytest.raises(ObjectMissing, match="absent"):
        store.get("absent")
    with pytest.raises(StoreRefused, match=r"^checkpoint\.uri: there is no bucket 'no-such-bucket'"):
        opened(object_store, "no-such-bucket").get("absent")


@pytest.mark.parametrize("credentials", [Credentials("admin-access", "wrong"), Credentials("unknown", "x"), READER])
def test_a_refusal_names_the_setting_and_never_the_secret(
    object_store: ObjectStoreServer, bucket: str, credentials: Credentials
) -> None:
    with pytest.raises(StoreRefused, match=r"^checkpoint\.uri: .*credentials") as caught:
        opened(object_store, bucket, credentials).put("key", b"body")
    assert f" {credentials.secret_key} " not in f" {caught.value} "


def test_keys_of_a_secret_that_was_made_from_files_are_taken_without_their_line_breaks(
    object_store: ObjectStoreServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{ADMIN.access_key}\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{ADMIN.secret_key}\n")
    store = ObjectStore(bucket, endpoint=object_store.endpoint)
    store.put("key", b"body")
    assert store.get("key") == b"body"


def test_a_request_that_cannot_be_sent_is_not_quoted(object_store: ObjectStoreServer, bucket: str) -> None:
    broken = Credentials(f"{ADMIN.access_key}\nmore", ADMIN.secret_key)
    with pytest.raises(StoreUnavailable, match="HTTPClientError") as caught:
        opened(object_store, bucket, broken).put("key", b"body")
    assert "Signature" not in str(caught.value)
    assert ADMIN.access_key not in str(caught.value)


def test_a_server_that_does_not_answer_is_unavailable(object_store: ObjectStoreServer, bucket: str) -> None:
    store = opened(object_store, bucket)
    store.put("key", b"body")
    object_store.freeze()
    try:
        with pytest.raises(StoreUnavailable, match="key"):
            store.get("key")
    finally:
        object_store.thaw()
    assert store.get("key") == b"body"


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    store = ObjectStore(
        "bucket",
        endpoint="http://127.0.0.1:9",
        access_key="a",
        secret_key="b",
        timeouts=StoreTimeouts(connect_seconds=1, read_seconds=1, attempts=1),
    )
    with pytest.raises(StoreUnavailable, match="EndpointConnectionError"):
        store.exists("key")


def test_missing_credentials_are_a_refusal_that_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(StoreRefused, match="AWS_ACCESS_KEY_ID"):
        ObjectStore("bucket", endpoint="http://127.0.0.1:9").get("key")


class Filled:
    """Memory for so many bytes, of which a few at a time are shown."""

    def __init__(self, size: int, step: int) -> None:
        self.memory, self._step, self._came = bytearray(size), step, 0

    def room(self) -> memoryview:
        return memoryview(self.memory)[self._came :][: self._step]

    def take(self, count: int, /) -> None:
        self._came += count

    @property
    def came(self) -> bytes:
        return bytes(self.memory[: self._came])


@pytest.fixture(params=["from the socket", "through the libraries"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How bytes arrive: the second way is that of answers which a library checks or alters."""
    if request.param == "through the libraries":
        monkeypatch.setattr(s3, "_source", lambda body, _raw: body)


@pytest.mark.usefixtures("way")
def test_a_stretch_arrives_in_the_memory_that_is_shown(object_store: ObjectStoreServer, bucket: str) -> None:
    store, body = opened(object_store, bucket), hashlib.shake_256(b"filled").digest(3_000_000)
    store.put("filled", body)
    for step in (100_000, 262_144, 4_000_000):
        for offset, length, size in ((0, 3_000_000, 3_000_000), (7, 1_000_000, 1_000_000), (2_999_000, 5000, 5000)):
            found = Filled(size, step)
            assert store.fill("filled", offset, length, found) == len(body)
            assert found.came == body[offset : offset + length]


@pytest.mark.usefixtures("way")
def test_no_byte_arrives_that_there_is_no_room_for(object_store: ObjectStoreServer, bucket: str) -> None:
    store, found = opened(object_store, bucket), Filled(1000, 400)
    store.put("small", b"abc" * 1000)
    assert store.fill("small", 0, 3000, found) == 3000
    assert found.came == (b"abc" * 1000)[:1000]
    assert store.get("small") == b"abc" * 1000
    assert store.fill("small", 3000, 10, Filled(10, 10)) == 0
    with pytest.raises(ObjectMissing):
        store.fill("none", 0, 10, found)


@pytest.mark.usefixtures("way")
def test_a_server_that_stops_amid_a_stretch_is_unavailable(object_store: ObjectStoreServer, bucket: str) -> None:
    store = opened(object_store, bucket)
    store.put("midway", hashlib.shake_256(b"midway").digest(64 * 1024 * 1024))

    class Stopping(Filled):
        def take(self, count: int, /) -> None:
            super().take(count)
            object_store.freeze()

    stopping = Stopping(64 * 1024 * 1024, 65_536)
    try:
        with pytest.raises(StoreUnavailable, match="midway"):
            store.fill("midway", 0, 64 * 1024 * 1024, stopping)
    finally:
        object_store.thaw()
    assert 0 < len(stopping.came) < 64 * 1024 * 1024
    assert len(store.get("midway")) == 64 * 1024 * 1024


class Breaking(socketserver.BaseRequestHandler):
    """Answers as S3 does, but ends in the midst of the body."""

    def handle(self) -> None:
        self.request.recv(65_536)
        head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n\r\n"
        self.request.sendall(head.encode() + bytes(600))


@pytest.mark.usefixtures("way")
def test_an_answer_that_ends_early_is_unavailable() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Breaking) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            store = ObjectStore(
                "bucket", endpoint=f"http://127.0.0.1:{server.server_address[1]}", access_key="a", secret_key="b"
            )
            found = Filled(1000, 1000)
            with pytest.raises(StoreUnavailable, match="GetObject bucket/key"):
                store.fill("key", 0, 1000, found)
        finally:
            server.shutdown()
            serving.join()
    assert found.came in {b"", bytes(600)}


def test_stretches_come_over_one_connection(
    object_store: ObjectStoreServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_connections: list[AWSHTTPConnection] = []
    connect = AWSHTTPConnection.connect

    def counted(connection: AWSHTTPConnection) -> None:
        opened_connections.append(connection)
        connect(connection)

    monkeypatch.setattr(AWSHTTPConnection, "connect", counted)
    store = opened(object_store, bucket)
    store.put("often", bytes(100_000))
    for _ in range(3):
        store.fill("often", 0, 100_000, Filled(100_000, 30_000))
    assert len(opened_connections) == 1
