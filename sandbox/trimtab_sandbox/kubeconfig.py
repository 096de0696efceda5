"""Kubeconfigs and the admin's ``kubectl``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab_sandbox.certificates import CLIENTS
from trimtab_sandbox.commands import attempt, run
from trimtab_sandbox.settings import API_PORT, BRIDGE_ADDRESS, Layout

API_SERVER = f"https://{BRIDGE_ADDRESS}:{API_PORT}"


def render_kubeconfig(pki: Path, client: str) -> str:
    """A kubeconfig with its certificates inside, so that the file can be copied anywhere."""

    def embedded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    cluster = {"server": API_SERVER, "certificate-authority-data": embedded("ca.crt")}
    user = {
        "client-certificate-data": embedded(f"{client}.crt"),
        "client-key-data": embedded(f"{client}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "trimtab-sandbox", "cluster": cluster}],
        "users": [{"name": client, "user": user}],
        "contexts": [{"name": "trimtab-sandbox", "context": {"cluster": "trimtab-sandbox", "user": client}}],
        "current-context": "trimtab-sandbox",
    }
    return json.dumps(document, indent=1)


def write_kubeconfigs(layout: Layout) -> None:
    """Write one kubeconfig per client certificate, readable by root only."""
    for client in CLIENTS:
        path = layout.kubeconfig(client)
        path.touch(mode=0o600)
        path.write_text(render_kubeconfig(layout.pki, client))


@dataclass(frozen=True)
class Kubectl:
    """``kubectl`` as the cluster's administrator."""

    kube: Path
    kubeconfig: Path

    def _command(self, arguments: Sequence[str]) -> list[str | Path]:
        return [self.kube, "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]

    def succeeds(self, *arguments: str) -> bool:
        """Whether the command ended with 0."""
        return attempt(self._command(arguments)).returncode == 0

    def run(self, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        """Run a command that must succeed and return what it printed.

        Raises:
            CommandFailedError: it did not.
        """
        return run(self._command(arguments), text=text, timeout=timeout)

    def apply(self, objects: Sequence[Mapping[str, object]]) -> None:
        """Apply objects (server-side, so that applying again is no conflict)."""
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=manifest)
