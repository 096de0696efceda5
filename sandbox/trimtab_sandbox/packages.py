"""The Debian packages that the sandbox's parts come from."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from trimtab_sandbox.commands import Progress, run
from trimtab_sandbox.errors import MissingToolError, UnsupportedMachineError

PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "sysctl": "procps",
    "catatonit": "catatonit",
    "redis-server": "redis-server",
    "/bin/busybox": "busybox-static",
}
"""Program (a name on ``PATH`` or a path) and the Debian package that brings it."""

IMAGE_PACKAGES: Mapping[str, str] = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
"""What building images needs besides."""

_START_POLICY = Path("/usr/sbin/policy-rc.d")

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str) -> str | None:
    """The path of a program; system directories count even when ``PATH`` lacks them."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def require(program: str) -> str:
    """The path of a program that must be there.

    Raises:
        MissingToolError: it is not.
    """
    path = find(program)
    if path is None:
        raise MissingToolError(
            f"The program {program!r} is missing: run `apt-get install {PACKAGES.get(program, program)}`."
        )
    return path


def check_machine() -> None:
    """Refuse a machine that cannot hold a sandbox.

    Raises:
        UnsupportedMachineError: not Linux, or not root.
    """
    if sys.platform != "linux":
        raise UnsupportedMachineError(
            f"The sandbox needs Linux, and this is {sys.platform}: use `--context NAME` with a cluster you have."
        )
    if os.geteuid() != 0:
        raise UnsupportedMachineError(
            "The sandbox makes a bridge, mounts and containers, for which it must be root: run it with sudo, "
            "or use `--context NAME` with a cluster you have."
        )


def ensure_packages(progress: Progress, wanted: Mapping[str, str] = PACKAGES) -> None:
    """Install the Debian packages whose programs are absent.

    Raises:
        MissingToolError: something is absent and this is not Debian, or apt-get failed.
    """
    absent = sorted({package for program, package in wanted.items() if find(program) is None})
    if not absent:
        return
    apt = shutil.which("apt-get")
    if apt is None:
        raise MissingToolError(
            f"These programs' packages are missing: {', '.join(absent)} (Debian's names). "
            "This is not Debian, so install them by hand."
        )
    progress(f"installing Debian packages: {' '.join(absent)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Debian starts daemons on installation; a policy-rc.d that says no keeps them, and their ports, out of the way.
    placed = not _START_POLICY.exists()
    if placed:
        _START_POLICY.write_text("#!/bin/sh\nexit 101\n")
        _START_POLICY.chmod(0o755)
    try:
        run([apt, "update", "-q"], environment=environment, timeout=600)
        command = [apt, "install", "-y", "-q", "--no-install-recommends", *absent]
        run(command, environment=environment, timeout=1800)
    finally:
        if placed:
            _START_POLICY.unlink(missing_ok=True)
