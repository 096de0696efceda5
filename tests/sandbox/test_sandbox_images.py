"""Images built from a Dockerfile: the pure parts, and one built, loaded and run on the real node."""

from __future__ import annotations

import configparser
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_fixture import Cluster
from trimtab_sandbox import image_build
from trimtab_sandbox.cluster import SandboxInfo
from trimtab_sandbox.containerd import ctr
from trimtab_sandbox.errors import MissingToolError
from trimtab_sandbox.settings import Layout, Options

DOCKERFILE = """
ARG BASE=python:3.12-slim
FROM ${BASE} AS sandboxtest
COPY greeting.txt /opt/greeting.txt
RUN python -m pip --version
USER 65532:65532
ENTRYPOINT ["python", "-c", "import os; print(open('/opt/greeting.txt').read(), os.getuid(), os.listdir('/opt'))"]
"""


def test_only_debian_gives_a_base_image() -> None:
    assert image_build.debian_release('ID=debian\nVERSION_CODENAME=bookworm\nNAME="Debian"\n') == "bookworm"
    with pytest.raises(MissingToolError, match="not Debian"):
        image_build.debian_release("ID=fedora\nVERSION_CODENAME=\n")


def test_the_builds_pip_keeps_this_machines_settings_and_names_its_certificates() -> None:
    rendered = configparser.ConfigParser(interpolation=None)
    rendered.read_string(image_build.render_pip_configuration("[global]\ntimeout = 77\nno-index = 50%\n"))
    assert rendered["global"]["timeout"] == "77"
    assert rendered["global"]["no-index"] == "50%"
    assert rendered["global"]["cert"] == "/etc/ssl/certs/ca-certificates.crt"
    assert "cert = " in image_build.render_pip_configuration("")


def test_the_base_comes_from_this_machines_own_package_sources(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("")
    for name in ("debian.sources", "other.sources.disabled"):
        (tmp_path / "sources.list.d" / name).write_text("")
    names = [path.name for path in image_build.apt_sources(tmp_path)]
    assert sorted(names) == ["debian.sources", "sources.list"]


@pytest.mark.node
@pytest.mark.image
@pytest.mark.timeout(1200)
def test_a_built_image_runs_with_its_own_files_and_without_the_mounts(
    sandbox: SandboxInfo, cluster: Cluster, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "greeting.txt").write_text("hello")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(DOCKERFILE)
    options = replace(Options(), home=sandbox.home, repository=context)
    image = image_build.build("sandboxtest", print, options=options, dockerfile=dockerfile)
    try:
        image_build.load(image, print, options=options)
    finally:
        image_build.forget(image, options=options)
    container = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    spec = {"restartPolicy": "Never", "runtimeClassName": "plain", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sandbox-built"}, "spec": spec}
    try:
        assert cluster.run_to_end(pod).strip() == "hello 65532 ['greeting.txt']"
    finally:
        ctr(Layout(sandbox.home), "images", "rm", image)
