"""The bridge that pods hang on, and the packet rules that keep it to itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from trimtab_sandbox.commands import attempt, run
from trimtab_sandbox.errors import UnsupportedMachineError
from trimtab_sandbox.packages import require
from trimtab_sandbox.settings import BRIDGE, BRIDGE_ADDRESS, POD_NETWORK, S3_GRPC_PORT, SERVICE_NETWORK, Layout

_CHAINS = {"FORWARD": "TRIMTAB-FORWARD", "INPUT": "TRIMTAB-INPUT"}
_SYSCTLS = ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables")
_KERNEL_CHAIN_PREFIX = "KUBE-"


def render_cni(layout: Layout) -> str:
    """The CNI configuration: one bridge, addresses from its network, no masquerade to the outside."""
    ipam = {
        "type": "host-local",
        "dataDir": str(layout.home / "ipam"),
        "ranges": [[{"subnet": POD_NETWORK}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": ipam,
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "trimtab", "plugins": [bridge]}, indent=1)


def check_free(addresses: Iterable[tuple[str, int]]) -> None:
    """Refuse a machine where an address that the sandbox needs is in use.

    Raises:
        UnsupportedMachineError: names every conflict at once.
    """
    conflicts = [f"port {port} on {host}" for host, port in addresses if not _can_bind(host, port)]
    ours = (ip_network(POD_NETWORK), ip_network(SERVICE_NETWORK))
    for link in _links("address"):
        if link["ifname"] == BRIDGE:
            continue
        conflicts += [
            f"address {entry['local']} of interface {link['ifname']}"
            for entry in link.get("addr_info", [])
            if any(ip_address(entry["local"]) in network for network in ours)
        ]
    if conflicts:
        raise UnsupportedMachineError(
            f"The sandbox needs addresses that are in use on this machine: {'; '.join(conflicts)}. "
            "End what holds them, then run `up` again."
        )


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _links(kind: str, *arguments: str) -> list[dict[str, Any]]:
    done = attempt([require("ip"), "-json", kind, "show", *arguments])
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else []


def bridge_exists() -> bool:
    """Whether the bridge is there."""
    return Path("/sys/class/net", BRIDGE).exists()


def create_bridge(layout: Layout) -> None:
    """Make the bridge, allow forwarding behind it only, and remember what the kernel's settings were."""
    ip, sysctl = require("ip"), require("sysctl")
    if not Path("/proc/sys/net/bridge").exists():
        run(["modprobe", "br_netfilter"])
    remembered = layout.home / "sysctl.json"
    if not remembered.exists():
        before = {name: run([sysctl, "-n", name]).strip() for name in _SYSCTLS}
        remembered.write_text(json.dumps(before))
    if not bridge_exists():
        run([ip, "link", "add", BRIDGE, "type", "bridge"])
        run([ip, "address", "add", f"{BRIDGE_ADDRESS}/{ip_network(POD_NETWORK).prefixlen}", "dev", BRIDGE])
        run([ip, "link", "set", BRIDGE, "up"])
    run([sysctl, "-qw", *(f"{name}=1" for name in _SYSCTLS)])
    _write_rules()


def _write_rules() -> None:
    # Pods speak with each other and with this machine; nothing passes between them and the outside, and no
    # neighbour on the machine's own network reaches the bridge's address through it. SeaweedFS opens its inner door
    # (gRPC, without a password) beside the S3 one; pods have no business there.
    rules = {
        "FORWARD": (
            ("-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT"),
            ("-i", BRIDGE, "-j", "REJECT"),
            ("-o", BRIDGE, "-j", "DROP"),
        ),
        "INPUT": (
            ("-i", BRIDGE, "-p", "tcp", "--dport", str(S3_GRPC_PORT), "-j", "REJECT"),
            ("-i", BRIDGE, "-j", "RETURN"),
            ("-i", "lo", "-j", "RETURN"),
            ("-d", POD_NETWORK, "-j", "DROP"),
        ),
    }
    iptables = [require("iptables"), "-w"]
    _remove_rules()
    for chain, own in _CHAINS.items():
        run([*iptables, "-N", own])
        for rule in rules[chain]:
            run([*iptables, "-A", own, *rule])
        run([*iptables, "-I", chain, "-j", own])


def _remove_rules() -> None:
    iptables = [require("iptables"), "-w"]
    for chain, own in _CHAINS.items():
        while attempt([*iptables, "-D", chain, "-j", own]).returncode == 0:
            pass
        attempt([*iptables, "-F", own])
        attempt([*iptables, "-X", own])


def remove_network(layout: Layout) -> None:
    """Remove the bridge with everything on it, its rules, and what was changed in the kernel's settings."""
    ip = require("ip")
    for link in _links("link", "master", BRIDGE):
        attempt([ip, "link", "delete", link["ifname"]])
    if bridge_exists():
        run([ip, "link", "delete", BRIDGE])
    _remove_rules()
    remembered = layout.home / "sysctl.json"
    if remembered.exists():
        for name, value in json.loads(remembered.read_text()).items():
            attempt([require("sysctl"), "-qw", f"{name}={value}"])
        remembered.unlink()


def kubernetes_chains() -> list[str]:
    """The chains that kube-proxy and the kubelet left in the packet filter, as ``table chain``."""
    iptables = require("iptables")
    found: list[str] = []
    for table in ("filter", "nat", "mangle"):
        listed = attempt([iptables, "-w", "-t", table, "-S"]).stdout.splitlines()
        found += [f"{table} {line.split()[1]}" for line in listed if line.startswith(f"-N {_KERNEL_CHAIN_PREFIX}")]
    return found


def remove_kubernetes_chains() -> None:
    """Remove every chain whose name Kubernetes reserves, and the jumps into it."""
    iptables = require("iptables")
    for table in ("filter", "nat", "mangle"):
        base = [iptables, "-w", "-t", table]
        listed = attempt([*base, "-S"]).stdout.splitlines()
        chains = [line.split()[1] for line in listed if line.startswith(f"-N {_KERNEL_CHAIN_PREFIX}")]
        if not chains:
            continue
        # One transaction: flush all first, since a chain can be deleted only when nothing jumps to it.
        jumps = [line.replace("-A", "-D", 1) for line in listed if _jumps_from_outside(line)]
        lines = [f"*{table}", *jumps, *(f"-F {chain}" for chain in chains), *(f"-X {chain}" for chain in chains)]
        run([require("iptables-restore"), "-w", "--noflush"], text="\n".join([*lines, "COMMIT", ""]))


def _jumps_from_outside(line: str) -> bool:
    words = line.split()
    return words[0] == "-A" and not words[1].startswith(_KERNEL_CHAIN_PREFIX) and f"-j {_KERNEL_CHAIN_PREFIX}" in line
