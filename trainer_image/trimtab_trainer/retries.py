"""Repeating what a store that is away could not do."""

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from trimtab_trainer.errors import StoreError, StoreRefused, StoreUnavailable

RETRY_FIRST_SECONDS = 0.2
RETRY_LAST_SECONDS = 5.0

Result = TypeVar("Result")


def retried(
    operation: Callable[[], Result],
    deadline: float,
    stopped: threading.Event,
    on_wait: Callable[[], None] | None = None,
) -> Result:
    """Repeat an operation on the object store until it succeeds, with growing pauses of random length.

    Raises the last StoreUnavailable or StoreRefused at the deadline (a time of `time.monotonic`) or when stopped.
    Refusals are repeated too: they end when somebody mends credentials or bucket. ObjectMissing is raised at once.
    """
    pause = RETRY_FIRST_SECONDS
    while True:
        try:
            return operation()
        except (StoreUnavailable, StoreRefused) as error:
            last: StoreError = error
        if on_wait is not None:
            on_wait()
        length = pause * random.uniform(0.5, 1.0)  # noqa: S311 spreads retries, decides nothing
        if time.monotonic() + length > deadline or stopped.wait(length):
            raise last
        pause = min(pause * 2, RETRY_LAST_SECONDS)
