"""What a GuardPolicy says: the models of its `spec`, and the one door through which a spec becomes one.

The models state each field's type and bounds and are also the source of the CRD's schema. What spans several fields is
in `checks`; `parse_policy` applies both and reports every error at once.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS, METRIC_NAME

from trimtab_policies.checks import (
    DEFAULT_FOR_RECORDS,
    DEFAULT_MAX_FREEZE,
    DEFAULT_MIN_RECORDS,
    DEFAULT_PROBE,
    DEFAULT_RECORDS,
    cross_field_errors,
)
from trimtab_policies.errors import FieldError, InvalidPolicy


class Action(StrEnum):
    """What a firing rule asks for, from the mildest to the strongest."""

    RECORD = "Record"
    NOTIFY = "Notify"
    ROLLBACK = "Rollback"
    STOP = "Stop"

    @property
    def severity(self) -> int:
        """0 for the mildest."""
        return tuple(Action).index(self)


class Mode(StrEnum):
    """Whether findings may act."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class Range(_Model):
    """Breached by a value below `min` or above `max`; at least one of them."""

    min: float | None = None
    max: float | None = None


class Baseline(_Model):
    """What a spike is measured against: the last accepted values.

    A breaching value is not accepted, so the baseline stands still while breaches last: for at most `maxFreeze`
    observations, after which it is rebuilt from those (a level shift).
    """

    statistic: Literal["Mean"] = "Mean"
    records: int = Field(default=DEFAULT_RECORDS, ge=2, le=10_000)
    min_records: int = Field(default=DEFAULT_MIN_RECORDS, ge=2, le=10_000)
    max_freeze: int = Field(default=DEFAULT_MAX_FREEZE, ge=1, le=10_000)


class Spike(_Model):
    """Breached by a value above `mean + sigma * std` of the baseline, and above `mean + floor` where that is given."""

    baseline: Baseline = Baseline()
    sigma: float = Field(gt=0, le=1_000)
    floor: float | None = Field(default=None, gt=0)


class Reduce(_Model):
    """Turns a vector into the one number that is judged; exactly one of `max`, `fractionBelow`, `longestStreakBelow`.

    `fractionBelow`: the share of elements below the limit, 0 where they are fewer than `minCount`.
    `longestStreakBelow`: for how many consecutive observations the same element has been below the limit, the largest
    over all elements.
    """

    max: Literal[True] | None = None
    fraction_below: float | None = None
    longest_streak_below: float | None = None
    min_count: int | None = Field(default=None, ge=1, le=1_000_000)


class Rule(_Model):
    """One thing to watch for; exactly one detector (`range` or `spike`).

    `forRecords` counts consecutive observations of the metric within one attempt; records without the metric neither
    count nor interrupt. `afterSteps` holds the rule back up to that step of the run, `graceSteps` for that many steps
    after each resume.
    """

    name: str = Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    metric: str = Field(pattern=METRIC_NAME.pattern)
    reduce: Reduce | None = None
    range: Range | None = None
    spike: Spike | None = None
    for_records: int = Field(default=DEFAULT_FOR_RECORDS, ge=1, le=1_000)
    after_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    grace_steps: int = Field(default=0, ge=0, le=1_000_000)
    on_no_data: Literal["Ignore"] = "Ignore"
    action: Annotated[Action, Field(strict=False)]


class SkipBatches(_Model):
    """The border skipped around the bad windows, and how many windows after the flagged ones are probed."""

    before: int = Field(default=1, ge=0, le=1_000)
    after: int = Field(default=2, ge=0, le=1_000)
    probe: int = Field(default=DEFAULT_PROBE, ge=9, le=10_000)


class LearningRate(_Model):
    """The learning rate times `scale` for `forSteps` steps after the restore."""

    scale: float = Field(gt=0, lt=1)
    for_steps: int = Field(ge=1, le=1_000_000)


class Escalate(_Model):
    """By which factor the margin grows with each further plan of one incident."""

    margin_factor: float = Field(default=2, ge=1, le=100)


class Remediation(_Model):
    """How a rollback asked for by this policy is done.

    `margin` is the number of steps between the checkpoint and the first suspicious step, at least; `probationSteps` are
    judged steps after the step at which the incident held.
    """

    margin: int = Field(default=100, ge=1, le=1_000_000)
    skip_batches: SkipBatches = SkipBatches()
    learning_rate: LearningRate | None = None
    probation_steps: int = Field(default=200, ge=1, le=1_000_000)
    approval: Literal["Automatic"] = "Automatic"
    escalate: Escalate = Escalate()


class GuardPolicySpec(_Model):
    """The `spec` of a GuardPolicy. Made by `parse_policy`, which also checks what spans fields."""

    mode: Annotated[Mode, Field(strict=False)] = Mode.ENFORCE
    rules: Annotated[tuple[Rule, ...], Field(strict=False, min_length=1, max_length=64)]
    remediation: Remediation = Remediation()


_ADVICE = {
    "missing": "is required; add it",
    "extra_forbidden": "is not a field this version knows; remove it or correct its name",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be greater than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "model_type": "must be an object",
    "tuple_type": "must be a list",
}
"""What to do about each kind of error that these models can have."""


def policy_hash(spec: GuardPolicySpec) -> str:
    """SHA-256 (hex) of the spec as canonical JSON, defaults filled in: equal for specs that judge and act alike."""
    content = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class AcceptedPolicy:
    """A valid spec with the identity of the object it came from: what a firing rule is latched with."""

    kind: str
    namespace: str | None
    name: str
    uid: str
    generation: int
    hash: str
    spec: GuardPolicySpec

    @property
    def mode(self) -> Mode:
        """Whether this policy may act."""
        return self.spec.mode

    @classmethod
    def of(
        cls, spec: GuardPolicySpec, *, kind: str, namespace: str | None, name: str, uid: str, generation: int
    ) -> Self:
        """The policy with its hash computed."""
        return cls(kind, namespace, name, uid, generation, policy_hash(spec), spec)


def parse_policy(spec: object) -> GuardPolicySpec:
    """Check a GuardPolicy's `spec`; raises InvalidPolicy with every error at once."""
    if not isinstance(spec, Mapping):
        raise InvalidPolicy((FieldError("spec", "must be an object with `rules`"),))
    fields = cast("Mapping[Any, Any]", spec)
    errors: list[FieldError] = []
    parsed: GuardPolicySpec | None = None
    try:
        parsed = GuardPolicySpec.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        # pydantic counts valid rules only, and so calls a list of wrong ones empty.
        errors += [
            _field_error(detail) for detail in details if detail["type"] != "too_short" or not fields.get("rules")
        ]
    errors += cross_field_errors(fields)
    if errors or parsed is None:
        raise InvalidPolicy(tuple(errors))
    return parsed


def nearest_name(metric: str, seen: Sequence[str] = ()) -> str | None:
    """The metric name most like `metric` among the known ones and those `seen` in records; None when none is alike."""
    candidates = sorted({*KNOWN_SCALARS, *KNOWN_VECTORS, *seen} - {metric})
    matches = get_close_matches(metric, candidates, n=1)
    return matches[0] if matches else None


def _field_error(detail: Mapping[str, Any]) -> FieldError:
    path = "spec"
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    advice = _ADVICE.get(detail["type"])
    return FieldError(path, detail["msg"] if advice is None else advice.format(**detail.get("ctx", {})))
