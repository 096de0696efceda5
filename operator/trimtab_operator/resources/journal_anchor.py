"""JournalAnchor: the newest journal record of a run that is known outside the audit bucket; it outlives the job."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError
from trimtab_contract.anchors import Anchor, AnchorSignature, anchor_name
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId

from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources.values import Hash, Name, Resource, Uid, validation


class AnchoredJob(Resource):
    """The TrainingJob whose journal it is; it may be gone."""

    name: Name
    uid: Uid


class Signature(Resource):
    """An Ed25519 signature over run, seq and hash."""

    key_id: Hash
    """SHA-256 of the public key's SubjectPublicKeyInfo in DER."""
    value: Annotated[str, Field(min_length=88, max_length=88, pattern=r"^[A-Za-z0-9+/]{86}==$")]


class JournalAnchorSpec(Resource):
    """One record of the journal: it proves itself and all before it."""

    job: AnchoredJob
    seq: Annotated[int, Field(ge=1)]
    hash: Hash
    ended: bool = False
    """The record is the last one: the TrainingJob was deleted."""
    signature: Signature | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("self.job == oldSelf.job", "is immutable", fieldPath=".job"),
                validation("self.seq >= oldSelf.seq", "never falls", fieldPath=".seq"),
                validation(
                    "self.seq != oldSelf.seq || self.hash == oldSelf.hash",
                    "is that of record seq, which does not change",
                    fieldPath=".hash",
                ),
            ]
        }
    )


def anchor_spec(anchor: Anchor, run: RunId) -> dict[str, Any]:
    """The `spec` that holds an anchor; absent fields are None, so that a patch removes them."""
    signature = anchor.signature
    return {
        "job": {"name": run.name, "uid": run.uid},
        "seq": anchor.seq,
        "hash": anchor.hash,
        "ended": anchor.ended,
        "signature": {"keyId": signature.key_id, "value": signature.value} if signature else None,
    }


def parse_journal_anchor(body: Mapping[str, Any]) -> tuple[RunId, Anchor]:
    """Read an object; raises InvalidResource where it cannot be what an operator wrote."""
    metadata = body["metadata"]
    label = f"JournalAnchor {metadata['namespace']}/{metadata['name']}"
    try:
        spec = JournalAnchorSpec.model_validate(body.get("spec"))
        run = RunId(metadata["namespace"], spec.job.name, spec.job.uid)
    except (ValidationError, ContractError):
        message = f"{label} cannot be read: it was written by hand or by a newer version"
        raise InvalidResource(message) from None
    if metadata["name"] != anchor_name(run):
        message = f"{label} says that it is that of run {run}, whose anchor is called {anchor_name(run)}"
        raise InvalidResource(message)
    signature = AnchorSignature(key_id=spec.signature.key_id, value=spec.signature.value) if spec.signature else None
    return run, Anchor(run=str(run), seq=spec.seq, hash=spec.hash, ended=spec.ended, signature=signature)
