"""The chart's objects as Helm renders them, without a cluster."""

import subprocess
from pathlib import Path
from typing import Any

import yaml
from control_plane_fixture import helm_binary

CHART = Path(__file__).parents[1] / "helm" / "trimtab"


def try_render(*arguments: str, namespace: str) -> subprocess.CompletedProcess[str]:
    """Render the release `trimtab` and return how it ended."""
    # The built helm assumes an old server when it renders without one.
    command = [helm_binary(), "template", "trimtab", CHART, f"--namespace={namespace}", "--kube-version=1.35.4"]
    return subprocess.run([*map(str, command), *arguments], capture_output=True, text=True, check=False, timeout=60)


def render(*arguments: str, namespace: str) -> list[dict[str, Any]]:
    """Render the release, which must succeed."""
    done = try_render(*arguments, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]
