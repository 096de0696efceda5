"""Which windows are bad: from forward-only losses measured on the restored state. Pure.

When a rule fires after three bad windows nobody knows how many more there are, so the trainer measures the coming
windows and a fixed control set, and this module finds the range to skip.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, pstdev

from trimtab_contract.data_position import SkipLedger
from trimtab_contract.evidence import ProbeEvidence

CONTROL_WINDOWS = 32
"""The control is the last this many windows before the first flagged one of which nothing bad is known."""
MINIMUM_CONTROL = 8
"""With fewer control windows only a non-finite loss counts as bad."""
HEALTHY_RUN = 8
"""The damage ends where this many windows in a row beyond the last flagged one are healthy."""
DEFAULT_SIGMA = 4.0
LARGEST_LOSS = 3.4028235e38
"""A loss is measured in 32 bits; sums and squares of what is no larger fit in 64."""


class ExtentOutcome(StrEnum):
    """What the probe says."""

    FOUND = "Found"
    UNBOUNDED = "Unbounded"
    CONTROL_BAD = "ControlBad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The range to skip (inclusive windows), with the numbers it rests on."""

    outcome: ExtentOutcome
    first: int
    last: int
    bad: tuple[int, ...]
    control_mean: float
    control_std: float
    threshold: float
    message: str


def control_windows(first_flagged: int, doubtful: SkipLedger) -> tuple[int, ...]:
    """The control set for a flagged range, oldest first; `doubtful` are the windows that are no measure of others."""
    chosen: list[int] = []
    window = first_flagged - 1
    while window >= 0 and len(chosen) < CONTROL_WINDOWS:
        if window not in doubtful:
            chosen.append(window)
        window -= 1
    return tuple(reversed(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Losses of the control windows on one state.

    Those of the flagged windows and of what follows are bad above `threshold`; `limit` is what the mean was held
    against, None where only a non-finite loss is bad.
    """

    count: int
    finite: int
    mean: float
    std: float
    threshold: float
    limit: float | None
    bad: bool


def measure_control(
    probe: ProbeEvidence, *, sigma: float | None, limit: float | None, level: float | None = None
) -> Control:
    """Whether the state that was measured is bad itself.

    `limit` is the loss at which the rule would fire. It belongs to the step at which the rule fired: a run whose loss
    still falls had a higher one, in good health, at the step that is restored. `level` is the lowest loss that the run
    is known to have had by then; a mean within sigma deviations of it is no sign of damage, and one above both is.
    """
    control = [loss for _, loss in probe.control]
    finite = [loss for loss in control if loss is not None and math.isfinite(loss)]
    mean = fmean(finite) if finite else math.nan
    std = pstdev(finite) if finite else math.nan
    width = (sigma if sigma is not None else DEFAULT_SIGMA) * std
    if limit is not None and level is not None and finite:
        limit = max(limit, level + width)
    return Control(
        count=len(control),
        finite=len(finite),
        mean=mean,
        std=std,
        threshold=mean + width if len(finite) >= MINIMUM_CONTROL else math.inf,
        limit=limit,
        bad=len(finite) < len(control) or (limit is not None and bool(finite) and mean > limit),
    )


def find_extent(
    probe: ProbeEvidence,
    *,
    flagged: tuple[int, int],
    before: int,
    after: int,
    sigma: float | None,
    control_limit: float | None,
    shrink: bool,
    level: float | None = None,
) -> Extent:
    """Find the windows to skip.

    `sigma` is the rule's own or None; `control_limit` is the loss at which the rule would fire, and `level` the lowest
    that the run is known to have had at the step restored (`measure_control`); `shrink` allows flagged windows to be
    left out (rules on `loss` only), though the last bad window is never before the last flagged one.
    """
    control = measure_control(probe, sigma=sigma, limit=control_limit, level=level)
    threshold = control.threshold
    numbers = {"control_mean": control.mean, "control_std": control.std, "threshold": threshold}
    if control.bad:
        return Extent(
            outcome=ExtentOutcome.CONTROL_BAD,
            first=flagged[0],
            last=flagged[1],
            bad=(),
            message=f"the control windows are bad on the restored state: mean loss {control.mean:.4f}"
            f"{_above(control.limit)}, {control.count - control.finite} of {control.count} non-finite",
            **numbers,
        )
    bad = tuple(window for window, loss in probe.windows if _is_bad(loss, threshold))
    last_bad, bounded = _last_bad(probe, flagged[1], frozenset(bad))
    first_bad = min((window for window in bad if window >= flagged[0]), default=flagged[0]) if shrink else flagged[0]
    first_bad = min(first_bad, flagged[1])
    inside = tuple(window for window in bad if window <= last_bad)
    message = (
        f"{len(inside)} of {len(probe.windows)} windows measured above {threshold:.4f} "
        f"(control mean {control.mean:.4f}, std {control.std:.4f} over {control.finite})"
    )
    if not bounded:
        message += f"; no {HEALTHY_RUN} healthy windows in a row behind window {flagged[1]} were found"
    return Extent(
        outcome=ExtentOutcome.FOUND if bounded else ExtentOutcome.UNBOUNDED,
        first=max(0, first_bad - before),
        last=last_bad + after,
        bad=inside,
        message=message,
        **numbers,
    )


def _above(limit: float | None) -> str:
    return "" if limit is None else f" against a limit of {limit:.4f}"


def _is_bad(loss: float | None, threshold: float) -> bool:
    return loss is None or not math.isfinite(loss) or loss > threshold


def _last_bad(probe: ProbeEvidence, last_flagged: int, bad: frozenset[int]) -> tuple[int, bool]:
    """The last bad window, at least the last flagged one, and whether enough healthy windows follow it."""
    last_bad, healthy = last_flagged, 0
    for window, _ in probe.windows:
        if window <= last_flagged:
            continue
        if window in bad:
            last_bad, healthy = window, 0
        else:
            healthy += 1
            if healthy >= HEALTHY_RUN:
                return last_bad, True
    return last_bad, False
