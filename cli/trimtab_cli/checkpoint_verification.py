"""Reading a checkpoint whole and hashing it against the journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab_contract.checkpoints import CheckpointManifest, StoredObject, decode_manifest, sha256_hex
from trimtab_contract.config_record import bound_changes
from trimtab_contract.errors import MalformedManifest
from trimtab_contract.keys import MANIFEST_NAME

from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.errors import CliError, NotFound


class Unproved(CliError):
    """A manifest that is not the one whose hash the journal holds; `size` are the bytes read."""

    def __init__(self, message: str, size: int = 0) -> None:
        super().__init__(message)
        self.size = size


@dataclass(frozen=True, slots=True)
class Verification:
    """How many objects were hashed, their bytes, and what is wrong; and why the job could not be restored from it.

    `misfits` has a sentence for each field of the job's configuration that the checkpoint was not saved under;
    `config_recorded` tells whether its manifest says what it was saved under.
    """

    objects: int
    size: int
    problems: tuple[str, ...]
    misfits: tuple[str, ...] = ()
    config_recorded: bool = True


def proved_manifest(store: ObjectStore, manifest_key: str, sha256: str) -> tuple[CheckpointManifest, int]:
    """The manifest that has the journal's `sha256`, and its bytes; raises Unproved."""
    try:
        body = store.get(manifest_key)
    except NotFound as error:
        raise Unproved("its manifest is gone") from error
    if sha256_hex(body) != sha256:
        raise Unproved("its manifest is not the one whose hash the journal holds", len(body))
    try:
        return decode_manifest(body), len(body)
    except MalformedManifest as error:
        raise Unproved(str(error), len(body)) from error


def object_problem(store: ObjectStore, manifest_key: str, name: str, expected: StoredObject) -> tuple[str, int]:
    """What is wrong with one object of a checkpoint (nothing: empty), and the bytes read."""
    try:
        digest, length = store.sha256(manifest_key.removesuffix(MANIFEST_NAME) + name)
    except NotFound:
        return f"object {name} is gone", 0
    if length != expected.size:
        return f"object {name} has {length} bytes instead of {expected.size}", length
    return "" if digest == expected.sha256 else f"object {name} has another SHA-256 than the manifest says", length


def verify_checkpoint(store: ObjectStore, manifest_key: str, sha256: str, trainer: Mapping[str, Any]) -> Verification:
    """Hash the manifest against the journal's `sha256`, and each object against the manifest.

    `trainer` is the job's `spec.trainer`.
    """
    try:
        manifest, size = proved_manifest(store, manifest_key, sha256)
    except Unproved as error:
        return Verification(0, error.size, (str(error),))
    found = [object_problem(store, manifest_key, name, expected) for name, expected in sorted(manifest.objects.items())]
    problems = tuple(problem for problem, _ in found if problem)
    return Verification(
        len(manifest.objects) + 1,
        size + sum(length for _, length in found),
        problems,
        bound_changes(config_changes(manifest, trainer)),
        manifest.config is not None,
    )


def config_changes(manifest: CheckpointManifest, trainer: Mapping[str, Any]) -> dict[str, str]:
    """By name, what the job's `spec.trainer` says otherwise than a checkpoint was saved under; nothing where one of the
    two does not tell: a manifest of an older version, a trainer of one's own."""
    if manifest.config is None or trainer.get("command"):
        return {}
    return manifest.config.changes_to(manifest.config.as_given(trainer.get("config") or {}))
