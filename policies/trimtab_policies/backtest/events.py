"""Firing verdicts, record by record -> events, and the incidents that the operator would have opened.

An event is one rule's firing, from the record at which it first fires to the one at which it no longer breaches. An
incident is what would have held the run: it opens when the decision is Pause or stronger and ends when no rule that
asks for so much is firing any more. A log is a run that nobody remedied: it goes on after a would-be rollback, and an
incident that ended by itself is one that needed none.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from trimtab_policies.backtest.history import Entry
from trimtab_policies.decision import Decision
from trimtab_policies.explanation import explain
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import Reason, State, Verdict

MOST_EVENTS = 1_000
"""So many events and so many incidents of a log are kept; all are counted."""


class Ending(StrEnum):
    """How an event or an incident ended."""

    RECOVERED = "Recovered"
    LEVEL_SHIFT = "LevelShift"
    RESUMED = "Resumed"
    """The log itself went back to an earlier step, or to a new run."""
    END_OF_LOG = "EndOfLog"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's firing.

    `step` is where it fired, `first_bad_step` where its row of breaches began, `last_step` the last at which it fired.
    `position` and `last_position` are those records' numbers among the judged ones of the whole log, from 1; `records`
    of them fired. `ended_step` is the step of the record that ended it; None where there is none.
    """

    policy: str
    rule: str
    action: Action
    metric: str | None
    run: int
    attempt: int
    step: int
    line: int
    position: int
    last_position: int
    first_bad_step: int
    last_step: int
    records: int
    observed: float | None
    threshold: float | None
    sentence: str
    ending: Ending = Ending.END_OF_LOG
    ended_step: int | None = None


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """What would have held the run, by whom and until when.

    `restore_at_most` is, for a rollback, the newest step whose checkpoint would have been considered. `records_after`
    is how far the log went on afterwards in the same run, unremedied.
    """

    policy: str
    rule: str
    action: Action
    run: int
    attempt: int
    step: int
    line: int
    position: int
    first_bad_step: int
    restore_at_most: int | None
    sentence: str
    records_after: int = 0
    ending: Ending = Ending.END_OF_LOG
    ended_step: int | None = None


class Counts(msgspec.Struct, frozen=True):
    """How often each action would have been taken: Record and Notify once an event, the others once an incident."""

    record: int = 0
    notify: int = 0
    pause: int = 0
    rollback: int = 0
    stop: int = 0

    @property
    def alarms(self) -> int:
        """All that a person would have heard of: Notify and stronger."""
        return self.notify + self.pause + self.rollback + self.stop

    def of(self, action: Action) -> int:
        """The count of one action."""
        return getattr(self, action.value.lower())


class _Open:
    """An event that has not ended."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.last_step = event.step
        self.last_position = event.position
        self.records = 1

    def ended(self, ending: Ending, step: int | None) -> Event:
        return msgspec.structs.replace(
            self.event,
            ending=ending,
            ended_step=step,
            last_step=self.last_step,
            last_position=self.last_position,
            records=self.records,
        )


class EventLog:
    """Follows the verdicts on a log's records and keeps what came of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.incidents: list[Incident] = []
        self.left_out = 0
        self._open: dict[tuple[str, str], _Open] = {}
        self._incident: Incident | None = None
        self._unfinished: list[Incident] = []
        self._counts = dict.fromkeys(Action, 0)
        self._last_ending = Ending.RECOVERED

    @property
    def counts(self) -> Counts:
        """What was counted up to now."""
        return Counts(**{action.value.lower(): count for action, count in self._counts.items()})

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is firing, so that verdicts of which none fires change nothing."""
        return not self._open

    def note(self, verdicts: Sequence[Verdict], decision: Decision, entry: Entry, position: int) -> None:
        """Take the verdicts on a record and what they come to."""
        for verdict in verdicts:
            key = verdict.policy.name, verdict.rule.name
            if verdict.finding.state is State.FIRING:
                self._fires(key, verdict, entry, position)
            elif key in self._open and not _undecided(verdict):
                ending = Ending.LEVEL_SHIFT if verdict.reason is Reason.LEVEL_SHIFT else Ending.RECOVERED
                self._end(key, ending, verdict.step)
        self._decide(decision, entry, position)

    def interrupt(self, ending: Ending, step: int | None, position: int, *, run_ends: bool) -> None:
        """The log leaves the stretch of training that it was in, behind record `position`."""
        for key in tuple(self._open):
            self._end(key, ending, step)
        self._end_incident(ending, step)
        if run_ends:
            self._finish_incidents(position)

    def _fires(self, key: tuple[str, str], verdict: Verdict, entry: Entry, position: int) -> None:
        known = self._open.get(key)
        if known is not None:
            known.last_step = verdict.step
            known.last_position = position
            known.records += 1
            return
        self._open[key] = _Open(_event(verdict, entry, position))
        if verdict.action.severity < Action.PAUSE.severity:
            self._counts[verdict.action] += 1

    def _end(self, key: tuple[str, str], ending: Ending, step: int | None) -> None:
        event = self._open.pop(key).ended(ending, step)
        if _holds(event):
            self._last_ending = ending
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self.left_out += 1

    def _decide(self, decision: Decision, entry: Entry, position: int) -> None:
        current, action, winner = self._incident, decision.action, decision.winner
        if action is not None and winner is not None and action.severity >= Action.PAUSE.severity:
            if current is None:
                self._incident = _incident(winner, entry, position)
                self._counts[action] += 1
            elif action.severity > current.action.severity:
                upgraded = _incident(winner, entry, position)
                self._incident = upgraded
                self._counts[current.action] -= 1
                self._counts[action] += 1
        elif current is not None and not any(_holds(one.event) for one in self._open.values()):
            self._end_incident(self._last_ending, entry.record.step)

    def _end_incident(self, ending: Ending, step: int | None) -> None:
        if self._incident is None:
            return
        ended = msgspec.structs.replace(self._incident, ending=ending, ended_step=step)
        self._incident = None
        if len(self.incidents) + len(self._unfinished) < MOST_EVENTS:
            self._unfinished.append(ended)
        else:
            self.left_out += 1

    def _finish_incidents(self, position: int) -> None:
        for one in self._unfinished:
            self.incidents.append(msgspec.structs.replace(one, records_after=position - one.position))
        self._unfinished.clear()


def _holds(event: Event) -> bool:
    return event.action.severity >= Action.PAUSE.severity


def _undecided(verdict: Verdict) -> bool:
    """Whether a rule that fired has neither breached enough again nor recovered: a value is missing, or it breaches."""
    return verdict.state in {State.NO_DATA, State.ERROR} or verdict.reason is Reason.BREACHING


def _event(verdict: Verdict, entry: Entry, position: int) -> Event:
    return Event(
        policy=verdict.policy.name,
        rule=verdict.rule.name,
        action=verdict.action,
        metric=verdict.metric,
        run=entry.run,
        attempt=entry.attempt,
        step=verdict.step,
        line=entry.line,
        position=position,
        last_position=position,
        first_bad_step=_first_bad(verdict),
        last_step=verdict.step,
        records=1,
        observed=verdict.observed,
        threshold=verdict.threshold,
        sentence=explain(verdict),
    )


def _incident(verdict: Verdict, entry: Entry, position: int) -> Incident:
    first_bad = _first_bad(verdict)
    target = max(0, first_bad - verdict.policy.spec.remediation.margin)
    return Incident(
        policy=verdict.policy.name,
        rule=verdict.rule.name,
        action=verdict.action,
        run=entry.run,
        attempt=entry.attempt,
        step=verdict.step,
        line=entry.line,
        position=position,
        first_bad_step=first_bad,
        restore_at_most=target if verdict.action is Action.ROLLBACK else None,
        sentence=explain(verdict),
    )


def _first_bad(verdict: Verdict) -> int:
    return verdict.step if verdict.first_bad_step is None else verdict.first_bad_step
