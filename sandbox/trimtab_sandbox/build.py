"""Building ``kube`` and ``helm`` from the Go module once, and keeping them outside the checkout."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from trimtab_sandbox.commands import Progress, run
from trimtab_sandbox.errors import MissingToolError

KUBERNETES_VERSION = "v1.35.4"
_MODULE_FILES = ("dns.go", "go.mod", "go.sum", "main.go", "tools.go")
_VERSION_PACKAGE = "k8s.io/component-base/version"
_FIRST_USABLE_GO = 21


@dataclass(frozen=True)
class Binaries:
    """The two programs that the module yields."""

    kube: Path
    helm: Path


def module_digest(module: Path) -> str:
    """SHA-256 over the names and contents of the module's files, in hexadecimal."""
    digest = hashlib.sha256()
    for name in _MODULE_FILES:
        content = (module / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def ensure_binaries(repository: Path, cache: Path, progress: Progress) -> Binaries:
    """Return the two programs, building what the cache lacks (some minutes the first time).

    Raises:
        MissingToolError: they must be built and there is no Go.
        CommandFailedError: the Go compiler refused.
    """
    module = repository / "sandbox" / "kube"
    directory = cache / f"kube-{module_digest(module)}"
    binaries = Binaries(directory / "kube", directory / "helm")
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    version = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    stamps = " ".join(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in version.items())
    _ensure(binaries.kube, module, ".", f"-s -w {stamps}", progress)
    _ensure(binaries.helm, module, "helm.sh/helm/v3/cmd/helm", "-s -w", progress)
    return binaries


def _require_go() -> str:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise MissingToolError(
            "Go is missing, and the sandbox's Kubernetes is built from source once: install Go 1.25 or later."
        )
    # Earlier ones cannot even read the module file; this one and later ones fetch what it asks for.
    version = run([go, "env", "GOVERSION"]).strip()
    release = re.match(r"go1\.(\d+)", version)
    if release is not None and int(release[1]) < _FIRST_USABLE_GO:
        raise MissingToolError(f"{go} is {version}, which is too old to build Kubernetes: install Go 1.25 or later.")
    return go


def _ensure(target: Path, module: Path, package: str, linker_flags: str, progress: Progress) -> None:
    if target.exists():
        return
    go = _require_go()
    progress(f"building {target.name} (once; several minutes the first time)")
    started = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        run(
            [go, "build", "-trimpath", "-ldflags", linker_flags, "-o", temporary, package],
            directory=module,
            environment={**os.environ, "CGO_ENABLED": "0"},
            timeout=3600,
        )
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    progress(f"built {target.name} in {time.monotonic() - started:.0f} s")
