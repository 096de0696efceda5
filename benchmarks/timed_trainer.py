"""The trainer with stopwatches around what its main thread does for the outside; the product itself is unchanged.

Runs as `python -m benchmarks.timed_trainer` in the place of `python -m trimtab_trainer`. When training ends, each rank
leaves the seconds of every call, by name, in its folder for temporary files.
"""

import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from trimtab_trainer import __main__ as program
from trimtab_trainer import loop, session
from trimtab_trainer.collectives import World
from trimtab_trainer.data import BatchLog, Windows
from trimtab_trainer.runtime import Runtime
from trimtab_trainer.session import Session
from trimtab_trainer.telemetry import Reporter

TIMES: dict[str, list[float]] = {}
"""Seconds of every call on the main thread, in order."""

PROCESSOR: dict[str, list[float]] = {}
"""The main thread's processor seconds of the same calls."""

BOUNDARIES: list[float] = []
"""When each step was reported."""

PROCESSOR_BOUNDARIES: list[float] = []
"""The main thread's processor seconds until then."""

COUNTED: dict[str, list[int]] = {}
"""How many steps had been reported when each call began."""


def timed(name: str, owner: Any, attribute: str) -> None:
    """Put a stopwatch around a function or method."""
    original: Callable[..., Any] = getattr(owner, attribute)
    times, processor = TIMES.setdefault(name, []), PROCESSOR.setdefault(name, [])
    counted = COUNTED.setdefault(name, [])

    @functools.wraps(original)
    def measured(*arguments: Any, **keywords: Any) -> Any:
        begun, spent = time.perf_counter(), time.thread_time()
        try:
            return original(*arguments, **keywords)
        finally:
            times.append(time.perf_counter() - begun)
            processor.append(time.thread_time() - spent)
            counted.append(len(BOUNDARIES))

    setattr(owner, attribute, measured)


def thread_seconds() -> Mapping[str, float]:
    """Processor seconds of each of this process's threads so far."""
    seconds: dict[str, float] = {}
    for thread in threading.enumerate():
        spent = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
        seconds[thread.name] = seconds.get(thread.name, 0.0) + int(spent) / 1e9
    return seconds


def install() -> None:
    """Put the stopwatches in."""
    timed("scalars", loop, "scalars")
    timed("vectors", loop, "vectors")
    timed("report", Session, "report")
    timed("encode", Reporter, "record")
    timed("events", Runtime, "collect_checkpoint_events")
    timed("log", BatchLog, "append")
    timed("digest", Windows, "digest")
    timed("gate", Session, "gate")
    timed("agree", World, "agree")
    timed("save", Session, "checkpoint")
    timed("told", Runtime, "step_computed")
    timed("replicas", session, "compare_replicas")
    report = Session.report

    @functools.wraps(report)
    def marked(self: Session, scalars: Mapping[str, float], vectors: Mapping[str, Tensor]) -> None:
        report(self, scalars, vectors)
        BOUNDARIES.append(time.perf_counter())
        PROCESSOR_BOUNDARIES.append(time.thread_time())

    Session.report = marked


def main() -> None:
    """Run the trainer; what was measured is written when its loop ends, before the process does."""
    install()
    train = program.train

    def train_and_tell(*arguments: Any) -> None:
        try:
            train(*arguments)
        finally:
            told = {
                "times": TIMES,
                "processor": PROCESSOR,
                "counted": COUNTED,
                "boundaries": BOUNDARIES,
                "processor_boundaries": PROCESSOR_BOUNDARIES,
                "threads": thread_seconds(),
            }
            path = Path(tempfile.gettempdir()) / f"rank-{os.environ['RANK']}.json"
            path.write_text(json.dumps(told))

    program.train = train_and_tell
    program.main()


if __name__ == "__main__":
    main()
