"""Records in order -> what rules find in each: observe, assess, count the streak.

Streaks (`streaks`) count observations of the metric: a record without it is NoData and neither counts nor interrupts,
for a metric published every 50th step would otherwise never reach `forRecords`. A new attempt ends a streak, and so
does a run that was held and goes on. A record before the rule is armed (`afterSteps`, `graceSteps`) or before its
policy is in force belongs to none, even one that is not finite.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from trimtab_contract.metrics import MetricRecord

from trimtab_policies.composites import combine
from trimtab_policies.detectors import Assessment, detector_of
from trimtab_policies.errors import MetricMismatch
from trimtab_policies.reach import reach
from trimtab_policies.reductions import Observation, Observer
from trimtab_policies.rules import Rule
from trimtab_policies.streaks import Streak
from trimtab_policies.verdicts import Finding, Place, Reason, State, Verdict

_ABSENT = Finding(State.NO_DATA, Reason.METRIC_ABSENT)
_COMPARE_EVERY = 64

# What nearly every record comes to; to look an enum's member up in its class is a call in Python 3.11.
_HEALTHY, _WITHIN_LIMITS = State.HEALTHY, Reason.WITHIN_LIMITS

Given_contra = TypeVar("Given_contra", contravariant=True)
Found_co = TypeVar("Found_co", covariant=True)
Given = TypeVar("Given")
Found = TypeVar("Found")


class Resumption:
    """From which steps on the present attempt trains: `graceSteps` begin there, and streaks begin anew.

    `start_step` is the step after which the attempt began, `resumed` are those after which it went on from a hold.
    `since` is the first step for which the policy is in force: what came before makes its baselines and no streak.
    """

    def __init__(self, attempt: int, start_step: int, resumed: Collection[int] = (), since: int = 0) -> None:
        self.attempt = attempt
        self.since = since
        self.start_step = start_step
        self.latest_start = max(start_step, *resumed) if resumed else start_step
        self._resumed = tuple(sorted(resumed))
        self.anew = frozenset((since, *(step + 1 for step in self._resumed)))
        """The steps of the attempt at which streaks begin anew: behind a hold, and where the policy takes force."""

    def streaks_end_before(self, record: MetricRecord) -> bool:
        """Whether this is the first record after a hold, or the first one for which the policy is in force."""
        return record.step in self.anew and record.attempt == self.attempt

    def last_start(self, record: MetricRecord) -> int | None:
        """The last step at or before which training began or went on; None for records of earlier attempts."""
        if record.attempt != self.attempt:
            return None
        return max((step for step in self._resumed if step < record.step), default=self.start_step)


class Arming:
    """Whether a rule may count a breach yet."""

    def __init__(self, rule: Rule, resumption: Resumption) -> None:
        self._after = rule.after_steps
        self._grace = rule.grace_steps
        self._resumption = resumption
        self.armed_from = max(rule.after_steps + 1, resumption.since, resumption.latest_start + rule.grace_steps + 1)
        """From this step on nothing holds the rule back any more, in whatever attempt."""

    def pending(self, record: MetricRecord) -> Reason | None:
        """Why the rule is not armed at this record; None when it is."""
        if record.step >= self.armed_from:
            return None
        if record.step <= self._after:
            return Reason.NOT_YET_ARMED
        if record.step < self._resumption.since and record.attempt == self._resumption.attempt:
            return Reason.NOT_YET_IN_FORCE
        return self.held_back(record) if self._grace else None

    def held_back(self, record: MetricRecord) -> Reason | None:
        """Whether `afterSteps` or `graceSteps` holds the rule back at this record, and behind it until the next."""
        if record.step <= self._after:
            return Reason.NOT_YET_ARMED
        # In an earlier attempt's records only the baseline matters: the change of attempt ends their streaks.
        start = self._resumption.last_start(record) if self._grace else None
        return Reason.IN_GRACE if start is not None and record.step <= start + self._grace else None


class Replay(Protocol[Given_contra, Found_co]):
    """Something that is fed one input per record and finds something in each."""

    def step(self, record: MetricRecord, given: Given_contra, /) -> Found_co:
        """Take the next record."""
        ...

    @property
    def state(self) -> object:
        """All that later findings depend on, comparable by value."""
        ...


class ValueReplay:
    """Rules that look at the same values in the same way (`alike`): one observer and detector, a count for each."""

    def __init__(self, rules: Sequence[Rule], resumption: Resumption) -> None:
        self._resumption = resumption
        self._anew = resumption.anew
        self._observer = Observer(rules[0])
        self._detector = detector_of(rules[0])
        self._counts = [_Count(rule, resumption) for rule in rules]
        self._armed_from = max(count.arming.armed_from for count in self._counts)
        self._counting = False
        self._attempt = 0

    def step(self, record: MetricRecord, _: object = None, /) -> list[Finding]:
        """Observe, assess, count; a finding for each rule."""
        counts = self._counts
        anew = record.step in self._anew and self._resumption.streaks_end_before(record)
        if anew or record.attempt != self._attempt:
            self._attempt = record.attempt
            self._observer.clear()
            self._detector.clear()
            for count in counts:
                count.streak.end()
        try:
            observation = self._observer.observe(record)
        except MetricMismatch as error:
            return [Finding(State.ERROR, Reason.METRIC_MISMATCH, note=str(error))] * len(counts)
        if observation is None:
            return [_ABSENT] * len(counts)
        assessment = self._detector.assess(observation.value)
        if not (assessment.breach or self._counting or record.step < self._armed_from):
            return [_calm(observation, assessment)] * len(counts)
        found = [count.finding(record, observation, assessment) for count in counts]
        self._counting = any(count.streak.count for count in counts)
        return found

    @property
    def state(self) -> object:
        """What observer and detector remember, and the streaks."""
        streaks = [count.streak.state for count in self._counts]
        return self._observer.state, self._detector.state, self._attempt, streaks


class _Count:
    """How a rule with a detector counts what was assessed."""

    def __init__(self, rule: Rule, resumption: Resumption) -> None:
        self._rule = rule
        self.arming = Arming(rule, resumption)
        self.streak = Streak(rule)

    def finding(self, record: MetricRecord, observation: Observation, assessment: Assessment) -> Finding:
        streak = self.streak
        if assessment.level_shift:
            streak.end()
        pending = self.arming.pending(record)
        streak.observe(Place(record.step, record.window) if assessment.breach and pending is None else None)
        if pending is not None:
            return Finding(State.PENDING, pending, observation, assessment)
        if not assessment.breach and not streak.reached:
            return _calm(observation, assessment)
        state, reason = self._breaching(observation)
        return Finding(state, reason, observation, assessment, streak.count, streak.first)

    def _breaching(self, observation: Observation) -> tuple[State, Reason]:
        rule = self._rule
        if not self.streak.reached:
            return State.PENDING, Reason.BREACHING
        if not math.isfinite(observation.value):
            return State.FIRING, Reason.NON_FINITE
        if rule.range is not None:
            return State.FIRING, Reason.OUT_OF_RANGE
        return State.FIRING, Reason.SPIKE if rule.spike is not None else Reason.DIVERGENCE


class CompositeReplay:
    """A rule made of other rules' verdicts on the same record."""

    def __init__(self, rule: Rule, resumption: Resumption) -> None:
        self._rule = rule
        self._arming = Arming(rule, resumption)
        self._resumption = resumption
        self._attempt = 0
        self._streak = Streak(rule)

    def step(self, record: MetricRecord, components: tuple[Verdict, ...], /) -> Finding:
        """Combine, count."""
        streak = self._streak
        if record.attempt != self._attempt or self._resumption.streaks_end_before(record):
            self._attempt = record.attempt
            streak.end()
        combined = combine(self._rule, components)
        if combined.state is State.NO_DATA:
            return combined
        breach = combined.state is State.FIRING
        pending = self._arming.pending(record)
        place = combined.first_bad or Place(record.step, record.window)
        streak.observe(place if breach and pending is None else None)
        if pending is not None:
            return Finding(State.PENDING, pending, cause=combined.cause, note=combined.note)
        if not breach and not streak.reached:
            return combined
        return Finding(
            State.FIRING if streak.reached else State.PENDING,
            Reason.COMPONENTS if streak.reached else Reason.BREACHING,
            streak=streak.count,
            first_bad=streak.first,
            cause=combined.cause,
            note=combined.note,
        )

    @property
    def state(self) -> object:
        """The streak."""
        return self._attempt, self._streak.state


class Succession(Generic[Given, Found]):
    """Judges each record by a replay from that record's own origin (`reach`), in O(1) a record.

    Two replays are under way: the one that judges, and the one begun at the next origin, which takes over when its turn
    comes. Once both remember the same they are one, for equal states stay equal.
    """

    def __init__(self, span: int, make: Callable[[], Replay[Given, Found]]) -> None:
        self._span = span
        self._make = make
        # The first block's replay begins with the history, as the next block's would.
        self._judging = self._succeeding = make()
        self._last_of_block: int | None = None

    def step(self, ordinal: int, record: MetricRecord, given: Given) -> Found:
        """Take record number `ordinal` (from 1; rises by one a record)."""
        if self._last_of_block is None or ordinal > self._last_of_block:
            self._begin_block(ordinal)
        judging, succeeding = self._judging, self._succeeding
        found = judging.step(record, given)
        if succeeding is not judging:
            succeeding.step(record, given)
            if ordinal % _COMPARE_EVERY == 0 and succeeding.state == judging.state:
                self._succeeding = judging
        return found

    def _begin_block(self, ordinal: int) -> None:
        if self._last_of_block is not None:
            self._judging, self._succeeding = self._succeeding, self._make()
        self._last_of_block = ordinal + self._span - 1 - (ordinal - 1) % self._span


def alike(rules: Iterable[Rule]) -> list[list[Rule]]:
    """Rules with a detector that looks at values, those together whose detectors see and say the same."""
    groups: dict[Hashable, list[Rule]] = {}
    for rule in rules:
        detector = rule.range, rule.spike, rule.non_finite, rule.divergence
        groups.setdefault((rule.metric, rule.reduce, detector, reach(rule)), []).append(rule)
    return list(groups.values())


def _calm(observation: Observation, assessment: Assessment) -> Finding:
    if assessment.level_shift:
        return Finding(_HEALTHY, Reason.LEVEL_SHIFT, observation, assessment)
    if assessment.warming_up:
        return Finding(State.PENDING, Reason.WARMING_UP, observation, assessment)
    return Finding(_HEALTHY, _WITHIN_LIMITS, observation, assessment)
