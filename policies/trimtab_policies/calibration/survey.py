"""One log -> what it says of thresholds, if it is a healthy one.

A log is read once, and what is kept does not grow with it.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from trimtab_policies.backtest import Backtest
from trimtab_policies.calibration.logits import LogitEvidence, LogitSurvey
from trimtab_policies.calibration.spikes import METRICS, Counts, FiringCounter, grid_policy
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy


class LogEvidence(msgspec.Struct, frozen=True):
    """What one log says; `problem` says why it is not a healthy one, in a clause that the log's name precedes."""

    name: str
    records: int
    spikes: Mapping[str, Counts]
    logits: LogitEvidence | None
    problem: str = ""


class LogSurvey:
    """Follows one log, point by point."""

    def __init__(self, name: str, guards: Sequence[AcceptedPolicy]) -> None:
        """`guards` are the policies that a healthy log gives no reason to hold the run."""
        self._name = name
        grid = grid_policy()
        self._backtest = Backtest((*guards, grid))
        self._grid = len(grid.spec.rules)
        self._firings = FiringCounter()
        self._logits = LogitSurvey()
        self._records = 0
        self._non_finite = ""

    def take(self, point: LogPoint) -> None:
        """Judge and count the next point."""
        for metric in METRICS:
            value = point.scalars.get(metric)
            if value is not None and not math.isfinite(value) and not self._non_finite:
                self._non_finite = f"is not healthy: {metric} is {value} at step {point.step} (line {point.line})"
        judged = self._backtest.take(point)
        if judged is None:
            return
        self._records += 1
        self._firings.take(judged.verdicts[-self._grid :])
        if point.vectors:
            self._logits.take(point.vectors, point.step)

    def evidence(self) -> LogEvidence:
        """What was found; the log has ended."""
        return LogEvidence(
            name=self._name,
            records=self._records,
            spikes={metric: self._firings.counts(metric) for metric in METRICS},
            logits=self._logits.evidence(),
            problem=self._non_finite or self._held(),
        )

    def _held(self) -> str:
        incidents = self._backtest.report().incidents
        if not incidents:
            return ""
        first = min(incidents, key=lambda incident: incident.position)
        return (
            f"is not healthy: {first.rule} of policy {first.policy} would have called for {first.action.value} at step "
            f"{first.step} (line {first.line}): {first.sentence}"
        )
