"""What one rule says about one record: its state, why, and the numbers a person needs."""

from enum import StrEnum
from typing import Union

import msgspec

from trimtab_policies.detectors import Assessment, Comparison
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.reductions import Observation
from trimtab_policies.rules import Action, OnNoData, Rule


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
    NOT_YET_IN_FORCE = "NotYetInForce"
    IN_GRACE = "InGrace"
    BREACHING = "Breaching"
    OUT_OF_RANGE = "OutOfRange"
    SPIKE = "Spike"
    DIVERGENCE = "Divergence"
    NON_FINITE = "NonFinite"
    STALE = "Stale"
    COMPONENTS = "Components"
    METRIC_ABSENT = "MetricAbsent"
    ABSENT_TOO_LONG = "AbsentTooLong"
    METRIC_MISMATCH = "MetricMismatch"


class Place(msgspec.Struct, frozen=True, gc=False):
    """A record's step, and the data window it trained on."""

    step: int
    window: int


class Finding(msgspec.Struct, frozen=True, gc=False):
    """A verdict without its address: what judging one record came to.

    `first_bad` is where the present streak of `streak` breaching observations began. `cause` is, for a composite, the
    verdict of the component that stands for it. `note` says what no number says.
    """

    state: State
    reason: Reason
    observation: Observation | None = None
    assessment: Assessment | None = None
    streak: int = 0
    first_bad: Place | None = None
    cause: Union["Verdict", None] = None
    note: str = ""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What one rule of one policy says about one record. Everything but the state is worked out when asked for."""

    policy: AcceptedPolicy
    rule: Rule
    attempt: int
    place: Place
    finding: Finding

    @property
    def state(self) -> State:
        """Whether the rule fires, and if not, why it does not."""
        return self.finding.state

    @property
    def reason(self) -> Reason:
        """Why the verdict has its state."""
        return self.finding.reason

    @property
    def step(self) -> int:
        """The step of the judged record."""
        return self.place.step

    @property
    def action(self) -> Action:
        """What the verdict asks for when it fires."""
        if self.reason is Reason.ABSENT_TOO_LONG and self.rule.on_no_data is OnNoData.PAUSE:
            return Action.PAUSE
        return self.rule.action

    @property
    def metric(self) -> str | None:
        """The metric that was judged; a composite's is that of the component that stands for it."""
        return self.rule.metric or (self.finding.cause.metric if self.finding.cause else None)

    @property
    def observed(self) -> float | None:
        """The judged value, after reduction."""
        if self.finding.cause is not None:
            return self.finding.cause.observed
        return self.finding.observation.value if self.finding.observation else None

    @property
    def element(self) -> tuple[int, ...] | None:
        """The index of the vector's element that the value stands for."""
        if self.finding.cause is not None:
            return self.finding.cause.element
        return self.finding.observation.element if self.finding.observation else None

    @property
    def comparison(self) -> Comparison | None:
        """What the value was compared with."""
        if self.finding.cause is not None:
            return self.finding.cause.comparison
        return self.finding.assessment.comparison if self.finding.assessment else None

    @property
    def threshold(self) -> float | None:
        """What the value was not to cross."""
        return self.comparison.threshold if self.comparison else None

    @property
    def streak(self) -> int:
        """How many observations have breached, as the rule counts them; 0 unless this record breaches or fires."""
        return self.finding.streak

    @property
    def first_bad_step(self) -> int | None:
        """The first of those observations; None unless this record breaches or fires while the rule is armed."""
        return self.finding.first_bad.step if self.finding.first_bad else None

    @property
    def flagged_windows(self) -> tuple[int, int] | None:
        """The data windows from the first bad step to this record's, inclusive."""
        first = self.finding.first_bad
        return (first.window, self.place.window) if first else None

    @property
    def sigma(self) -> float | None:
        """How many deviations the rule allows, where it counts in deviations."""
        if self.finding.cause is not None:
            return self.finding.cause.sigma
        return self.rule.spike.sigma if self.rule.spike else None
