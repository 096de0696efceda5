"""What the signature of an anchor proves. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trimtab_contract.anchors import Anchor
from trimtab_operator.signatures import AnchorVerifier

from trimtab_cli.errors import NotFound, UsageError


class SignatureState(StrEnum):
    """How far the signature was looked at."""

    NO_ANCHOR = "NoAnchor"
    UNSIGNED = "Unsigned"
    NOT_CHECKED = "NotChecked"
    VERIFIED = "Verified"
    WRONG = "Wrong"


@dataclass(frozen=True, slots=True)
class SignatureReport:
    """The state of an anchor's signature, the fingerprint of the key it names, and what is wrong."""

    state: SignatureState
    key_id: str = ""
    problems: tuple[str, ...] = ()


def load_public_keys(paths: Sequence[Path]) -> tuple[AnchorVerifier, ...]:
    """Read public keys from files; raises NotFound, UsageError."""
    keys: list[AnchorVerifier] = []
    for path in paths:
        try:
            keys.append(AnchorVerifier.of_pem(path.read_bytes()))
        except OSError as error:
            raise NotFound(f"--public-key: {path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise UsageError(f"--public-key: {path} {error}.") from error
    return tuple(keys)


def check_signature(anchor: Anchor | None, keys: Sequence[AnchorVerifier]) -> SignatureReport:
    """Check an anchor's signature by whichever of the keys it names; keys that are given must find one."""
    if anchor is None:
        problems = ("there is no JournalAnchor whose signature could be checked",) if keys else ()
        return SignatureReport(SignatureState.NO_ANCHOR, "", problems)
    signature = anchor.signature
    if signature is None:
        problems = (f"the anchor of record {anchor.seq} is not signed",) if keys else ()
        return SignatureReport(SignatureState.UNSIGNED, "", problems)
    if not keys:
        return SignatureReport(SignatureState.NOT_CHECKED, signature.key_id)
    named = next((key for key in keys if key.key_id == signature.key_id), None)
    if named is None:
        message = f"the anchor of record {anchor.seq} is signed by key {signature.key_id}, which is none of those given"
        return SignatureReport(SignatureState.NOT_CHECKED, signature.key_id, (message,))
    if not named.signed(anchor):
        message = f"the anchor of record {anchor.seq} was forged: its signature is not by key {signature.key_id}"
        return SignatureReport(SignatureState.WRONG, signature.key_id, (message,))
    return SignatureReport(SignatureState.VERIFIED, signature.key_id)
