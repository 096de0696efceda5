"""The cluster's certificate authority, its certificates and its service account key (ECDSA P-256)."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trimtab_sandbox.settings import (
    BRIDGE_ADDRESS,
    CLUSTER_DOMAIN,
    FIRST_SERVICE_ADDRESS,
    LOOPBACK,
    NODE_NAME,
)

_VALIDITY = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_KUBERNETES_SERVICE = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
)


@dataclass(frozen=True)
class Subject:
    """One certificate to issue: common name, organisation (a group to Kubernetes), and the names it serves."""

    common_name: str
    organisation: str | None = None
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


SUBJECTS: dict[str, Subject] = {
    "apiserver": Subject(
        "kube-apiserver",
        dns_names=("localhost", *_KUBERNETES_SERVICE),
        addresses=(BRIDGE_ADDRESS, FIRST_SERVICE_ADDRESS, LOOPBACK),
    ),
    "apiserver-kubelet": Subject("kube-apiserver-kubelet-client", organisation="system:masters"),
    "kubelet": Subject(
        f"system:node:{NODE_NAME}", organisation="system:nodes", dns_names=(NODE_NAME,), addresses=(BRIDGE_ADDRESS,)
    ),
    "admin": Subject("admin", organisation="system:masters"),
    "controller-manager": Subject("system:kube-controller-manager"),
    "scheduler": Subject("system:kube-scheduler"),
    "proxy": Subject("system:kube-proxy"),
    "dns": Subject("system:coredns"),
}
"""Every certificate of the cluster by the name of its files."""

CLIENTS = ("kubelet", "admin", "controller-manager", "scheduler", "proxy", "dns")
"""Those that get a kubeconfig."""


def _name(common_name: str, organisation: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True)
class Authority:
    """A certificate authority that signs with its own key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls) -> Authority:
        """Make a new authority."""
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("trimtab-sandbox")
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_key_usage(authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    def issue(self, subject: Subject, key: ec.EllipticCurvePublicKey) -> x509.Certificate:
        """Sign a certificate that serves and dials as ``subject``."""
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in subject.dns_names]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in subject.addresses]
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = (
            _builder(_name(subject.common_name, subject.organisation), self.certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(usages, critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def write_pki(directory: Path) -> None:
    """Make everything anew in an empty directory: ``ca.crt``, ``NAME.crt``, ``NAME.key``, ``service-account.*``."""
    directory.mkdir(parents=True, mode=0o700)
    authority = Authority.create()
    (directory / "ca.crt").write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    for name, subject in SUBJECTS.items():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = authority.issue(subject, key.public_key())
        _write_key(directory / f"{name}.key", key)
        (directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    account = ec.generate_private_key(ec.SECP256R1())
    _write_key(directory / "service-account.key", account)
    (directory / "service-account.pub").write_bytes(
        account.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
