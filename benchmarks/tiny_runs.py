"""The tests' tiny job with many damaged stretches, so that one job has many incidents."""

import time
from pathlib import Path
from typing import Any

from training_jobs import WINDOWS, Namespace, prepare_data, training_job

FIRST_DAMAGE = 130
"""The rule is silent up to step 100 and its baseline needs 50 records."""

STRETCH = 4
"""Damaged windows of one stretch; the rule fires at the third."""

Json = dict[str, Any]


def damaged_data(stretches: int, spacing: int, seed: int = 0) -> Path:
    """A data file with that many stretches of noise, `spacing` windows apart."""
    starts = range(FIRST_DAMAGE, FIRST_DAMAGE + stretches * spacing, spacing)
    if starts.stop > WINDOWS:
        message = f"{stretches} stretches {spacing} windows apart do not fit into {WINDOWS} windows"
        raise SystemExit(message)
    return prepare_data(damage=[(start, start + STRETCH - 1) for start in starts], seed=seed)


def incident_job(name: str, data: Path, stretches: int, spacing: int) -> Json:
    """A job that meets all its stretches; its budget counts the rollbacks of the last seconds only."""
    steps = FIRST_DAMAGE + stretches * (spacing - STRETCH)
    budget = {"maxRollbacks": 8, "maxRestarts": 1000, "window": "10s"}
    return training_job(name, data, steps=steps, budget=budget)


def wait_for_completion(namespace: Namespace, jobs: tuple[str, ...], seconds: float) -> None:
    """Wait until the jobs are complete, or for so many seconds: what happened by then is measured."""
    end = time.monotonic() + seconds
    while any(namespace.status(job).get("phase") != "Completed" for job in jobs):
        if time.monotonic() > end:
            print(f"not complete after {seconds:.0f} s; what happened by then counts")
            return
        time.sleep(1)
