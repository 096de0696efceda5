"""A trainer that stores checkpoints on a real S3 server, sound ones and others."""

import uuid
from typing import Any

import msgspec
from object_store_fixture import ObjectStoreServer
from trimtab_contract.checkpoints import (
    CheckpointManifest,
    EvaluationProbe,
    FiniteScan,
    StoredObject,
    StoredSlice,
    encode_manifest,
    sha256_hex,
)
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.keys import RunId, checkpoint_prefix
from trimtab_contract.slice_index import SliceIndex, encode_index, index_name

WEIGHTS = {"rank-000000.bin": b"weights", "rank-000001.bin": b"more weights"}
STORED = {
    name: StoredObject(size=len(body), sha256=sha256_hex(body), rank=rank, index=index_name(name))
    for rank, (name, body) in enumerate(WEIGHTS.items())
}


def _index(name: str) -> bytes:
    whole = StoredSlice(name=name, offset=0, length=STORED[name].size, sha256=STORED[name].sha256)
    return encode_index(SliceIndex(name=name, sha256=whole.sha256, slices=(whole,)))


OBJECTS = WEIGHTS | {index_name(name): _index(name) for name in WEIGHTS}


class Trainer:
    """Stores checkpoints as a trainer does."""

    def __init__(self, object_store: ObjectStoreServer, bucket: str) -> None:
        self.run = RunId("lab", "job", str(uuid.uuid4()))
        self.client = object_store.client()
        self.bucket = bucket

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=body)

    def prefix(self, step: int, attempt: int = 1) -> str:
        return checkpoint_prefix("team", self.run, step, attempt, uuid.uuid4().hex[:6])

    def nothing(self) -> CheckpointReference:
        return CheckpointReference(key=self.prefix(10) + "manifest.json", sha256="0" * 64, step=10)

    def junk(self) -> CheckpointReference:
        key = self.prefix(1) + "manifest.json"
        self.put(key, b"junk")
        return CheckpointReference(key=key, sha256=sha256_hex(b"junk"), step=1)

    def save(
        self, step: int = 10, *, attempt: int = 1, leave_out: str = "", cut: str = "", **changes: Any
    ) -> CheckpointReference:
        prefix = self.prefix(step, attempt)
        changes |= {
            name: changes.pop(f"manifest_{name}") for name in ("step", "attempt") if f"manifest_{name}" in changes
        }
        for name, body in OBJECTS.items():
            if name != leave_out:
                self.put(prefix + name, body[:-1] if name == cut else body)
        stored = STORED | {
            index_name(name): StoredObject(size=len(body), sha256=sha256_hex(body), rank=STORED[name].rank)
            for name in WEIGHTS
            for body in (OBJECTS[index_name(name)],)
        }
        manifest = CheckpointManifest(
            run=str(self.run),
            attempt=attempt,
            step=step,
            world_size=2,
            next_window=step,
            skip=(),
            lr=None,
            learning_rate=1e-3,
            optimizer_steps=step,
            objects=stored,
            tensors={},
            replica_checksum="0",
            replicas_agree=True,
            finite=FiniteScan(nonfinite=0),
            evaluation=EvaluationProbe(window=step, window_sha256="0", losses=(1.0, 2.0)),
            config_sha256="0",
            code_sha256="0",
            versions={},
            trigger="Periodic",
            saved_at=1.0,
        )
        body = encode_manifest(msgspec.structs.replace(manifest, **changes))
        self.put(prefix + "manifest.json", body)
        return CheckpointReference(key=prefix + "manifest.json", sha256=sha256_hex(body), step=step)
