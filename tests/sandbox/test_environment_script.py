"""The script behind `make environment`: what it says to a bare machine, and launchers that work from any path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout under a path that shells and printf could trip over."""
    made = tmp_path / "my projects 100%d" / "trim tab"
    (made / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "environment.sh", made / "scripts")
    return made


def run(checkout: Path, cached: Path, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(checkout / "scripts" / "environment.sh"), str(cached), ".venv"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
        timeout=60,
    )


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_launchers_add_this_checkouts_sources_whatever_its_path_holds(checkout: Path, tmp_path: Path) -> None:
    cached = tmp_path / "the cache"
    program(cached / "bin" / "python", 'printf "%s\\n" "$PYTHONPATH" "$@"')
    (cached / ".complete").touch()
    done = run(checkout, cached, os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [str(checkout / ".venv" / "bin" / "trimtab"), "two words", "$x"], capture_output=True, text=True, check=True
    )
    path, *arguments = said.stdout.splitlines()
    assert arguments == ["-m", "trimtab_cli", "two words", "$x"]
    roots = ("contract", "policies", "operator", "trainer_image", "cli", "sandbox")
    assert path.split(":")[: len(roots)] == [str(checkout / root) for root in roots]


BARE = {
    "an old Python": (
        f'case "$*" in *version_info*) exit 1;; esac; exec {sys.executable} "$@"',
        "3.11 or newer is needed",
    ),
    "no venv": (f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"', "apt-get install python3-venv"),
}


@pytest.mark.parametrize(("python", "sentence"), BARE.values(), ids=BARE)
def test_a_bare_machine_is_told_in_one_sentence_what_to_install(
    checkout: Path, tmp_path: Path, python: str, sentence: str
) -> None:
    program(tmp_path / "bin" / "python3.11", python)
    done = run(checkout, tmp_path / "cached", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "cached").exists()


def test_a_machine_without_python_is_told_so(checkout: Path, tmp_path: Path) -> None:
    for name in ("bash", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    done = run(checkout, tmp_path / "cached", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Python 3.11 or newer is missing: apt-get install python3 python3-venv"]
