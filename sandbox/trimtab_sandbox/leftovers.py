"""Finding and ending what outlives a sandbox's own processes: shims, containers, mounts, control groups, links.

Everything is told from other programs' things by the state directory: a shim has our containerd's socket among its
arguments, a container's root is an overlay whose upper directory lies in our snapshots, a mount lies under our home.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from trimtab_sandbox.commands import attempt, wait_until
from trimtab_sandbox.errors import CommandFailedError
from trimtab_sandbox.processes import Identity, identify, is_alive, send
from trimtab_sandbox.settings import Layout

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_KUBELET_CGROUP = "kubepods"
_CONTAINER_LOG_LINKS = Path("/var/log/containers")


def _process_ids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _is_shim(pid: int, layout: Layout) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    name = Path(arguments[0]).name
    return name.startswith("containerd-shim") and str(layout.containerd_socket) in arguments


def _is_contained(pid: int, layout: Layout) -> bool:
    try:
        mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return False  # It has ended, or is a zombie, which has no mounts.
    upper = f"upperdir={layout.containerd_root}/"
    return any(line.split()[4] == "/" and upper in line for line in mounts.splitlines())


def container_processes(layout: Layout) -> list[Identity]:
    """The shims of this sandbox's containerd and every process inside its containers."""
    found = [pid for pid in _process_ids() if _is_shim(pid, layout) or _is_contained(pid, layout)]
    return [identity for identity in map(identify, found) if identity is not None]


def kill_containers(layout: Layout) -> None:
    """End every shim and container process, and wait until they are gone."""

    def all_gone() -> bool:
        remaining = container_processes(layout)
        for identity in remaining:
            send(identity, signal.SIGKILL)
        return not any(is_alive(identity) for identity in remaining)

    wait_until("The end of all containers", all_gone)


def mounts(layout: Layout) -> list[Path]:
    """Mount points under the state directory, innermost first."""
    points: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if point.is_relative_to(layout.home) and point != layout.home:
            points.append(point)
    return points[::-1]


def unmount_all(layout: Layout) -> None:
    """Unmount everything under the state directory.

    Raises:
        CommandFailedError: a mount stays. Nothing may be deleted then, since a mount may show files of this machine.
    """
    for point in mounts(layout):
        attempt(["umount", "--lazy", point])
    if remaining := mounts(layout):
        raise CommandFailedError(f"These mounts could not be undone: {', '.join(map(str, remaining))}.")


def remove_cgroups() -> None:
    """Remove the empty control groups that a kubelet leaves behind."""
    tops = [*_CGROUP_ROOT.glob(f"*/{_KUBELET_CGROUP}"), _CGROUP_ROOT / _KUBELET_CGROUP]
    for top in tops:
        for directory, _, _ in os.walk(top, topdown=False):
            try:
                Path(directory).rmdir()
            except OSError:
                break  # Something still lives there, so it is not ours to remove.


def remove_log_links(layout: Layout) -> None:
    """Remove the kubelet's links to logs that are ours."""
    if not _CONTAINER_LOG_LINKS.is_dir():
        return
    for link in _CONTAINER_LOG_LINKS.iterdir():
        if link.is_symlink() and link.readlink().is_relative_to(layout.logs):
            link.unlink()


def remove_cluster_state(layout: Layout) -> None:
    """Remove the cluster's files; Redis's and S3's data, the credentials and the logs of processes stay."""
    directories = ("etcd", "kubelet", "pki", "ipam", "cni", "controller-manager", "scheduler", "processes")
    for name in (*directories, "containerd-root", "containerd-state", "volume-plugins", "log/pods"):
        shutil.rmtree(layout.home / name, ignore_errors=True)
    for pattern in ("*.kubeconfig", "*.sock", "*.sock.ttrpc"):
        for path in layout.home.glob(pattern):
            path.unlink()


def remove_home(layout: Layout) -> None:
    """Remove the whole state directory."""
    shutil.rmtree(layout.home)


def resident_mebibytes(pid: int) -> int:
    """The resident memory of a process in MiB; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20
