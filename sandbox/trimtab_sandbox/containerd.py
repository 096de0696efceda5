"""containerd: its configuration, and the two runtimes that pods can choose from.

``mounted`` adds read-only mounts of this machine's ``/usr``, Python and the working tree to every container, by
way of a base runtime specification, so that no manifest has to know of them. ``plain`` is runc as it comes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab_sandbox.commands import attempt, run
from trimtab_sandbox.packages import require
from trimtab_sandbox.processes import Component
from trimtab_sandbox.settings import LOOPBACK, Layout, Options, python_prefixes

NAMESPACE = "k8s.io"
MOUNTED_RUNTIME = "mounted"
PLAIN_RUNTIME = "plain"
PAUSE_IMAGE = "localhost/pause:1"
WORKING_TREE = "/opt/trimtab"


def development_mounts(repository: Path) -> list[dict[str, object]]:
    """The read-only mounts of the ``mounted`` runtime, outermost first (OCI runtime specification, ``mounts``)."""
    sources = {"/usr": "/usr"}
    sources |= {str(prefix): str(prefix) for prefix in python_prefixes()}
    sources[WORKING_TREE] = str(repository)
    return [
        {"destination": destination, "type": "bind", "source": source, "options": ["rbind", "ro", "nosuid", "nodev"]}
        for destination, source in sources.items()
    ]


def render_base_specification(default: str, mounts: Sequence[dict[str, object]]) -> str:
    """containerd's default OCI specification (as ``ctr oci spec`` prints it) with mounts added."""
    specification: dict[str, Any] = json.loads(default)
    specification["mounts"] = [*specification["mounts"], *mounts]
    return json.dumps(specification, indent=1)


def render_configuration(layout: Layout, *, default_runtime: str) -> str:
    """containerd's configuration.

    ``restrict_oom_score_adj`` is for machines without CAP_SYS_RESOURCE, where every pod would die otherwise. Network
    namespaces are kept under the state directory, so that they can be told from other programs' on this machine.
    """
    base = '"io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{layout.containerd_root}"
state = "{layout.containerd_state}"
[grpc]
address = "{layout.containerd_socket}"
[plugins.{base}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "{LOOPBACK}"
[plugins.{base}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{layout.home / "cni"}"
[plugins.{base}.containerd]
default_runtime_name = "{default_runtime}"
[plugins.{base}.containerd.runtimes.{PLAIN_RUNTIME}]
runtime_type = "io.containerd.runc.v2"
[plugins.{base}.containerd.runtimes.{MOUNTED_RUNTIME}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{layout.home / "mounted-runtime.json"}"
"""


def write_configuration(layout: Layout, options: Options) -> None:
    """Write containerd's configuration and the ``mounted`` runtime's base specification."""
    default = MOUNTED_RUNTIME if options.mounted else PLAIN_RUNTIME
    (layout.home / "containerd.toml").write_text(render_configuration(layout, default_runtime=default))
    base = render_base_specification(run([require("ctr"), "oci", "spec"]), development_mounts(options.repository))
    (layout.home / "mounted-runtime.json").write_text(base)


def containerd(layout: Layout) -> Component:
    """The containerd process."""
    configuration = str(layout.home / "containerd.toml")
    return Component("containerd", (require("containerd"), "--config", configuration, "--log-level", "warn"))


def ctr(layout: Layout, *arguments: str | Path, timeout: float = 120) -> str:
    """Run ``ctr`` in the namespace that Kubernetes uses, for at most ``timeout`` seconds."""
    command = [require("ctr"), "--address", layout.containerd_socket, "--namespace", NAMESPACE, *arguments]
    return run(command, timeout=timeout)


def answers(layout: Layout) -> bool:
    """Whether containerd answers, its CRI plugin included."""
    command = [require("ctr"), "--address", layout.containerd_socket, "plugins", "list"]
    done = attempt(command)
    return any("cri" in line.split() and "ok" in line.split() for line in done.stdout.splitlines())
