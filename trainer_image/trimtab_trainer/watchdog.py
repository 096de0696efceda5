"""A thread per rank that notices when the main thread stands still, and writes down where."""

import faulthandler
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Final

from trimtab_trainer.errors import StoreError
from trimtab_trainer.telemetry import Vitals

logger = logging.getLogger(__name__)

HELD_DEADLINE_SECONDS: Final = 60.0
"""A held world exchanges a number many times a second, whatever its step time."""


class Watchdog:
    """Writes the stacks of all threads once per standstill, at half of the progress deadline."""

    def __init__(self, vitals: Vitals, deadline: float, write: Callable[[bytes], None]) -> None:
        self._vitals = vitals
        self._deadline = deadline
        self._write = write
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()

    def _run(self) -> None:
        seen, since, written = -1, time.monotonic(), False
        while not self._closing.wait(min(1.0, self._deadline / 10)):
            if self._vitals.progress != seen:
                seen, since, written = self._vitals.progress, time.monotonic(), False
            elif not written and time.monotonic() - since > self._limit() / 2:
                written = True
                self._report(time.monotonic() - since)

    def _limit(self) -> float:
        return min(self._deadline, HELD_DEADLINE_SECONDS) if self._vitals.held else self._deadline

    def _report(self, seconds: float) -> None:
        logger.error("no progress for %.0f s at step %d; writing the stacks", seconds, self._vitals.step)
        try:
            self._write(current_stacks())
        except StoreError as error:
            logger.warning("the stacks could not be stored: %s", error)


def current_stacks() -> bytes:
    """The Python stacks of all threads of this process."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
