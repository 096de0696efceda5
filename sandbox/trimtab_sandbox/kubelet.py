"""The node's own processes: the kubelet, cluster DNS and kube-proxy."""

from __future__ import annotations

import json
from pathlib import Path

from trimtab_sandbox.processes import Component
from trimtab_sandbox.settings import (
    BRIDGE_ADDRESS,
    CLUSTER_DOMAIN,
    LOOPBACK,
    NODE_NAME,
    POD_NETWORK,
    Layout,
)

_KUBELET_PORT, _KUBELET_HEALTH_PORT = 10250, 10248
_PROXY_METRICS_PORT, _PROXY_HEALTH_PORT = 10249, 10256
_DNS_READY_PORT = 8181


def render_kubelet_configuration(layout: Layout) -> str:
    """The kubelet's configuration (``kubelet.config.k8s.io/v1beta1``) for a small machine of any cgroup version."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": BRIDGE_ADDRESS,
            "port": _KUBELET_PORT,
            "healthzBindAddress": LOOPBACK,
            "healthzPort": _KUBELET_HEALTH_PORT,
            "authentication": {
                "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(layout.pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(layout.pki / "kubelet.key"),
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "clusterDNS": [BRIDGE_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": str(layout.home / "resolv.conf"),
            "maxPods": 110,
            "podLogsDir": str(layout.logs / "pods"),
            "volumePluginDir": str(layout.home / "volume-plugins"),
        },
        indent=1,
    )


def render_corefile(layout: Layout) -> str:
    """CoreDNS's configuration: the cluster's names, and nothing of the outside."""
    return f"""{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {BRIDGE_ADDRESS}
    errors
    ready {LOOPBACK}:{_DNS_READY_PORT}
    cache 2
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.kubeconfig("dns")}
        pods insecure
        ttl 1
    }}
}}
"""


def write_configuration(layout: Layout) -> None:
    """Write what the node's processes read."""
    (layout.home / "kubelet.json").write_text(render_kubelet_configuration(layout))
    (layout.home / "Corefile").write_text(render_corefile(layout))
    # Pods get the cluster's names only; this machine's resolvers are out of their reach anyway.
    (layout.home / "resolv.conf").write_text("")


def kubelet(layout: Layout, kube: Path) -> Component:
    """The kubelet."""
    arguments = (
        str(kube),
        "kubelet",
        f"--config={layout.home / 'kubelet.json'}",
        f"--kubeconfig={layout.kubeconfig('kubelet')}",
        f"--hostname-override={NODE_NAME}",
        f"--root-dir={layout.home / 'kubelet'}",
        f"--cert-dir={layout.home / 'kubelet' / 'pki'}",
        f"--node-ip={BRIDGE_ADDRESS}",
    )
    return Component("kubelet", arguments, address=(BRIDGE_ADDRESS, _KUBELET_PORT))


def dns(layout: Layout, kube: Path) -> Component:
    """CoreDNS on the bridge's address."""
    arguments = (str(kube), "dns", "-conf", str(layout.home / "Corefile"))
    return Component("dns", arguments, address=(LOOPBACK, _DNS_READY_PORT))


def proxy(layout: Layout, kube: Path) -> Component:
    """kube-proxy with iptables. Node ports, if anyone asks for them, open on the bridge's address only."""
    arguments = (
        str(kube),
        "proxy",
        f"--kubeconfig={layout.kubeconfig('proxy')}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_NETWORK}",
        f"--hostname-override={NODE_NAME}",
        "--conntrack-max-per-core=0",
        f"--nodeport-addresses={BRIDGE_ADDRESS}/32",
        "--iptables-localhost-nodeports=false",
        f"--healthz-bind-address={LOOPBACK}:{_PROXY_HEALTH_PORT}",
        f"--metrics-bind-address={LOOPBACK}:{_PROXY_METRICS_PORT}",
    )
    return Component("proxy", arguments, address=(LOOPBACK, _PROXY_HEALTH_PORT))


RESERVED = (
    (LOOPBACK, _KUBELET_HEALTH_PORT),
    (LOOPBACK, _PROXY_METRICS_PORT),
    (LOOPBACK, _PROXY_HEALTH_PORT),
    (LOOPBACK, _DNS_READY_PORT),
)
"""What must be free on loopback before these start."""
