"""One rule of a GuardPolicy, and the settings of each detector and reduction it may have.

The models state each field's type and bounds and are also the source of the CRD's schema. What spans several fields is
in `checks`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field
from trimtab_contract.metrics import METRIC_NAME

from trimtab_policies.checks import (
    DEFAULT_DIVERGENCE_FREEZE,
    DEFAULT_FOR_RECORDS,
    DEFAULT_LOOKBACK,
    DEFAULT_MAX_FREEZE,
    DEFAULT_MIN_RECORDS,
    DEFAULT_RECENT,
    DEFAULT_RECORDS,
    DEFAULT_SETTLE,
    MOST_COMPONENTS,
    MOST_STEPS,
)
from trimtab_policies.models import Duration, Model

NOISE_RECORDS = 100
"""`divergence` estimates a metric's noise over so many records."""

RULE_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class Action(StrEnum):
    """What a firing rule asks for, from the mildest to the strongest."""

    RECORD = "Record"
    NOTIFY = "Notify"
    PAUSE = "Pause"
    ROLLBACK = "Rollback"
    STOP = "Stop"

    @property
    def severity(self) -> int:
        """0 for the mildest."""
        return _SEVERITY[self]


_SEVERITY = {action: severity for severity, action in enumerate(Action)}


class OnNoData(StrEnum):
    """What follows when a rule's metric has been absent for `noDataFor`."""

    IGNORE = "Ignore"
    PAUSE = "Pause"
    BREACH = "Breach"


class Range(Model):
    """Breached by a value below `min` or above `max`; at least one of them."""

    min: float | None = None
    max: float | None = None


class Baseline(Model):
    """What a spike is measured against: the last accepted values.

    A breaching value is not accepted, so the baseline stands still while breaches last: for at most `maxFreeze`
    observations, after which it is rebuilt from those (a level shift). `Mean` goes with the sample standard deviation,
    `Median` with 1.4826 times the median absolute deviation, which estimates the same of normal noise.
    """

    statistic: Literal["Mean", "Median"] = "Mean"
    records: int = Field(default=DEFAULT_RECORDS, ge=2, le=10_000)
    min_records: int = Field(default=DEFAULT_MIN_RECORDS, ge=2, le=10_000)
    max_freeze: int = Field(default=DEFAULT_MAX_FREEZE, ge=1, le=10_000)


class Spike(Model):
    """Breached by a value above the baseline; exactly one of `sigma` and `ratio`.

    `sigma`: above the center by so many deviations. `ratio`: above the center times this, for metrics that stay
    positive. With `floor`, also above the center by this much.
    """

    baseline: Baseline = Baseline()
    sigma: float | None = Field(default=None, gt=0, le=1_000)
    ratio: float | None = Field(default=None, gt=1, le=1_000_000)
    floor: float | None = Field(default=None, gt=0)


class NonFinite(Model):
    """Breached by NaN and by either infinity, and by nothing else."""


class Divergence(Model):
    """Breached while the recent level lies above the best settled one by every margin that is set.

    The recent level is the median of the last `records` observations. A settled level is the median of `settleRecords`
    observations in a row; the best is the lowest of those within the last `lookbackRecords`. `relative` is a share of
    the best level's size, `absolute` is in the metric's own unit, `sigma` counts the metric's noise from one record to
    the next. After `maxFreeze` breaching observations in a row the level is taken for the new normal (a level shift).
    """

    records: int = Field(default=DEFAULT_RECENT, ge=1, le=1_000)
    settle_records: int = Field(default=DEFAULT_SETTLE, ge=1, le=10_000)
    lookback_records: int = Field(default=DEFAULT_LOOKBACK, ge=2, le=10_000)
    relative: float = Field(gt=0, le=1_000)
    absolute: float = Field(gt=0)
    sigma: float | None = Field(default=None, gt=0, le=1_000)
    max_freeze: int = Field(default=DEFAULT_DIVERGENCE_FREEZE, ge=1, le=10_000)


class Stale(Model):
    """Breached when no record (with `metric`: none that has it) has come for `after`, while the bus itself works."""

    after: Duration


class Reduce(Model):
    """Turns a vector into the one number that is judged; exactly one reduction.

    `max`, `min`, `mean`: of the elements. `quantile`: the element below which this share of the others lies.
    `fractionAbove`, `fractionBelow`: the share of elements strictly beyond the limit, 0 where they are fewer than
    `minCount`. `countAbove`, `countBelow`: their number. `longestStreakAbove`, `longestStreakBelow`: for how many
    consecutive observations the same element has been beyond the limit, the largest over all elements.
    """

    max: Literal[True] | None = None
    min: Literal[True] | None = None
    mean: Literal[True] | None = None
    quantile: float | None = Field(default=None, ge=0, le=1)
    fraction_above: float | None = None
    fraction_below: float | None = None
    count_above: float | None = None
    count_below: float | None = None
    longest_streak_above: float | None = None
    longest_streak_below: float | None = None
    min_count: int | None = Field(default=None, ge=1, le=1_000_000)


RuleName = Annotated[str, Field(min_length=1, max_length=63, pattern=RULE_NAME)]


class Rule(Model):
    """One thing to watch for; exactly one detector, or a composite (`allOf`, `anyOf`) of other rules of the policy.

    `forRecords` counts consecutive observations of the metric within one attempt that breach, or, with `withinRecords`,
    those among the last so many; records without the metric neither count nor interrupt. `afterSteps` holds the rule
    back up to that step of the run, `graceSteps` for that many steps after each resume. `onNoData` says what follows
    when the metric has been absent for `noDataFor`: nothing, a pause, or this rule's own action.
    """

    name: RuleName
    metric: str | None = Field(default=None, pattern=METRIC_NAME.pattern)
    reduce: Reduce | None = None
    range: Range | None = None
    spike: Spike | None = None
    non_finite: NonFinite | None = None
    divergence: Divergence | None = None
    stale: Stale | None = None
    all_of: Annotated[tuple[RuleName, ...], Field(strict=False, max_length=MOST_COMPONENTS)] | None = None
    any_of: Annotated[tuple[RuleName, ...], Field(strict=False, max_length=MOST_COMPONENTS)] | None = None
    for_records: int = Field(default=DEFAULT_FOR_RECORDS, ge=1, le=1_000)
    within_records: int | None = Field(default=None, ge=2, le=1_000)
    after_steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    grace_steps: int = Field(default=0, ge=0, le=1_000_000)
    on_no_data: Annotated[OnNoData, Field(strict=False)] = OnNoData.IGNORE
    no_data_for: Duration | None = None
    action: Annotated[Action, Field(strict=False)]

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the rules that a composite is made of; empty for every other rule."""
        return self.all_of or self.any_of or ()
