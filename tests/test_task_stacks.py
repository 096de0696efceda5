"""A test that hangs tells where every asyncio task waits, whatever holds it: a body, a fixture, a task beside them."""

import subprocess
import sys
from pathlib import Path

HANGS = """
import asyncio

import pytest


@pytest.fixture
async def served():
    task = asyncio.create_task(serve(), name="the-server")
    yield
    await asyncio.gather(task)


async def serve():
    await never()


async def never():
    await asyncio.Event().wait()


async def test_it(served):
    pass
"""


def test_a_fixture_that_never_ends_is_shown_with_what_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text("from task_stacks import pytest_timeout_set_timer\n")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nasyncio_mode = auto\ntimeout = 1\npythonpath = {Path(__file__).parent}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert "1 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr
    tasks = {block.split()[0]: block for block in ended.stdout.split("asyncio task ")[1:]}
    server = tasks.pop("the-server")
    assert 0 < server.index("await never()") < server.index("await asyncio.Event().wait()")
    (fixture,) = tasks.values()
    assert "in served" in fixture
    assert "await asyncio.gather(task)" in fixture
