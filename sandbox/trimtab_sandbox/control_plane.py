"""etcd, the API server, the controller manager and the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trimtab_sandbox.processes import Component
from trimtab_sandbox.settings import (
    API_PORT,
    BRIDGE_ADDRESS,
    LOOPBACK,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
)

_ETCD_CLIENT_PORT, _ETCD_PEER_PORT = 2379, 2380
_CONTROLLER_MANAGER_PORT, _SCHEDULER_PORT = 10257, 10259
_CLIENT_QPS = 300
"""Requests per second. The default of 20 lets the controllers alone take four seconds to start."""


def etcd(layout: Layout, kube: Path) -> Component:
    """etcd on loopback. It need not survive a power cut, so it does not wait for the disk."""
    client = f"http://{LOOPBACK}:{_ETCD_CLIENT_PORT}"
    peer = f"http://{LOOPBACK}:{_ETCD_PEER_PORT}"
    flags = {
        "data-dir": layout.home / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "warn",
    }
    arguments = (str(kube), "etcd", *_render(flags), "--unsafe-no-fsync")
    return Component("etcd", arguments, address=(LOOPBACK, _ETCD_CLIENT_PORT))


def apiserver(layout: Layout, kube: Path) -> Component:
    """The API server, on the bridge's address only."""
    pki = layout.pki
    flags = {
        "etcd-servers": f"http://{LOOPBACK}:{_ETCD_CLIENT_PORT}",
        "bind-address": BRIDGE_ADDRESS,
        "advertise-address": BRIDGE_ADDRESS,
        "secure-port": API_PORT,
        "service-cluster-ip-range": SERVICE_NETWORK,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "service-account-key-file": pki / "service-account.pub",
        "service-account-signing-key-file": pki / "service-account.key",
        "service-account-issuer": "https://kubernetes.default.svc",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "kubelet-client-certificate": pki / "apiserver-kubelet.crt",
        "kubelet-client-key": pki / "apiserver-kubelet.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
    }
    return Component("apiserver", (str(kube), "apiserver", *_render(flags)), address=(BRIDGE_ADDRESS, API_PORT))


def controller_manager(layout: Layout, kube: Path) -> Component:
    """The controller manager; alone, so without leader election."""
    flags = {
        "kubeconfig": layout.kubeconfig("controller-manager"),
        "bind-address": LOOPBACK,
        "cluster-cidr": POD_NETWORK,
        "allocate-node-cidrs": "true",
        "service-cluster-ip-range": SERVICE_NETWORK,
        "service-account-private-key-file": layout.pki / "service-account.key",
        "root-ca-file": layout.pki / "ca.crt",
        "use-service-account-credentials": "true",
        "cert-dir": layout.home / "controller-manager",
        "kube-api-qps": _CLIENT_QPS,
        "kube-api-burst": _CLIENT_QPS,
        "leader-elect": "false",
    }
    address = (LOOPBACK, _CONTROLLER_MANAGER_PORT)
    return Component("controller-manager", (str(kube), "controller-manager", *_render(flags)), address=address)


def scheduler(layout: Layout, kube: Path) -> Component:
    """The scheduler; alone, so without leader election."""
    flags = {
        "kubeconfig": layout.kubeconfig("scheduler"),
        "bind-address": LOOPBACK,
        "cert-dir": layout.home / "scheduler",
        "leader-elect": "false",
    }
    return Component("scheduler", (str(kube), "scheduler", *_render(flags)), address=(LOOPBACK, _SCHEDULER_PORT))


def _render(flags: Mapping[str, str | int | Path]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in flags.items())


RESERVED = (
    (LOOPBACK, _ETCD_CLIENT_PORT),
    (LOOPBACK, _ETCD_PEER_PORT),
    (LOOPBACK, _CONTROLLER_MANAGER_PORT),
    (LOOPBACK, _SCHEDULER_PORT),
)
"""What must be free on loopback before the control plane starts."""
