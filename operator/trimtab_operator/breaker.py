"""The breaker over all runs: when many of them fail within minutes, it is the platform, and automation waits. Pure.

A rollback or a restart helps a run whose own data or pod was bad. Where a store, a network or a driver fails, all of
them fail together, and rolling back one after the other spends budgets, loses work and hides the cause. So the breaker
trips when enough different runs have failed within one window, and holds until none has failed for a quiet time.

It is a fold of the failures that the journals hold, and owns no clock: an operator that takes over folds the same
failures and comes to the same answer.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

NAMED_RUNS = 5
"""So many of the runs that failed are named."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When the breaker trips, and when it lets go. `enabled=False` also lets go of what is held."""

    enabled: bool = True
    min_runs: int = 3
    """At least so many different runs must have failed within the window."""
    min_share: float = 0.25
    """And at least this share of the runs that are watched."""
    window_seconds: float = 300.0
    quiet_seconds: float = 900.0
    """Without another failure for this long, automation goes on; no shorter than the window."""


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """A run opened an incident or lost its world; `time` in seconds since the epoch, as its journal says."""

    time: float
    run: str


@dataclass(frozen=True, slots=True)
class Trip:
    """Automation is held since `since`, when the last of `runs` failed; `last` is the newest failure of any run."""

    since: float
    last: float
    runs: tuple[str, ...]

    @property
    def id(self) -> str:
        """Names the trip in every journal: the same for each operator that comes to it."""
        return f"breaker-{int(self.since)}"


@dataclass(frozen=True, slots=True)
class Breaker:
    """What all failures up to now amount to. Failures up to `settled` count for no further trip."""

    trip: Trip | None = None
    settled: float = -math.inf

    def after(
        self, failures: Iterable[Failure], *, watched: Collection[str], now: float, settings: BreakerSettings
    ) -> "Breaker":
        """The breaker when `failures` are known, in any order and as often as one likes, and it is `now`.

        `watched` names the runs that could fail now; those that have failed within the window count, too.
        """
        if not settings.enabled:
            return Breaker(settled=now)
        # Clocks differ a little between operators: nothing has failed in the future.
        known = sorted({Failure(min(one.time, now), one.run) for one in failures})
        breaker, seen = self, list[Failure]()
        for failure in known:
            breaker = _after_quiet(breaker, failure.time, settings)
            if failure.time <= breaker.settled:
                continue
            seen.append(failure)
            breaker = _with(breaker, failure, seen, frozenset(watched), settings)
        return _after_quiet(breaker, now, settings)


def _after_quiet(breaker: Breaker, now: float, settings: BreakerSettings) -> Breaker:
    trip = breaker.trip
    return breaker if trip is None or now - trip.last < settings.quiet_seconds else Breaker(settled=trip.last)


def _with(
    breaker: Breaker, failure: Failure, seen: list[Failure], watched: frozenset[str], settings: BreakerSettings
) -> Breaker:
    if breaker.trip is not None:
        return replace(breaker, trip=replace(breaker.trip, last=max(breaker.trip.last, failure.time)))
    since = max(failure.time - settings.window_seconds, breaker.settled)
    failed = {one.run for one in seen if one.time > since}
    if len(failed) < max(settings.min_runs, math.ceil(settings.min_share * len(failed | watched))):
        return breaker
    return replace(breaker, trip=Trip(since=failure.time, last=failure.time, runs=tuple(sorted(failed))))


def explain(trip: Trip, settings: BreakerSettings) -> str:
    """Why automation waits, and for what, in one sentence."""
    shown = ", ".join(trip.runs[:NAMED_RUNS])
    more = f" and {len(trip.runs) - NAMED_RUNS} more" if len(trip.runs) > NAMED_RUNS else ""
    failed = f"{len(trip.runs)} runs failed within {settings.window_seconds:.0f} s ({shown}{more})"
    quiet = f"no rollback and no restart begins until none has failed for {settings.quiet_seconds:.0f} s"
    person = "or a person lets a run go on with `trimtab job resume`"
    return f"{failed}, so the platform is suspected: {quiet}, {person}"
