"""One rule and the surviving history -> a Verdict on its last record.

Reach. What a rule says about a record may depend on all that came before it (a value breaches a baseline of values that
did not breach a baseline of ...). To be the same wherever the kept history happens to begin, judgement of step n is
defined as a replay that begins at a step computed from n alone: `origin(n) = (n div reach - 1) * reach + 1`. It sees at
least `reach` and fewer than `2 * reach` records, so keeping `retention` = 2 * reach of them is enough. `reach` covers
twice the baseline and its longest freeze, so that at the origin's jump every `reach` steps the baseline has long filled
with accepted values; a metric so rare that its baseline does not fill within a reach stays WarmingUp. A breach that
outlasts its reach is reported as beginning at the origin: a reminder, not a flood.

Streaks count consecutive observations of the metric: a record without it is NoData and neither counts nor interrupts,
for a metric published every 50th step would otherwise never reach `forRecords`. A new attempt ends a streak. A record
before the rule is armed (`afterSteps`, `graceSteps`) belongs to none, even one that is not finite.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import cast

from trimtab_contract.metrics import MetricRecord

from trimtab_policies.detectors import Assessment, BaselineStatistics, detector_of
from trimtab_policies.errors import MetricMismatch
from trimtab_policies.lineage import History
from trimtab_policies.policy import AcceptedPolicy, Rule
from trimtab_policies.reductions import Observation, Observer

LEAST_REACH = 500
"""Records over which even the simplest rule follows a streak."""


class State(StrEnum):
    """Only FIRING acts; NO_DATA and ERROR are not healthy."""

    HEALTHY = "Healthy"
    PENDING = "Pending"
    FIRING = "Firing"
    NO_DATA = "NoData"
    ERROR = "Error"


class Reason(StrEnum):
    """Why a verdict has its state."""

    WITHIN_LIMITS = "WithinLimits"
    LEVEL_SHIFT = "LevelShift"
    WARMING_UP = "WarmingUp"
    NOT_YET_ARMED = "NotYetArmed"
    IN_GRACE = "InGrace"
    BREACHING = "Breaching"
    OUT_OF_RANGE = "OutOfRange"
    SPIKE = "Spike"
    NON_FINITE = "NonFinite"
    METRIC_ABSENT = "MetricAbsent"
    METRIC_MISMATCH = "MetricMismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one rule of one policy says about one record.

    `observed` is the judged value (after reduction), `element` the index of the vector's element it stands for.
    `first_bad_step` is the first of the consecutive breaching observations and `flagged_windows` the data windows from
    that step to this record's, inclusive; both are None unless this record breaches while the rule is armed.
    """

    policy: AcceptedPolicy
    rule: Rule
    state: State
    reason: Reason
    message: str
    attempt: int
    step: int
    observed: float | None = None
    threshold: float | None = None
    streak: int = 0
    first_bad_step: int | None = None
    flagged_windows: tuple[int, int] | None = None
    element: tuple[int, ...] | None = None
    baseline: BaselineStatistics | None = None


def reach(rule: Rule) -> int:
    """How many records a judgement of this rule looks back over, at least."""
    needed = rule.for_records
    if rule.spike is not None:
        baseline = rule.spike.baseline
        needed += 2 * baseline.records + baseline.max_freeze
    if rule.range is not None and rule.reduce is not None and rule.reduce.longest_streak_below is not None:
        needed += math.ceil(max(rule.range.max or 0.0, rule.range.min or 0.0)) + 1
    return max(needed, LEAST_REACH)


def retention(policies: Iterable[AcceptedPolicy]) -> int:
    """How many records a history must keep so that every rule's verdicts are independent of where it begins."""
    return 2 * max(chain((LEAST_REACH,), (reach(rule) for policy in policies for rule in policy.spec.rules)))


def judge(policies: Sequence[AcceptedPolicy], history: History) -> tuple[Verdict, ...]:
    """The verdicts of all rules on the history's last record, in the order of policies and rules."""
    return tuple(evaluate(policy, rule, history) for policy in policies for rule in policy.spec.rules)


def evaluate(policy: AcceptedPolicy, rule: Rule, history: History) -> Verdict:
    """The verdict on the history's last record; raises EmptyHistory."""
    record = history.last
    origins = _origins(record.step, reach(rule))
    seen = history.fold(
        cast("Hashable", rule), origins, lambda: _RuleFold(rule, history.attempt, history.attempt_start_step)
    )
    state, reason = _state(rule, seen)
    breaching = seen.streak > 0 and state in {State.PENDING, State.FIRING}
    return Verdict(
        policy=policy,
        rule=rule,
        state=state,
        reason=reason,
        message=_message(rule, reason, seen),
        attempt=record.attempt,
        step=record.step,
        observed=seen.observation.value if seen.observation else None,
        threshold=seen.assessment.threshold if seen.assessment else None,
        streak=seen.streak if breaching else 0,
        first_bad_step=seen.first_bad.step if breaching and seen.first_bad else None,
        flagged_windows=(seen.first_bad.window, record.window) if breaching and seen.first_bad else None,
        element=seen.observation.element if seen.observation else None,
        baseline=seen.assessment.baseline if seen.assessment else None,
    )


def _origins(step: int, span: int) -> tuple[int, int]:
    """Where the replay of `step` begins, and where replays begin from the next multiple of `span` on."""
    block = step // span
    return max(1, (block - 1) * span + 1), block * span + 1


@dataclass(frozen=True, slots=True)
class _Seen:
    """One record as one rule sees it. `unarmed` is why a breach does not count yet."""

    observation: Observation | None = None
    assessment: Assessment | None = None
    unarmed: Reason | None = None
    streak: int = 0
    first_bad: MetricRecord | None = None
    mismatch: str | None = None


class _RuleFold:
    """A rule fed with records in order: observe, assess, count the streak."""

    def __init__(self, rule: Rule, attempt: int, attempt_start_step: int) -> None:
        self._rule = rule
        self._current = attempt
        self._armed_after = attempt_start_step + rule.grace_steps
        self._observer = Observer(rule)
        self._detector = detector_of(rule)
        self._attempt: int | None = None
        self._streak = 0
        self._first_bad: MetricRecord | None = None

    def step(self, record: MetricRecord) -> _Seen:
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._observer.clear()
            self._detector.clear()
            self._end_streak()
        try:
            observation = self._observer.observe(record)
        except MetricMismatch as error:
            return _Seen(mismatch=str(error))
        if observation is None:
            return _Seen()
        assessment = self._detector.assess(observation.value)
        unarmed = self._unarmed(record)
        if not assessment.breach or assessment.level_shift:
            self._end_streak()
        if assessment.breach and not unarmed:
            self._streak += 1
            self._first_bad = self._first_bad or record
        return _Seen(observation, assessment, unarmed, self._streak, self._first_bad)

    def _unarmed(self, record: MetricRecord) -> Reason | None:
        if record.step <= self._rule.after_steps:
            return Reason.NOT_YET_ARMED
        # In an earlier attempt's records only the baseline matters: the change of attempt ends their streaks.
        if record.attempt == self._current and self._rule.grace_steps and record.step <= self._armed_after:
            return Reason.IN_GRACE
        return None

    def _end_streak(self) -> None:
        self._streak = 0
        self._first_bad = None


def _state(rule: Rule, seen: _Seen) -> tuple[State, Reason]:
    if seen.mismatch is not None:
        return State.ERROR, Reason.METRIC_MISMATCH
    if seen.observation is None or seen.assessment is None:
        return State.NO_DATA, Reason.METRIC_ABSENT
    if seen.unarmed is not None:
        return State.PENDING, seen.unarmed
    if not seen.assessment.breach:
        if seen.assessment.level_shift:
            return State.HEALTHY, Reason.LEVEL_SHIFT
        if seen.assessment.warming_up:
            return State.PENDING, Reason.WARMING_UP
        return State.HEALTHY, Reason.WITHIN_LIMITS
    if seen.streak < rule.for_records:
        return State.PENDING, Reason.BREACHING
    if not math.isfinite(seen.observation.value):
        return State.FIRING, Reason.NON_FINITE
    return State.FIRING, Reason.OUT_OF_RANGE if rule.range is not None else Reason.SPIKE


def _message(rule: Rule, reason: Reason, seen: _Seen) -> str:
    """The verdict in plain words, with its numbers."""
    if seen.mismatch is not None:
        return seen.mismatch
    if seen.observation is None or seen.assessment is None:
        return f"{rule.metric} is absent from the record"
    comparison = _comparison(rule, seen.observation, seen.assessment)
    match reason:
        case Reason.NOT_YET_ARMED:
            return f"{comparison}; not judged up to step {rule.after_steps} (afterSteps)"
        case Reason.IN_GRACE:
            return f"{comparison}; not judged for {rule.grace_steps} steps after a resume (graceSteps)"
        case Reason.LEVEL_SHIFT:
            return f"{comparison}; the baseline was rebuilt on the new level after its longest freeze"
        case Reason.WITHIN_LIMITS | Reason.WARMING_UP:
            return comparison
        case _:
            times = "1 record" if seen.streak == 1 else f"{seen.streak} records in a row"
            wanted = f" of {rule.for_records}" if seen.streak < rule.for_records else ""
            since = seen.first_bad.step if seen.first_bad else 0
            return f"{comparison}, {times}{wanted} since step {since}"


def _comparison(rule: Rule, observation: Observation, assessment: Assessment) -> str:
    value, baseline = observation.value, assessment.baseline
    subject = f"{_subject(rule)} {value:.4g}"
    if observation.element is not None:
        subject += f" at element {list(observation.element)}"
    if not math.isfinite(value):
        return f"{subject} is not finite"
    if assessment.threshold is None:
        count = baseline.count if baseline else 0
        fewest = rule.spike.baseline.min_records if rule.spike else 0
        return f"{subject}; the baseline has {count} of at least {fewest} records"
    relation = "=" if value == assessment.threshold else "<" if value < assessment.threshold else ">"
    text = f"{subject} {relation} {assessment.threshold:.4g}"
    if baseline is None or rule.spike is None:
        return text
    margin = f"{rule.spike.sigma:g} std {baseline.std:.3g}"
    if rule.spike.floor is not None and rule.spike.floor > rule.spike.sigma * baseline.std:
        margin = f"floor {rule.spike.floor:g}"
    return f"{text} (mean {baseline.mean:.4g} + {margin} over {baseline.count} records)"


def _subject(rule: Rule) -> str:
    reduce = rule.reduce
    if reduce is None:
        return rule.metric
    if reduce.fraction_below is not None:
        return f"fraction of {rule.metric} below {reduce.fraction_below:g}"
    if reduce.longest_streak_below is not None:
        return f"longest streak of {rule.metric} below {reduce.longest_streak_below:g}"
    return f"max of {rule.metric}"
