"""Which cluster a command speaks to, and what comes back from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

KubernetesObject = dict[str, Any]
"""An object of the API server as its plain JSON."""


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """Kubeconfig, context and namespace; None means what the kubeconfig says, or where it is usually found."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
