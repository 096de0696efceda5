"""Ed25519 signatures of anchors. The key that signs is named in the anchor, so that keys can be changed."""

import base64
import binascii
import hashlib

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from trimtab_contract.anchors import Anchor, AnchorSignature, signed_bytes


class AnchorVerifier:
    """One public key."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        self.key_id = _fingerprint(key)

    @classmethod
    def of_pem(cls, pem: bytes) -> "AnchorVerifier":
        """Read a public key as `openssl pkey -pubout` writes it; raises ValueError, without a word of its content."""
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise ValueError("is no public key in PEM; make one with: openssl pkey -in KEY -pubout") from None
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("is a public key, but none of Ed25519")  # noqa: TRY004 - bad content, not a bad type
        return cls(key)

    @property
    def pem(self) -> bytes:
        """The key as a file holds it."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def signed(self, anchor: Anchor) -> bool:
        """Whether this key signed the anchor, as the key that the anchor names."""
        signature = anchor.signature
        if signature is None or signature.key_id != self.key_id:
            return False
        try:
            value = base64.b64decode(signature.value, validate=True)
            self._key.verify(value, signed_bytes(anchor, self.key_id))
        except (binascii.Error, InvalidSignature):
            return False
        return True


class AnchorSigner(AnchorVerifier):
    """One private key; shows nothing of itself when printed."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        super().__init__(key.public_key())
        self._private = key

    @classmethod
    def of_pem(cls, pem: bytes) -> "AnchorSigner":
        """Read a key as `openssl genpkey -algorithm ed25519` writes it; raises ValueError without its content."""
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            wanted = "an unencrypted private key in PEM; make one with: openssl genpkey -algorithm ed25519"
            raise ValueError(f"is not {wanted}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("is a private key, but none of Ed25519")  # noqa: TRY004 - bad content, not a bad type
        return cls(key)

    def sign(self, anchor: Anchor) -> Anchor:
        """The anchor with this key's signature in place of any other."""
        value = base64.b64encode(self._private.sign(signed_bytes(anchor, self.key_id))).decode()
        return msgspec.structs.replace(anchor, signature=AnchorSignature(key_id=self.key_id, value=value))


def _fingerprint(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
