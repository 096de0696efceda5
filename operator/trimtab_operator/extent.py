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
"""The control is the last this many windows before the first flagged one that are in no skip range."""
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


def control_windows(first_flagged: int, ledger: SkipLedger) -> tuple[int, ...]:
    """The control set for a flagged range, oldest first."""
    chosen: list[int] = []
    window = first_flagged - 1
    while window >= 0 and len(chosen) < CONTROL_WINDOWS:
        if window not in ledger:
            chosen.append(window)
        window -= 1
    return tuple(reversed(chosen))


def find_extent(
    probe: ProbeEvidence,
    *,
    flagged: tuple[int, int],
    before: int,
    after: int,
    sigma: float | None,
    control_limit: float | None,
    shrink: bool,
) -> Extent:
    """Find the windows to skip.

    `sigma` is the rule's own or None; `control_limit` is the loss above which the control's mean says that the
    restored state itself is bad; `shrink` allows flagged windows to be left out (rules on `loss` only), though the
    last bad window is never before the last flagged one.
    """
    control = [loss for _, loss in probe.control]
    finite = [loss for loss in control if loss is not None and math.isfinite(loss)]
    mean = fmean(finite) if finite else math.nan
    std = pstdev(finite) if finite else math.nan
    threshold = mean + (sigma if sigma is not None else DEFAULT_SIGMA) * std
    if len(finite) < MINIMUM_CONTROL:
        threshold = math.inf
    numbers = {"control_mean": mean, "control_std": std, "threshold": threshold}
    if len(finite) < len(control) or (control_limit is not None and finite and mean > control_limit):
        return Extent(
            outcome=ExtentOutcome.CONTROL_BAD,
            first=flagged[0],
            last=flagged[1],
            bad=(),
            message=f"the control windows are bad on the restored state: mean loss {mean:.4f}{_above(control_limit)}, "
            f"{len(control) - len(finite)} of {len(control)} non-finite",
            **numbers,
        )
    bad = tuple(window for window, loss in probe.windows if _is_bad(loss, threshold))
    last_bad, bounded = _last_bad(probe, flagged[1], frozenset(bad))
    first_bad = min((window for window in bad if window >= flagged[0]), default=flagged[0]) if shrink else flagged[0]
    first_bad = min(first_bad, flagged[1])
    inside = tuple(window for window in bad if window <= last_bad)
    message = (
        f"{len(inside)} of {len(probe.windows)} windows measured above {threshold:.4f} "
        f"(control mean {mean:.4f}, std {std:.4f} over {len(finite)})"
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
