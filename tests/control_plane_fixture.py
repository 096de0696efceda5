"""A real Kubernetes control plane for tests: etcd and kube-apiserver on loopback, no node, up in a few seconds.

Import the fixture where it is needed: ``from control_plane_fixture import control_plane``. Objects are stored and
validated as on any cluster; nothing runs them. Garbage collection and the Job controller come with
``ControlPlane.start_controllers``. ``TRIMTAB_KUBE`` names a built binary; else the sandbox builds or finds it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from server_process import LOOPBACK, free_ports
from trimtab_sandbox.build import ensure_binaries
from trimtab_sandbox.settings import default_cache, repository_root

START_SECONDS = 60


def kube_binary() -> Path:
    """The all-in-one Kubernetes binary."""
    if named := os.environ.get("TRIMTAB_KUBE"):
        return Path(named)
    return ensure_binaries(repository_root(), default_cache(), print).kube


def helm_binary() -> Path:
    """Helm, built from the same module."""
    if named := os.environ.get("TRIMTAB_HELM"):
        return Path(named)
    return ensure_binaries(repository_root(), default_cache(), print).helm


def _write_service_account_keys(directory: Path) -> tuple[Path, Path]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / "service-account.key", directory / "service-account.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@contextmanager
def _process(directory: Path, name: str, *arguments: str | Path) -> Generator[subprocess.Popen[bytes]]:
    with (directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class ControlPlane:
    """A running API server, and the ways to talk to it."""

    kube: Path
    directory: Path
    server: str
    kubeconfig: Path
    """The administrator's, with its token and the server's certificate inside."""

    def kubectl(self, *arguments: str, user: str | None = None, text: str | None = None) -> str:
        """Run kubectl (impersonating ``user``) and return what it printed; it must succeed."""
        done = self.try_kubectl(*arguments, user=user, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def try_kubectl(
        self, *arguments: str, user: str | None = None, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return how it ended."""
        impersonation = [f"--as={user}"] if user else []
        command = [str(self.kube), "kubectl", f"--kubeconfig={self.kubeconfig}", *impersonation, *arguments]
        environment = {**os.environ, "HOME": str(self.directory)}
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=120, env=environment
        )

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects, which must be accepted."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=as_documents(objects))

    def refusal(self, *objects: Mapping[str, Any]) -> str:
        """What the API server says against objects that it must refuse; strict validation, as kubectl asks for."""
        done = self.try_kubectl("apply", "-f", "-", text=as_documents(objects))
        assert done.returncode != 0, f"accepted: {done.stdout}"
        return done.stderr

    def create_namespace(self, prefix: str) -> str:
        """A new namespace of its own for one test."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        self.kubectl("create", "namespace", name)
        return name

    @contextmanager
    def start_controllers(self) -> Generator[None]:
        """Run the controller manager: Jobs make Pods, owners' dependants are collected."""
        (port,) = free_ports(1)
        with _process(
            self.directory,
            "controller-manager",
            *(self.kube, "controller-manager", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"),
            f"--service-account-private-key-file={self.directory / 'service-account.key'}",
            *(f"--secure-port={port}", f"--bind-address={LOOPBACK}"),
        ):
            yield


def as_documents(objects: Sequence[Mapping[str, Any]]) -> str:
    """Objects as one stream for kubectl; not as a List, whose items kubectl would judge itself."""
    return "\n---\n".join(json.dumps(dict(each)) for each in objects)


def _write_kubeconfig(path: Path, server: str, certificate: Path, token: str) -> None:
    cluster = {"server": server, "certificate-authority": str(certificate)}
    context = {"cluster": "test", "user": "admin"}
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "admin", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": context}],
                "current-context": "test",
            }
        )
    )


def _wait_ready(plane: ControlPlane, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for _ in range(START_SECONDS * 5):
        if plane.try_kubectl("get", "--raw", "/readyz").returncode == 0:
            return
        for process in processes:
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"{process.args} ended with {process.returncode}; its log is in {plane.directory}")
    pytest.fail(f"the API server was not ready after {START_SECONDS} s; its log is in {plane.directory}")


@contextmanager
def running_control_plane(directory: Path) -> Generator[ControlPlane]:
    """Start etcd and kube-apiserver with their state in ``directory``; both end with the context."""
    kube = kube_binary()
    client_port, peer_port, port = free_ports(3)
    etcd, peer = f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
    private, public = _write_service_account_keys(directory)
    token = secrets.token_hex(16)
    tokens = directory / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(f"{token},admin,admin,system:masters\n")
    plane = ControlPlane(kube, directory, f"https://{LOOPBACK}:{port}", directory / "admin.kubeconfig")
    _write_kubeconfig(plane.kubeconfig, plane.server, directory / "certificates" / "apiserver.crt", token)
    with (
        _process(
            directory,
            "etcd",
            *(kube, "etcd", "--data-dir", directory / "etcd", "--unsafe-no-fsync", "--log-level", "warn"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ) as etcd_process,
        _process(
            directory,
            "apiserver",
            *(kube, "apiserver", "--etcd-servers", etcd, "--cert-dir", directory / "certificates"),
            *("--bind-address", LOOPBACK, "--advertise-address", LOOPBACK, "--secure-port", str(port)),
            *("--token-auth-file", tokens, "--authorization-mode", "RBAC"),
            *("--service-cluster-ip-range", "10.96.0.0/16"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", public, "--service-account-signing-key-file", private),
            # Pods are stored though no controller makes service accounts here.
            *("--disable-admission-plugins", "ServiceAccount"),
        ) as apiserver_process,
    ):
        _wait_ready(plane, (etcd_process, apiserver_process))
        yield plane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One control plane for the whole test session."""
    with running_control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
