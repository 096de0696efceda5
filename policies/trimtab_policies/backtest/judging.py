"""A log's points -> a LogReport, by the same engine, in the same order and with the same decisions as the operator's.

A log is read once, and what is kept does not grow with it. Records' own times are the clock: `stale` and `onNoData` are
judged as of a record's time before it is taken, so that a silence is seen, and again behind it. In a log without times
they stay NoData. Metrics are judged as the log has them and none is made up: a log of another program has no
`nonfinite`, so a NaN in its loss is found by rules that look at `loss` (any detector, `nonFinite` at once).
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from trimtab_policies.absence import AbsenceWatch
from trimtab_policies.backtest.curves import CurveRecorder
from trimtab_policies.backtest.events import MOST_EVENTS, Ending, EventLog
from trimtab_policies.backtest.history import Arrival, Beginning, Entry, LeftOut, LogHistory
from trimtab_policies.backtest.report import Boundary, LogReport, RuleTally
from trimtab_policies.backtest.spikes import SpikeSurvey
from trimtab_policies.decision import decide
from trimtab_policies.evaluation import Engine
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy, Mode, enforced
from trimtab_policies.reach import retention
from trimtab_policies.verdicts import Reason, State, Verdict

SURVEYED = "loss"
_OF_TIME = frozenset({Reason.STALE, Reason.ABSENT_TOO_LONG})
_FIRING = State.FIRING
"""To look an enum's member up in its class is a call in Python 3.11, and this one is wanted for every verdict."""
_ANEW = frozenset({Beginning.RUN, Beginning.ATTEMPT})


class Judged(msgspec.Struct, frozen=True):
    """One record and the verdicts on it, in the order of policies and rules."""

    entry: Entry
    verdicts: tuple[Verdict, ...]


class Backtest:
    """Judges one log, point by point."""

    def __init__(self, policies: Sequence[AcceptedPolicy], *, curves: bool = False) -> None:
        """`policies` judge together, as on one job; `curves` are kept for drawing."""
        self._observing = tuple(policy.name for policy in policies if policy.mode is Mode.OBSERVE)
        self._policies = tuple(enforced(policy) for policy in policies)
        rules = [(policy, rule) for policy in self._policies for rule in policy.spec.rules]
        self._rules = rules
        self._metrics = frozenset(rule.metric for _, rule in rules if rule.metric is not None)
        self._history = LogHistory(self._metrics, retention(self._policies))
        self._watches_time = any(AbsenceWatch.wanted(rule) for _, rule in rules)
        self._engine: Engine | None = None
        self._last: Entry | None = None
        self._records = self._steps = self._first_step = 0
        self._tallies = [_Tally() for _ in rules]
        self._left_out = dict.fromkeys(LeftOut, 0)
        self._boundaries: list[Boundary] = []
        self._gaps = 0
        self._timed = True
        self._seen: set[str] = set()
        self._events = EventLog()
        spiked = (rule.metric for _, rule in rules if rule.spike is not None and rule.metric and rule.reduce is None)
        self._surveys = [SpikeSurvey(metric) for metric in dict.fromkeys((SURVEYED, *spiked))]
        self._curves = [CurveRecorder() for _ in rules] if curves else []

    def take(self, point: LogPoint) -> Judged | None:
        """Judge the next point of the log; None where it is not judged (see `history`)."""
        arrival = self._history.take(point)
        if isinstance(arrival, LeftOut):
            self._left_out[arrival] += 1
            return None
        entry = arrival.entry
        self._records += 1
        self._timed = self._timed and point.time is not None
        if not (self._seen.issuperset(point.scalars) and self._seen.issuperset(point.vectors)):
            self._seen.update(point.scalars, point.vectors)
        engine = self._prepared(arrival)
        verdicts = engine.judge(entry.record, self._policies, ordinal=entry.ordinal, now=entry.time)
        self._note(verdicts, entry)
        for survey in self._surveys:
            value = point.scalars.get(survey.metric)
            if value is not None:
                survey.take(value, point.step, entry.run)
        self._last = entry
        return Judged(entry, verdicts)

    def report(self) -> LogReport:
        """The result; the log has ended."""
        self._events.interrupt(Ending.END_OF_LOG, None, self._records, run_ends=True)
        events = sorted(self._events.events, key=lambda event: event.position)
        return LogReport(
            records=self._records,
            steps=self._steps,
            first_step=self._first_step,
            last_step=self._last.record.step if self._last else 0,
            runs=self._history.runs,
            attempts=self._history.attempts,
            gaps=self._gaps,
            boundaries=tuple(self._boundaries),
            left_out={reason.value: count for reason, count in self._left_out.items()},
            timed=self._timed,
            observing=self._observing,
            rules=tuple(self._tally(index) for index in range(len(self._rules))),
            counts=self._events.counts,
            events=tuple(events),
            incidents=tuple(self._events.incidents),
            events_left_out=self._events.left_out,
            spikes=tuple(survey.statistics() for survey in self._surveys if survey.metric in self._seen),
            curves=tuple(
                recorder.curve(policy.name, rule.name)
                for recorder, (policy, rule) in zip(self._curves, self._rules, strict=False)
            ),
        )

    def _prepared(self, arrival: Arrival) -> Engine:
        """The engine as it is before the record: made anew for a new attempt, told how long it was silent."""
        entry, last, engine = arrival.entry, self._last, self._engine
        beginning = arrival.beginning
        if engine is not None and last is not None and self._watches_time and beginning is not Beginning.RUN:
            self._note_silence(engine, last, entry.time)
        if beginning is not None:
            self._mark(beginning, entry)
        if engine is None or beginning in _ANEW:
            self._begin(anew=beginning is Beginning.RUN)
            engine = Engine(self._policies, attempt=entry.record.attempt, start_step=_resumed_at(arrival))
            for survivor in arrival.survivors:
                engine.take(survivor.record, ordinal=survivor.ordinal, now=survivor.time)
            self._engine = engine
            last = arrival.survivors[-1] if arrival.survivors else None
        self._steps += entry.record.step - last.record.step if last is not None else 1
        return engine

    def _note_silence(self, engine: Engine, last: Entry, now: float | None) -> None:
        if now is None:
            return
        overdue = [
            one
            for one in engine.verdicts(self._policies, now=now)
            if one.reason in _OF_TIME and one.state is State.FIRING
        ]
        if overdue:
            self._events.note(overdue, decide(overdue, guard_mode=Mode.ENFORCE), last, self._records - 1)

    def _note(self, verdicts: Sequence[Verdict], entry: Entry) -> None:
        fires = False
        for tally, verdict in zip(self._tallies, verdicts, strict=True):
            state = verdict.finding.state
            if state is not tally.state:
                tally.change(state, self._records)
            if state is _FIRING:
                fires = True
        if fires or not self._events.is_quiet:
            self._events.note(verdicts, decide(verdicts, guard_mode=Mode.ENFORCE), entry, self._records)
        for recorder, verdict in zip(self._curves, verdicts, strict=False):
            recorder.take(verdict, self._records)

    def _mark(self, beginning: Beginning, entry: Entry) -> None:
        self._gaps += beginning is Beginning.STRETCH
        if self._records == 1:
            self._first_step = entry.record.step
        if len(self._boundaries) < MOST_EVENTS:
            kind = "gap" if beginning is Beginning.STRETCH else beginning.name.lower()
            place = entry.run, entry.attempt, entry.record.step, entry.line
            self._boundaries.append(Boundary(kind, self._records, *place))

    def _begin(self, *, anew: bool) -> None:
        step = self._last.record.step if self._last else None
        self._events.interrupt(Ending.RESUMED, step, self._records - 1, run_ends=anew)
        for survey in self._surveys:
            survey.begin(anew=anew)

    def _tally(self, index: int) -> RuleTally:
        policy, rule = self._rules[index]
        near: list[str] = []
        if rule.metric is not None and rule.metric not in self._seen:
            near = get_close_matches(rule.metric, sorted(self._seen), n=1)
        states = self._tallies[index].counted(self._records)
        return RuleTally(policy.name, rule.name, rule.metric, rule.action, states, *near)


class _Tally:
    """How often a rule came to each state, counted in stretches: most records change nothing."""

    def __init__(self) -> None:
        self.state: State | None = None
        self._since = 1
        self._counts = dict.fromkeys(State, 0)

    def change(self, state: State, record: int) -> None:
        """The rule comes to another state with this record."""
        if self.state is not None:
            self._counts[self.state] += record - self._since
        self.state, self._since = state, record

    def counted(self, last_record: int) -> dict[State, int]:
        """The counts up to a record, which is included."""
        counts = dict(self._counts)
        if self.state is not None:
            counts[self.state] += last_record + 1 - self._since
        return counts


def judge_log(policies: Sequence[AcceptedPolicy], points: Iterable[LogPoint]) -> LogReport:
    """Judge a whole log."""
    backtest = Backtest(policies)
    for point in points:
        backtest.take(point)
    return backtest.report()


def _resumed_at(arrival: Arrival) -> int:
    """The step behind which the attempt trains; a run from its beginning has warmed up for nobody."""
    return 0 if arrival.beginning is Beginning.RUN else arrival.entry.record.step - 1
