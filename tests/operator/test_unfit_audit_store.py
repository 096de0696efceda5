"""An operator whose audit store cannot hold a journal says so in one sentence, is never ready, and ends."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

from object_store_fixture import ADMIN, ObjectStoreServer
from s3_gateway import Gateway

PASSWORD = "a-password-nobody-may-see"


def kubeconfig(folder: Path) -> Path:
    """Of a cluster that is never asked: the audit store comes first."""
    path = folder / "kubeconfig"
    name = {"name": "none"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "none",
        "clusters": [{**name, "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{**name, "user": {"token": "none"}}],
        "contexts": [{**name, "context": {"cluster": "none", "user": "none"}}],
    }
    path.write_text(json.dumps(config))
    return path


def settings(endpoint: str, bucket: str) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "TRIMTAB_REDIS_URL": "redis://127.0.0.1:9",
        "TRIMTAB_REDIS_PASSWORD": PASSWORD,
        "TRIMTAB_AUDIT_BUCKET": bucket,
        "TRIMTAB_AUDIT_ENDPOINT": endpoint,
        "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
        "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
        "TRIMTAB_NAMESPACE": "trimtab-system",
        "TRIMTAB_POD_NAME": "trimtab-0",
        "TRIMTAB_POD_UID": "u",
        "TRIMTAB_IMAGE": "operator",
        "TRIMTAB_TRAINER_IMAGE": "trainer",
        "TRIMTAB_HEALTH_PORT": str(port),
    }


async def test_a_store_without_conditional_writes_ends_the_operator_with_one_sentence(
    object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    bucket = object_store.new_bucket("audit")
    async with Gateway(object_store, ignores_conditions_of="") as gateway:
        operator = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trimtab_operator",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(sys.path),
                "KUBECONFIG": str(kubeconfig(tmp_path)),
                **settings(gateway.endpoint, bucket),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await operator.communicate()
    assert operator.returncode == 1
    last = json.loads(output.decode().splitlines()[-1])
    assert last["event"] == "ending"
    assert "If-None-Match" in last["error"]
    assert "leading" not in output.decode()
    assert PASSWORD not in output.decode()
    assert ADMIN.secret_key not in output.decode()
    assert "Contents" not in object_store.client().list_objects_v2(Bucket=bucket, Prefix="journal/")
