"""What a stored checkpoint says of its slices, and manifests that say otherwise; and a checkpoint of schema 2."""

from pathlib import Path
from typing import Any

import msgspec
from trimtab_contract import keys
from trimtab_contract.checkpoints import CheckpointManifest, StoredSlice, decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.slice_index import decode_index, index_name
from trimtab_trainer.adapters.s3 import ObjectStore

SCHEMA_2 = Path(__file__).parent / "stored_checkpoints" / "schema-2"
"""`Ranks.saved([new_state(7), new_state(7)], 30)` of the last version that wrote it, as it lay in the store."""


def prefix_of(reference: CheckpointReference) -> str:
    """Where the checkpoint's objects lie."""
    return reference.key.removesuffix(keys.MANIFEST_NAME)


def manifest_of(store: ObjectStore, reference: CheckpointReference) -> CheckpointManifest:
    """What is stored under the reference's key."""
    return decode_manifest(store.get(reference.key))


def slices_of(store: ObjectStore, reference: CheckpointReference, name: str) -> tuple[StoredSlice, ...]:
    """The slices that the index of an object lists."""
    stored = manifest_of(store, reference).objects[name]
    return decode_index(store.get(f"{prefix_of(reference)}{stored.index}"), name, stored) if stored.index else ()


def replaced(store: ObjectStore, reference: CheckpointReference, body: bytes) -> CheckpointReference:
    """Another manifest under the same key, and the reference that fits it."""
    store.put(reference.key, body)
    return msgspec.structs.replace(reference, sha256=sha256_hex(body))


def rewritten(store: ObjectStore, reference: CheckpointReference, **changes: Any) -> CheckpointReference:
    """The same manifest with other fields in its place, and the reference that fits it."""
    manifest = msgspec.structs.replace(manifest_of(store, reference), **changes)
    return replaced(store, reference, encode_manifest(manifest))


def with_index(store: ObjectStore, reference: CheckpointReference, name: str, index: bytes) -> CheckpointReference:
    """Another index of an object, with a manifest that fits it, and the reference that fits that."""
    manifest = manifest_of(store, reference)
    store.put(f"{prefix_of(reference)}{index_name(name)}", index)
    stored = msgspec.structs.replace(manifest.objects[index_name(name)], size=len(index), sha256=sha256_hex(index))
    objects = {**manifest.objects, index_name(name): stored}
    return rewritten(store, reference, objects=objects)


def of_schema(manifest: CheckpointManifest, schema: int) -> bytes:
    """The same manifest of another schema, without slices and indexes."""
    fields: dict[str, Any] = msgspec.json.decode(encode_manifest(manifest))
    for stored in fields["objects"].values():
        stored.pop("index", None)
    return msgspec.json.encode({**fields, "schema": schema})


def put_schema_2(store: ObjectStore, root: str) -> CheckpointReference:
    """Lay the checkpoint of schema 2 into a store, under the same prefix as it had."""
    body = (SCHEMA_2 / keys.MANIFEST_NAME).read_bytes()
    manifest = decode_manifest(body)
    run = keys.RunId.parse(manifest.run)
    prefix = keys.checkpoint_prefix(root, run, manifest.step, manifest.attempt, "72da419493314ee1bb379a991108a073")
    for path in SCHEMA_2.iterdir():
        store.put(f"{prefix}{path.name}", path.read_bytes())
    return CheckpointReference(key=f"{prefix}{keys.MANIFEST_NAME}", sha256=sha256_hex(body), step=manifest.step)
