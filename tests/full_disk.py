"""A real file system of a few kilobytes. Import `small_disk` into a test module to use it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KILOBYTES = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in which no more than `KILOBYTES` fit; skips with the reason where nothing may be mounted."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={KILOBYTES}k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte of room."""
    with pytest.raises(OSError, match="No space left"):
        _write_on_and_on(folder / "filling")


def _write_on_and_on(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 1024)
