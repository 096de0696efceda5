"""Building images from the repository's Dockerfile without a registry: mmdebstrap makes the base, buildah the rest."""

from __future__ import annotations

import configparser
import hashlib
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab_sandbox.commands import Progress, run
from trimtab_sandbox.errors import MissingToolError
from trimtab_sandbox.images import load_archive
from trimtab_sandbox.packages import IMAGE_PACKAGES, check_machine, ensure_packages, require
from trimtab_sandbox.settings import Layout, Options

_BASE_IMAGE = "localhost/trimtab-base:1"
_BASE_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_CONFIGURATION = Path("/etc/pip.conf")
_APT_SOURCES = Path("/etc/apt")
_BUILD_SECONDS = 3600
_MAX_UNNAMED_LAYERS = 100
"""Every change of the sources leaves layers that no build will use again; beyond this they are all made anew."""

# The Dockerfile is written for images where `python` and `pip` stand alone; Debian has other names and a lock.
_CUSTOMISE = (
    'ln -sf /usr/bin/python3 "$1/usr/local/bin/python"',
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    'rm -rf "$1"/usr/share/doc "$1"/usr/share/man "$1"/usr/share/locale "$1"/var/lib/apt/lists',
)


@dataclass(frozen=True)
class Builder:
    """buildah with a store of its own in the cache, so that no other program's images are touched."""

    cache: Path

    @property
    def store(self) -> Path:
        """Where the layers are kept between builds."""
        return self.cache / "buildah"

    def run(self, *arguments: str | Path) -> str:
        """Run one buildah command.

        Raises:
            CommandFailedError: it ended with an error.
        """
        where = ("--root", self.store, "--runroot", "/run/trimtab-sandbox/buildah", "--storage-driver", "overlay")
        return run([require("buildah"), *where, *arguments], timeout=_BUILD_SECONDS)

    def has(self, image: str) -> bool:
        """Whether the store holds an image of this name."""
        return image in self.run("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def prune(self, most_unnamed: int = 0) -> None:
        """Forget every layer that no named image is made of, if there are more than so many unnamed ones."""
        names = self.run("images", "--all", "--format", "{{.Name}}").split()
        if names.count("<none>") > most_unnamed:
            self.run("rmi", "--prune", "--force")


def apt_sources(directory: Path = _APT_SOURCES) -> tuple[Path, ...]:
    """This machine's own package sources, which are known to be reachable from here."""
    found = [directory / "sources.list", *(directory / "sources.list.d").glob("*.sources")]
    return tuple(sorted(path for path in found if path.is_file()))


def debian_release(text: str) -> str:
    """The code name in an ``os-release`` file.

    Raises:
        MissingToolError: this is not Debian, so mmdebstrap has nothing to start from.
    """
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if values.get("ID", "").strip('"') != "debian" or "VERSION_CODENAME" not in values:
        raise MissingToolError(
            "The base image is made from this machine's Debian, and this is not Debian: build the Dockerfile "
            "with your own container engine instead."
        )
    return values["VERSION_CODENAME"].strip('"')


def render_pip_configuration(existing: str) -> str:
    """This machine's pip configuration with its certificates named, for use during a build."""
    configuration = configparser.ConfigParser(interpolation=None)
    configuration.read_string(existing)
    if not configuration.has_section("global"):
        configuration.add_section("global")
    configuration["global"]["cert"] = str(_CERTIFICATES)
    rendered = io.StringIO()
    configuration.write(rendered)
    return rendered.getvalue()


def ensure_base(builder: Builder, progress: Progress) -> str:
    """Return the name of the base image: a small Debian with Python, made once and cached.

    Raises:
        SandboxError: one of its kinds, with what to do.
    """
    release = debian_release(Path("/etc/os-release").read_text())
    recipe = "\n".join((release, *_BASE_PACKAGES, *_CUSTOMISE))
    archive = builder.cache / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar"
    if not archive.exists():
        progress("making the base image with mmdebstrap (once; a minute or two)")
        archive.parent.mkdir(parents=True, exist_ok=True)
        temporary = archive.with_name(f"new-{archive.name}")
        hooks = [f"--customize-hook={hook}" for hook in _CUSTOMISE]
        packages = f"--include={','.join(_BASE_PACKAGES)}"
        sources = apt_sources()
        command = [require("mmdebstrap"), "--mode=root", "--variant=minbase", packages, *hooks, release, temporary]
        run([*command, *sources], timeout=_BUILD_SECONDS)
        temporary.replace(archive)
    elif builder.has(_BASE_IMAGE):
        return _BASE_IMAGE
    container = builder.run("from", "scratch").strip()
    try:
        builder.run("add", container, archive, "/")
        search_path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        builder.run("config", "--env", search_path, container)
        builder.run("commit", container, _BASE_IMAGE)
    finally:
        builder.run("rm", container)
    return _BASE_IMAGE


def image_name(target: str) -> str:
    """The name of the image that a target of the Dockerfile becomes."""
    return f"localhost/trimtab-{target}:1"


def build(
    target: str,
    progress: Progress,
    *,
    options: Options | None = None,
    dockerfile: Path | None = None,
    arguments: Mapping[str, str] | None = None,
) -> str:
    """Build one target of the repository's Dockerfile and return the image's name.

    The build uses this machine's network, certificates and pip configuration; none of them stays in the image.
    Layers are cached, so that an unchanged target takes seconds.

    Raises:
        SandboxError: one of its kinds, with what to do.
    """
    check_machine()
    ensure_packages(progress, IMAGE_PACKAGES)
    options = options or Options()
    builder = Builder(options.cache)
    builder.prune(_MAX_UNNAMED_LAYERS)
    base = ensure_base(builder, progress)
    progress(f"building the {target} image")
    name = image_name(target)
    existing = _PIP_CONFIGURATION.read_text() if _PIP_CONFIGURATION.exists() else ""
    pip = options.cache / "pip-build.conf"
    pip.write_text(render_pip_configuration(existing))
    mounts = [f"--volume={pip}:{_PIP_CONFIGURATION}:ro", f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"]
    build_arguments = [f"--build-arg={key}={value}" for key, value in {"BASE": base, **(arguments or {})}.items()]
    builder.run(
        "build",
        "--isolation=chroot",
        "--network=host",
        "--layers",
        f"--target={target}",
        f"--file={dockerfile or options.repository / 'Dockerfile'}",
        f"--tag={name}",
        *mounts,
        *build_arguments,
        options.repository,
    )
    return name


def load(image: str, progress: Progress, *, options: Options | None = None) -> None:
    """Give a built image to the sandbox's containerd.

    Raises:
        CommandFailedError: there is no such image, or containerd refused it.
    """
    options = options or Options()
    progress(f"loading {image}")
    layout = Layout(options.home)
    archive = layout.home / "built-image.tar"
    archive.unlink(missing_ok=True)
    try:
        Builder(options.cache).run("push", image, f"docker-archive:{archive}:{image}")
        load_archive(layout, archive)
    finally:
        archive.unlink(missing_ok=True)


def forget(image: str, *, options: Options | None = None) -> None:
    """Remove a built image from the build store, and every layer it alone was made of; the node keeps what it has."""
    builder = Builder((options or Options()).cache)
    if builder.has(image):
        builder.run("rmi", "--force", image)
    builder.prune()


def remove_store(cache: Path) -> None:
    """Remove the whole build store and every cached base archive."""
    shutil.rmtree(cache / "buildah", ignore_errors=True)
    for archive in cache.glob("base-*.tar"):
        archive.unlink()
