"""Looks at what a trainer says it saved: manifest and objects, with the job's own credentials.

Whoever has those credentials may claim anything, so a claim is a wish at first: only what the run can have saved is
looked at, and nothing that is found there raises.
"""

import math
import re
from statistics import fmean
from typing import Any

from trimtab_contract.checkpoints import (
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    EvaluationProbe,
    decode_manifest,
    sha256_hex,
)
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError, MalformedManifest, NewerManifest
from trimtab_contract.journal import Evidence
from trimtab_contract.keys import MANIFEST_NAME, RunId, manifest_identity

from trimtab_operator.adapters.ports import CheckpointStore, Rejected
from trimtab_operator.errors import CredentialsRefused, NotFound, ObjectTooLarge, StoreRefused
from trimtab_operator.observation import CheckpointClaim
from trimtab_operator.records import Rejections
from trimtab_operator.run_state import SOURCE_ATTEMPT, RunState

MAX_REASON_CHARACTERS = 300
"""Of a reason that quotes what a stranger may have written."""
SHOWN_CHARACTERS = 200
"""Likewise, of a key."""

SUSPECT_STATE = "the state at which the run was held: evidence, never a target"

_SHA256 = re.compile(r"[0-9a-f]{64}")


async def look_at_claims(
    store: CheckpointStore,
    run: RunId,
    state: RunState,
    references: tuple[CheckpointReference, ...],
    trained: int,
    rejections: Rejections,
) -> tuple[CheckpointClaim, ...]:
    """Judge every claim the journal does not know yet; raises StoreUnavailable when S3 does not answer.

    `trained` is the last step that the newest attempt is known to have trained. What is claimed of a later one waits
    until it is, since a save may be heard of before the record; what no surviving history can contain is ignored.
    `rejections` hears of what is no checkpoint of this run, and of what S3 does not hand out.
    Raises CredentialsRefused, too.
    """
    claims: list[CheckpointClaim] = []
    for reference in {one.key: one for one in references if not state.knows(one.key)}.values():
        attempt = _attempt(store.root, run, reference)
        if attempt is None:
            rejections.add(
                (Rejected(ascii(reference.key[:SHOWN_CHARACTERS]), "claimed, but no checkpoint of this run"),)
            )
            continue
        survives = _may_exist(state, attempt, reference.step, trained)
        if not survives and not _was_held(state, attempt, reference.step):
            continue
        try:
            claim = await look_at(store, run, reference, attempt)
            # The state of a hold may be stored after the run went back behind it; it is only ever evidence.
            claims += [claim] if survives or not claim.usable else []
        except CredentialsRefused:
            raise
        except StoreRefused as error:
            # What S3 hands out to nobody says nothing of the checkpoint, and must not stop the run's guard.
            rejections.add((Rejected(reference.key, str(error)),))
    return tuple(claims)


def _attempt(root: str, run: RunId, reference: CheckpointReference) -> int | None:
    """The attempt that the claim's key names; None when the claim is no sound one of this run."""
    try:
        step, attempt = manifest_identity(root, run, reference.key)
    except ContractError:
        return None
    sound = attempt != SOURCE_ATTEMPT and step == reference.step and _SHA256.fullmatch(reference.sha256)
    return attempt if sound else None


def _may_exist(state: RunState, attempt: int, step: int, trained: int) -> bool:
    """Whether the surviving history can contain the checkpoint, as far as the run is known to have got."""
    return bool(state.attempts) and state.owner(step) == attempt and (attempt != state.attempt or step <= trained)


def _was_held(state: RunState, attempt: int, step: int) -> bool:
    """Whether an incident held the run there."""
    incidents = (*state.closed, *((state.incident,) if state.incident else ()))
    return any((one.latch.attempt, one.held_step) == (attempt, step) for one in incidents)


async def look_at(store: CheckpointStore, run: RunId, reference: CheckpointReference, attempt: int) -> CheckpointClaim:
    """Judge one checkpoint of an attempt: its manifest, and the sizes of the objects that it names.

    Raises StoreUnavailable and StoreRefused.
    """
    evidence = (Evidence(key=reference.key, sha256=reference.sha256, store="checkpoint"),)
    refused: dict[str, Any] = {"reference": reference, "attempt": attempt, "usable": False, "evidence": evidence}
    try:
        body = await store.get(reference.key, MAX_MANIFEST_BYTES)
    except NotFound:
        return CheckpointClaim(**refused, why="its manifest does not exist")
    except ObjectTooLarge:
        return CheckpointClaim(**refused, why="its manifest is larger than any manifest can be")
    if sha256_hex(body) != reference.sha256:
        return CheckpointClaim(**refused, why="its manifest's SHA-256 is not the one the trainer named")
    try:
        manifest = decode_manifest(body)
    except NewerManifest as error:
        return CheckpointClaim(**refused, why=str(error)[:MAX_REASON_CHARACTERS], newer=True)
    except MalformedManifest as error:
        return CheckpointClaim(**refused, why=str(error)[:MAX_REASON_CHARACTERS])
    why = _wrong(manifest, run, reference, attempt) or await _missing(store, reference, manifest)
    if why:
        return CheckpointClaim(**refused, why=why[:MAX_REASON_CHARACTERS])
    size = sum(stored.size for stored in manifest.objects.values())
    return CheckpointClaim(
        reference=reference,
        attempt=attempt,
        usable=True,
        why=f"manifest hash and the sizes of {len(manifest.objects)} objects ({size} bytes) agree; "
        "replicas agree; every element is finite",
        evidence=evidence,
        loss=_loss(manifest.evaluation),
        size=size,
    )


def _loss(evaluation: EvaluationProbe) -> float | None:
    """The mean over all ranks, where each of them is finite."""
    losses = [loss for loss in evaluation.losses if loss is not None and math.isfinite(loss)]
    return fmean(losses) if losses and len(losses) == len(evaluation.losses) else None


def _wrong(manifest: CheckpointManifest, run: RunId, reference: CheckpointReference, attempt: int) -> str:
    if manifest.run != str(run):
        return f"its manifest belongs to run {manifest.run}"
    if manifest.step != reference.step:
        return f"its manifest says step {manifest.step}"
    if manifest.attempt != attempt:
        return f"its manifest says attempt {manifest.attempt}"
    if not manifest.replicas_agree:
        return "replicas disagreed when it was saved"
    if manifest.finite.nonfinite:
        return f"{manifest.finite.nonfinite} elements of {', '.join(manifest.finite.tensors)} are not finite"
    return SUSPECT_STATE if manifest.trigger == "Suspect" else ""


async def _missing(store: CheckpointStore, reference: CheckpointReference, manifest: CheckpointManifest) -> str:
    prefix = reference.key.removesuffix(MANIFEST_NAME)
    sizes = await store.sizes(prefix)
    for name, stored in manifest.objects.items():
        found = sizes.get(prefix + name)
        if found != stored.size:
            return f"object {name} has {found if found is not None else 'no'} bytes instead of {stored.size}"
    return ""
