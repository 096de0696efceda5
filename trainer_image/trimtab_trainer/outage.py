"""When a thread should say that a service is away: often enough to be found in a log, too seldom to fill it."""

import time
from collections.abc import Callable
from typing import Final

REMIND_SECONDS: Final = 30.0
"""A reason that was said is not said again before."""


class Outage:
    """Takes note of every failure and success of one service; used by one thread.

    A reason is the type of the error that lies beneath, so that a text which differs each time floods no log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._told = False
        self._said: dict[type[BaseException], float] = {}

    @property
    def ongoing(self) -> bool:
        """Whether the last attempt failed."""
        return self._since is not None

    def failed(self, error: BaseException) -> float | None:
        """Note a failure: the seconds since the first in a row if it should be said now, None if it was said lately."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        reason = type(error.__cause__ or error)
        last = self._said.get(reason)
        if last is not None and now - last < REMIND_SECONDS:
            return None
        self._said[reason] = now
        self._told = True
        return now - self._since

    def ended(self) -> bool:
        """Note a success; whether an outage that was spoken of is over."""
        told, self._told, self._since = self._told, False, None
        return told
