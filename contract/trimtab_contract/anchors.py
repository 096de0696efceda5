"""Anchor: how far a run's journal is known outside its bucket, and the bytes that are signed of it.

A hash chain is whole in itself also when its end was cut off or all of it was written anew. Whoever knows the hash of
one of its records from elsewhere has proof of that record and of all before it.
"""

import json

import msgspec

from trimtab_contract.errors import UNREADABLE, MalformedJournal
from trimtab_contract.keys import RunId

PURPOSE = "trimtab.dev/JournalAnchor"
"""Part of what is signed, so that a signature for anything else proves nothing here."""


class AnchorSignature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An Ed25519 signature in base64; `key_id` is the SHA-256 of the public key's SubjectPublicKeyInfo in DER."""

    key_id: str
    value: str


class Anchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record of a run's journal as known outside the bucket; `ended` says that it is the run's last."""

    run: str
    seq: int
    hash: str
    ended: bool = False
    signature: AnchorSignature | None = None


def signed_bytes(anchor: Anchor, key_id: str) -> bytes:
    """What a signature covers, as canonical JSON: run, number, hash, whether it is the end, purpose, and which key."""
    claim = {
        "ended": anchor.ended,
        "hash": anchor.hash,
        "keyId": key_id,
        "purpose": PURPOSE,
        "run": anchor.run,
        "seq": anchor.seq,
    }
    return json.dumps(claim, sort_keys=True, separators=(",", ":")).encode()


def anchor_name(run: RunId) -> str:
    """The name of a run's anchor object: a job that is made anew under its old name gets another."""
    return f"{run.name}-{run.uid}"


def encode_anchor(anchor: Anchor) -> bytes:
    """An anchor as a file holds it."""
    return msgspec.json.encode(anchor, order="deterministic")


def decode_anchor(body: bytes) -> Anchor:
    """Read what `encode_anchor` wrote; raises MalformedJournal."""
    try:
        return msgspec.json.decode(body, type=Anchor)
    except UNREADABLE as error:
        message = f"anchor cannot be decoded: {error}"
        raise MalformedJournal(message) from error
