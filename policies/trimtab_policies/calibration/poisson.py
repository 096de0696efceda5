"""Bounds on a rate from a count of rare, independent events."""

import math

_BISECTIONS = 100


def upper_bound(events: int, confidence: float) -> float:
    """The largest expected count that a count of `events` does not contradict at `confidence` (one-sided, exact).

    It is the mean of the Poisson distribution whose chance of at most `events` is 1 - confidence (F. Garwood,
    "Fiducial limits for the Poisson distribution", Biometrika 28, 1936); for none -ln(1 - confidence), 3.0 at 95 %.
    """
    least = math.log1p(-confidence)
    if events == 0:
        return -least
    low, high = float(events), events + 10 * math.sqrt(events) + 20
    while _log_chance_of_at_most(events, high) > least:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _log_chance_of_at_most(events, middle) > least:
            low = middle
        else:
            high = middle
    return high


def _log_chance_of_at_most(events: int, mean: float) -> float:
    """The terms fall by count/mean downwards from `events`, so those that matter are summed relative to that one."""
    term, total = 1.0, 1.0
    for count in range(events, 0, -1):
        term *= count / mean
        total += term
        if term < 1e-17 * total:
            break
    return events * math.log(mean) - mean - math.lgamma(events + 1) + math.log(total)
