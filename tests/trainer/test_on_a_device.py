"""Model, largest logits and optimizer on a device that is none, for machines without an accelerator."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from device_checks import CHECKS

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """What did not hold, by the name of the check; all are run in one process, which knows the device."""
    paths = os.pathsep.join(str(TESTS.parent / folder) for folder in ("tests", "contract", "trainer_image"))
    run = subprocess.run(
        [sys.executable, "-m", "device_checks"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["run"] == list(CHECKS)
    return found["failed"]


@pytest.mark.parametrize("name", CHECKS)
def test_on_a_device(name: str, failed: dict[str, str]) -> None:
    assert name not in failed, failed[name]
