"""What a backtest of one log came to."""

import msgspec

from trimtab_policies.backtest.curves import Curve
from trimtab_policies.backtest.events import Counts, Event, Incident
from trimtab_policies.backtest.spikes import SpikeStatistics
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import State


class Boundary(msgspec.Struct, frozen=True):
    """Where a run, an attempt or, behind a gap, a stretch begins: at the judged record `position` (from 1)."""

    kind: str
    position: int
    run: int
    attempt: int
    step: int
    line: int


class RuleTally(msgspec.Struct, frozen=True):
    """How often one rule came to each state. `nearest` is the log's metric most like one that never appeared."""

    policy: str
    rule: str
    metric: str | None
    action: Action
    states: dict[State, int]
    nearest: str | None = None

    @property
    def is_blind(self) -> bool:
        """Whether the rule never had anything to judge in this log: its silence means nothing."""
        return not any(self.states[state] for state in (State.HEALTHY, State.PENDING, State.FIRING))


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """One log as judged by some policies together, as if all of them were in mode Enforce.

    `records` were judged, over `steps` steps; `left_out` says how many were not, by reason. `observing` names the
    policies that, as written, would only have recorded. Of `boundaries`, `events` and `incidents` the first ones are
    kept (see `events.MOST_EVENTS`), in the order of the log; `events_left_out` were counted only. `timed` is False
    where records have no time, so that nothing could be said about staleness.
    """

    records: int
    steps: int
    first_step: int
    last_step: int
    runs: int
    attempts: int
    gaps: int
    boundaries: tuple[Boundary, ...]
    left_out: dict[str, int]
    timed: bool
    observing: tuple[str, ...]
    rules: tuple[RuleTally, ...]
    counts: Counts
    events: tuple[Event, ...]
    incidents: tuple[Incident, ...]
    events_left_out: int
    spikes: tuple[SpikeStatistics, ...]
    curves: tuple[Curve, ...] = ()

    @property
    def is_blind(self) -> bool:
        """Whether no rule had anything to judge: the log says nothing about the policies."""
        return all(rule.is_blind for rule in self.rules)

    @property
    def alarms_per_10000_records(self) -> float:
        """Notify and stronger, per 10,000 judged records."""
        return 10_000 * self.counts.alarms / self.records if self.records else 0.0

    @property
    def alarms_per_10000_steps(self) -> float:
        """Notify and stronger, per 10,000 steps."""
        return 10_000 * self.counts.alarms / self.steps if self.steps else 0.0

    def would_have(self, action: Action) -> bool:
        """Whether this action or a stronger one would have been taken."""
        return any(self.counts.of(one) for one in Action if one.severity >= action.severity)
