"""A checkpoint's weights as a folder that other programs load: all of it is verified before anything is written."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab_contract.checkpoints import (
    CheckpointManifest,
    StoredObject,
    StoredSlice,
    TensorDescription,
    sha256_hex,
)
from trimtab_contract.errors import MalformedIndex
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_contract.slice_index import covering, decode_index
from trimtab_operator.run_state import CheckpointState
from trimtab_operator.workload import trainer_config_text

from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.checkpoint_verification import Unproved, config_changes, object_problem, proved_manifest
from trimtab_cli.checkpoint_view import CheckpointRow
from trimtab_cli.errors import CliError, NotFound, UsageError
from trimtab_cli.model_config import MODEL_PREFIX, model_config, model_tensors
from trimtab_cli.output import Output
from trimtab_cli.safetensors_file import in_file_order, write_safetensors
from trimtab_cli.tensor_archive import ITEM_BYTES, UnreadableTensor, rows_of, stored_rows

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SHOWN_STEPS = 2


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and whether the job's configuration is still the one of the checkpoint.

    `changes` has a sentence for each field that is another one now, where `config_recorded`: the checkpoint tells.
    """

    folder: str
    tensors: int
    size: int
    sha256: str
    config_unchanged: bool
    config_recorded: bool
    changes: tuple[str, ...]


def choose(
    rows: tuple[CheckpointRow, ...], job: str, step: int, attempt: int | None, *, quarantined: bool
) -> CheckpointRow:
    """The checkpoint of a step: of the surviving history, unless an attempt is named. Raises NotFound, UsageError."""
    found = [row for row in rows if row.step == step and attempt in {None, row.attempt}]
    if not found:
        raise NotFound(_absent(rows, job, step, attempt))
    row = max(found, key=lambda one: (one.surviving, one.attempt))
    name = f"The checkpoint of step {step} (attempt {row.attempt})"
    if row.state == CheckpointState.DELETING:
        raise NotFound(f"{name} is being deleted.")
    if row.state == CheckpointState.QUARANTINED and not quarantined:
        raise UsageError(f"{name} is quarantined: {row.evidence}. Give --quarantined to export it all the same.")
    if not row.surviving and attempt is None and not quarantined:
        raise UsageError(
            f"{name} is no part of the run's history: the run went back behind it. Give --attempt {row.attempt} to "
            "export it all the same."
        )
    return row


def export_checkpoint(
    output: Output, store: ObjectStore, row: CheckpointRow, trainer: Mapping[str, Any], run: str, target: Path
) -> Exported:
    """Write weights and configuration into a new folder, or nothing.

    Raises CliError: an object is not what was saved, a tensor cannot be told apart, the folder is not empty or cannot
    be written.
    """
    _refuse_occupied(target)
    name = f"Step {row.step} of attempt {row.attempt} is not exported"
    try:
        manifest, _ = proved_manifest(store, row.key, row.sha256)
    except Unproved as error:
        raise CliError(f"{name}: {error}.") from error
    reading = _Reading(store, row.key, manifest, name)
    tensors = reading.tensors
    unchanged = sha256_hex(trainer_config_text(trainer.get("config") or {}).encode()) == manifest.config_sha256
    origin = {
        "run": run,
        "step": manifest.step,
        "attempt": manifest.attempt,
        "manifest_sha256": row.sha256,
        "config_unchanged": unchanged,
    }
    config = model_config(trainer, tensors, origin, manifest.config)
    wrong = [
        problem
        for one in output.each(sorted(manifest.objects), "verifying objects")
        if (problem := object_problem(store, row.key, one, manifest.objects[one])[0])
    ]
    if wrong:
        raise CliError(f"{name}: {'; '.join(wrong)}.")
    reading.locate()
    metadata = {"format": "pt", **{key: str(value) for key, value in origin.items()}}
    size, sha256 = _write(target, config, tensors, metadata, reading.bodies(output))
    changes = tuple(config_changes(manifest, trainer).values())
    return Exported(str(target), len(tensors), size, sha256, unchanged, manifest.config is not None, changes)


class _Reading:
    """The model's tensors of one checkpoint, in the order of the file."""

    def __init__(self, store: ObjectStore, key: str, manifest: CheckpointManifest, name: str) -> None:
        self._store, self._prefix, self._name = store, key.removesuffix(MANIFEST_NAME), name
        self._objects = manifest.objects
        self.tensors = model_tensors(manifest)
        if not self.tensors:
            raise CliError(f"{name}: it holds no tensor of a model.")
        if manifest.schema == 1:
            raise CliError(f"{name}: it is of schema 1, which has no hash for each tensor.")
        for tensor_name, tensor in self.tensors.items():
            if tensor.dtype not in ITEM_BYTES:
                raise CliError(f"{name}: {tensor_name} is {tensor.dtype}, which safetensors files do not hold.")
        self._places: dict[str, list[tuple[str, StoredSlice]]] = {}

    def locate(self) -> None:
        """Find the pieces of each tensor, in the order of their rows: these are dealt out in that of the ranks.

        Raises CliError where there are none, or where an index is not what was saved.
        """
        found: dict[str, list[tuple[str, StoredSlice]]] = {name: [] for name in self.tensors}
        for object_name, stored in sorted(self._objects.items(), key=lambda one: one[1].rank):
            for part in self._slices(object_name, stored):
                pieces = found.get(part.name.removeprefix(MODEL_PREFIX))
                if pieces is not None:
                    pieces.append((object_name, part))
        absent = next((name for name, pieces in found.items() if not pieces), None)
        if absent is not None:
            raise CliError(f"{self._name}: no object holds {absent}.")
        self._places = found

    def bodies(self, output: Output) -> Iterator[bytes]:
        """Each tensor's elements, piece by piece; raises CliError where a slice is not what was saved."""
        for name in output.each(in_file_order(self.tensors), "writing tensors"):
            expected, rows = self.tensors[name], 0
            for object_name, part in self._places[name]:
                body = self._store.stretch(f"{self._prefix}{object_name}", part.offset, part.length)
                if sha256_hex(body) != part.sha256:
                    raise CliError(f"{self._name}: tensor {name} in object {object_name} is not what was saved.")
                try:
                    found = stored_rows(body, expected)
                except UnreadableTensor as error:
                    raise CliError(f"{self._name}: tensor {name} cannot be read: {error}.") from error
                rows += found.number
                yield found.elements
            if rows != rows_of(expected.shape):
                problem = f"its pieces have {rows} rows, the manifest says {rows_of(expected.shape)}"
                raise CliError(f"{self._name}: tensor {name} is not whole: {problem}.")

    def _slices(self, name: str, stored: StoredObject) -> tuple[StoredSlice, ...]:
        try:
            if not stored.index:
                return covering(name, stored, stored.slices) if stored.slices else ()
            body = self._store.get(f"{self._prefix}{stored.index}")
            if sha256_hex(body) != self._objects[stored.index].sha256:
                raise CliError(f"{self._name}: object {stored.index} is not what was saved.")
            return decode_index(body, name, stored)
        except MalformedIndex as error:
            raise CliError(f"{self._name}: {error}.") from error


def _absent(rows: tuple[CheckpointRow, ...], job: str, step: int, attempt: int | None) -> str:
    steps = sorted({row.step for row in rows}, key=lambda one: abs(one - step))[:SHOWN_STEPS]
    of = "" if attempt is None else f" of attempt {attempt}"
    if not steps:
        return f"Job {job} has no checkpoint."
    nearest = " and ".join(str(one) for one in sorted(steps))
    return f"Job {job} has no checkpoint of step {step}{of}; the nearest are those of {nearest}."


def _refuse_occupied(target: Path) -> None:
    try:
        if not target.exists():
            return
        if not target.is_dir():
            raise CliError(f"{target} is a file: name a folder that does not exist yet.")
        if any(target.iterdir()):
            raise CliError(f"{target} is not empty: name a folder that does not exist yet.")
    except OSError as error:
        raise CliError(f"{target} cannot be looked at: {error.strerror}.") from error


def _write(
    target: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorDescription],
    metadata: Mapping[str, str],
    bodies: Iterator[bytes],
) -> tuple[int, str]:
    """Write beside the target, and give it its name when all is there; returns size and SHA-256 of the weights."""
    # Beside it, for a rename is one act within a file system only.
    target = target.absolute()
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        with (partial / WEIGHTS).open("xb") as file:
            size = write_safetensors(file, tensors, metadata, bodies)
            file.flush()
            os.fsync(file.fileno())
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        with (partial / WEIGHTS).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        partial.rename(target)
    except OSError as error:
        raise CliError(f"{target} cannot be written: {error.strerror}; nothing of it is left.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return size, sha256
