"""Where the sandbox keeps its things, and the addresses it uses. Values only: nothing here touches the machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

BRIDGE = "trimtab0"
BRIDGE_ADDRESS = "10.244.0.1"
POD_NETWORK = "10.244.0.0/24"
SERVICE_NETWORK = "10.96.0.0/16"
FIRST_SERVICE_ADDRESS = "10.96.0.1"
CLUSTER_DOMAIN = "cluster.local"
NODE_NAME = "sandbox"
LOOPBACK = "127.0.0.1"

API_PORT = 6443
REDIS_PORT = 6379
S3_PORT = 8333
S3_GRPC_PORT = S3_PORT + 10_000

SYSTEM_NAMESPACE = "trimtab-system"
REDIS_USER = "trimtab"
AUDIT_BUCKET = "trimtab-audit"
TRAINING_BUCKET = "training"
S3_REGION = "us-east-1"

HOME_VARIABLE = "TRIMTAB_SANDBOX_HOME"
CACHE_VARIABLE = "TRIMTAB_CACHE"
POD_TEMPORARY = Path("/tmp")  # noqa: S108 -- the place itself is meant
RUNTIME_DIRECTORY = Path("/run/trimtab-sandbox")
"""Machine-wide, not per home: bridge and addresses are fixed, so the lock must be one for the machine."""


def default_home() -> Path:
    """The state directory: ``TRIMTAB_SANDBOX_HOME``, else a fixed place under ``/var/lib``."""
    return Path(os.environ.get(HOME_VARIABLE) or "/var/lib/trimtab-sandbox").absolute()


def default_cache() -> Path:
    """The cache that outlives a checkout: ``TRIMTAB_CACHE``, else ``~/.cache/trimtab``."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "trimtab").absolute()


def repository_root() -> Path:
    """The working tree that this package was imported from."""
    return Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Options:
    """What a caller of ``up`` may choose.

    ``mounted`` makes the runtime that mounts this machine's Python and the working tree the default one; without
    it every pod sees only its own image.
    """

    home: Path = field(default_factory=default_home)
    cache: Path = field(default_factory=default_cache)
    repository: Path = field(default_factory=repository_root)
    mounted: bool = True


@dataclass(frozen=True)
class Layout:
    """The files and directories inside one state directory."""

    home: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys of the cluster."""
        return self.home / "pki"

    @property
    def processes(self) -> Path:
        """One record per started process."""
        return self.home / "processes"

    @property
    def logs(self) -> Path:
        """One log per process; pod logs below ``pods``."""
        return self.home / "log"

    @property
    def commands(self) -> Path:
        """The directory with ``kubectl`` and ``helm``, to be put in front of ``PATH``."""
        return self.home / "bin"

    @property
    def containerd_socket(self) -> Path:
        """containerd's gRPC socket."""
        return self.home / "containerd.sock"

    @property
    def containerd_root(self) -> Path:
        """containerd's images and snapshots."""
        return self.home / "containerd-root"

    @property
    def containerd_state(self) -> Path:
        """containerd's running containers and their mounts."""
        return self.home / "containerd-state"

    @property
    def credentials(self) -> Path:
        """The generated passwords and access keys (mode 0600)."""
        return self.home / "credentials.json"

    @property
    def shown_tree(self) -> Path:
        """Names the working tree that pods see; empty when they see none."""
        return self.home / "shown-tree"

    def kubeconfig(self, name: str = "admin") -> Path:
        """The kubeconfig of one identity."""
        return self.home / f"{name}.kubeconfig"


def python_prefixes() -> tuple[Path, ...]:
    """The running interpreter's installation and its virtual environment, without what ``/usr`` already holds."""
    prefixes = dict.fromkeys(Path(prefix).resolve() for prefix in (sys.base_prefix, sys.prefix))
    return tuple(prefix for prefix in prefixes if not prefix.is_relative_to("/usr"))
