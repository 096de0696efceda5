"""An anchor's form in a file, and what its signature covers."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trimtab_contract.anchors import Anchor, AnchorSignature, anchor_name, decode_anchor, encode_anchor, signed_bytes
from trimtab_contract.errors import MalformedJournal
from trimtab_contract.keys import RunId
from trimtab_operator.signatures import AnchorSigner, AnchorVerifier

ANCHOR = Anchor(run="lab/job/u", seq=7, hash="a" * 64)
SIGNER = AnchorSigner(Ed25519PrivateKey.generate())


def test_what_is_signed_is_plain_to_see_and_stays_the_same() -> None:
    assert signed_bytes(ANCHOR, "k") == (
        b'{"ended":false,"hash":"' + b"a" * 64 + b'","keyId":"k","purpose":"trimtab.dev/JournalAnchor",'
        b'"run":"lab/job/u","seq":7}'
    )


@pytest.mark.parametrize("change", [{"seq": 8}, {"hash": "b" * 64}, {"run": "lab/job/v"}, {"ended": True}])
def test_a_signature_covers_everything_an_anchor_says(change: dict[str, object]) -> None:
    signed = SIGNER.sign(ANCHOR)
    verifier = AnchorVerifier.of_pem(SIGNER.pem)
    assert verifier.signed(signed)
    assert not verifier.signed(msgspec.structs.replace(signed, **change))


@pytest.mark.parametrize("value", ["", "!", "AAAA", "A" * 86 + "=="])
def test_what_is_no_signature_of_the_key_is_none(value: str) -> None:
    forged = msgspec.structs.replace(ANCHOR, signature=AnchorSignature(key_id=SIGNER.key_id, value=value))
    assert not SIGNER.signed(forged)
    assert not SIGNER.signed(ANCHOR)


def test_an_anchor_reads_back_from_a_file_and_nothing_else_does() -> None:
    signed = SIGNER.sign(ANCHOR)
    assert decode_anchor(encode_anchor(signed)) == signed
    for body in (b"", b"{}", b'{"run":"r","seq":1,"hash":"h","more":1}'):
        with pytest.raises(MalformedJournal):
            decode_anchor(body)


def test_a_job_that_is_made_anew_under_its_old_name_has_another_anchor() -> None:
    assert anchor_name(RunId("lab", "job", "u")) != anchor_name(RunId("lab", "job", "v"))
