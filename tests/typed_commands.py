"""`trimtab` as a person types it."""

import os
import subprocess
import sys

from training_jobs import Namespace


def trimtab(namespace: Namespace, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a person types, in the job's namespace."""
    return subprocess.run(
        [sys.executable, "-m", "trimtab_cli", *arguments, "--namespace", namespace.name],
        env={**os.environ, **namespace.cluster.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
