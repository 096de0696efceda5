"""Reading a checkpoint whole and hashing it against the journal."""

from dataclasses import dataclass

from trimtab_contract.checkpoints import decode_manifest, sha256_hex
from trimtab_contract.errors import MalformedManifest
from trimtab_contract.keys import MANIFEST_NAME

from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.errors import NotFound


@dataclass(frozen=True, slots=True)
class Verification:
    """How many objects were hashed, their bytes, and what is wrong."""

    objects: int
    size: int
    problems: tuple[str, ...]


def verify_checkpoint(store: ObjectStore, manifest_key: str, sha256: str) -> Verification:
    """Hash the manifest against the journal's `sha256`, and each object against the manifest."""
    try:
        body = store.get(manifest_key)
    except NotFound:
        return Verification(0, 0, ("its manifest is gone",))
    if sha256_hex(body) != sha256:
        return Verification(0, len(body), ("its manifest is not the one whose hash the journal holds",))
    try:
        manifest = decode_manifest(body)
    except MalformedManifest as error:
        return Verification(0, len(body), (str(error),))
    problems: list[str] = []
    size = len(body)
    for name, expected in sorted(manifest.objects.items()):
        try:
            digest, length = store.sha256(manifest_key.removesuffix(MANIFEST_NAME) + name)
        except NotFound:
            problems.append(f"object {name} is gone")
            continue
        size += length
        if length != expected.size:
            problems.append(f"object {name} has {length} bytes instead of {expected.size}")
        elif digest != expected.sha256:
            problems.append(f"object {name} has another SHA-256 than the manifest says")
    return Verification(len(manifest.objects) + 1, size, tuple(problems))
