"""Looks at what a trainer says it saved: manifest and objects, with the job's own credentials."""

from typing import Any

from trimtab_contract.checkpoints import CheckpointManifest, decode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import MalformedManifest
from trimtab_contract.journal import Evidence
from trimtab_contract.keys import MANIFEST_NAME, RunId

from trimtab_operator.adapters.ports import CheckpointStore
from trimtab_operator.errors import NotFound
from trimtab_operator.observation import CheckpointClaim
from trimtab_operator.run_state import RunState


async def look_at_claims(
    store: CheckpointStore, run: RunId, state: RunState, references: tuple[CheckpointReference, ...]
) -> tuple[CheckpointClaim, ...]:
    """Judge every claim the journal does not know yet; raises StoreUnavailable when S3 does not answer."""
    unknown = {reference.key: reference for reference in references if state.checkpoint(reference.key) is None}
    return tuple([await _look_at(store, run, reference) for reference in unknown.values()])


async def _look_at(store: CheckpointStore, run: RunId, reference: CheckpointReference) -> CheckpointClaim:
    evidence = (Evidence(key=reference.key, sha256=reference.sha256, store="checkpoint"),)
    refused: dict[str, Any] = {"reference": reference, "attempt": 0, "usable": False, "evidence": evidence}
    try:
        body = await store.get(reference.key)
    except NotFound:
        return CheckpointClaim(**refused, why="its manifest does not exist")
    if sha256_hex(body) != reference.sha256:
        return CheckpointClaim(**refused, why="its manifest's SHA-256 is not the one the trainer named")
    try:
        manifest = decode_manifest(body)
    except MalformedManifest as error:
        return CheckpointClaim(**refused, why=str(error))
    refused["attempt"] = manifest.attempt
    why = _wrong(manifest, run, reference) or await _missing(store, reference, manifest)
    if why:
        return CheckpointClaim(**refused, why=why)
    size = sum(stored.size for stored in manifest.objects.values())
    return CheckpointClaim(
        reference=reference,
        attempt=manifest.attempt,
        usable=True,
        why=f"manifest hash and the sizes of {len(manifest.objects)} objects ({size} bytes) agree; "
        "replicas agree; every element is finite",
        evidence=evidence,
    )


def _wrong(manifest: CheckpointManifest, run: RunId, reference: CheckpointReference) -> str:
    if manifest.run != str(run):
        return f"its manifest belongs to run {manifest.run}"
    if manifest.step != reference.step:
        return f"its manifest says step {manifest.step}"
    if not manifest.replicas_agree:
        return "replicas disagreed when it was saved"
    if manifest.finite.nonfinite:
        return f"{manifest.finite.nonfinite} elements of {', '.join(manifest.finite.tensors)} are not finite"
    return ""


async def _missing(store: CheckpointStore, reference: CheckpointReference, manifest: CheckpointManifest) -> str:
    prefix = reference.key.removesuffix(MANIFEST_NAME)
    sizes = await store.sizes(prefix)
    for name, stored in manifest.objects.items():
        found = sizes.get(prefix + name)
        if found != stored.size:
            return f"object {name} has {found if found is not None else 'no'} bytes instead of {stored.size}"
    return ""
