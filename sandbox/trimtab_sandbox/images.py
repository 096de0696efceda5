"""Images made on the spot, without a registry: the pause image, busybox, and the development image."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab_sandbox.commands import run
from trimtab_sandbox.containerd import PAUSE_IMAGE, WORKING_TREE, ctr
from trimtab_sandbox.packages import require
from trimtab_sandbox.settings import Layout

BUSYBOX_IMAGE = "localhost/busybox:1"
DEVELOPMENT_IMAGE = "localhost/trimtab-dev:1"
NONROOT = 65532

_IMPORT_SECONDS = 1800
"""A trainer's image has six gigabytes, which a slow disk takes its time to unpack."""

_SOURCE_ROOTS = ("contract", "policies", "operator", "trainer_image", "cli", "sandbox")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """One image of a single layer: directories with their mode, symbolic links, small files, copied programs."""

    name: str
    directories: Mapping[str, int]
    links: Mapping[str, str]
    files: Mapping[str, str]
    programs: Mapping[str, str]
    configuration: Mapping[str, object]


def pause_image() -> Image:
    """The process that holds a pod's namespaces."""
    return Image(
        name=PAUSE_IMAGE,
        directories={"bin": 0o755},
        links={},
        files={},
        programs={"bin/catatonit": require("catatonit")},
        configuration={"Entrypoint": ["/bin/catatonit", "-P"]},
    )


def busybox_image() -> Image:
    """A shell and small tools, for looking around."""
    busybox = require("/bin/busybox")
    tools = [name for name in run([busybox, "--list"]).split() if name != "busybox"]
    return Image(
        name=BUSYBOX_IMAGE,
        directories={"bin": 0o755, "tmp": 0o1777, "etc": 0o755},
        links={f"bin/{name}": "busybox" for name in tools},
        files={},
        programs={"bin/busybox": busybox},
        configuration={"Entrypoint": ["/bin/busybox", "sh"], "Env": ["PATH=/bin"]},
    )


def development_image() -> Image:
    """Directories and links only: what runs in it comes from the mounts of the ``mounted`` runtime."""
    users = f"root:x:0:0:root:/root:/bin/sh\nnonroot:x:{NONROOT}:{NONROOT}:nonroot:/home/nonroot:/bin/sh\n"
    search_path = f"{Path(sys.prefix).resolve() / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return Image(
        name=DEVELOPMENT_IMAGE,
        directories={
            "etc": 0o755,
            "home/nonroot": 0o755,
            "opt/trimtab": 0o755,
            "root": 0o755,
            "run": 0o755,
            "tmp": 0o1777,
            "usr": 0o755,
            "var/tmp": 0o1777,
        },
        links={name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
        files={
            "etc/passwd": users,
            "etc/group": f"root:x:0:\nnonroot:x:{NONROOT}:\n",
            "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        },
        programs={},
        configuration={
            "User": f"{NONROOT}:{NONROOT}",
            "WorkingDir": "/",
            "Env": [
                f"PATH={search_path}",
                f"PYTHONPATH={':'.join(f'{WORKING_TREE}/{root}' for root in _SOURCE_ROOTS)}",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
                "TRIMTAB_LAUNCHER=python -m trimtab_trainer.launcher",
            ],
        },
    )


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = _entry(name, tarfile.REGTYPE, 0o644)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory, mode in image.directories.items():
            archive.addfile(_entry(directory, tarfile.DIRTYPE, mode))
        for name, target in image.links.items():
            link = _entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            archive.addfile(link)
        for name, text in image.files.items():
            _add(archive, name, text.encode())
        for name, source in image.programs.items():
            archive.add(os.path.realpath(source), name)
    return buffer.getvalue()


def render_archive(image: Image) -> bytes:
    """The image as a docker-archive (the layout of ``docker save``)."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    machine = platform.machine()
    configuration = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": image.configuration,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [image.name], "Layers": [f"{digest}.tar"]}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, f"{digest}.tar", layer)
        _add(archive, name, configuration)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    return buffer.getvalue()


def load_archive(layout: Layout, archive: Path) -> None:
    """Give containerd the images of a docker-archive."""
    ctr(layout, "images", "import", archive, timeout=_IMPORT_SECONDS)


def load_basic_images(layout: Layout) -> None:
    """Make and load the images that every sandbox has."""
    archive = layout.home / "image.tar"
    for image in (pause_image(), busybox_image(), development_image()):
        archive.write_bytes(render_archive(image))
        load_archive(layout, archive)
    archive.unlink()
