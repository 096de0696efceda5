"""What a GuardPolicy says: its `spec`, and the one door through which a spec becomes one.

`rules` has the models of one rule. They state each field's type and bounds and are also the source of the CRD's schema;
what spans several fields is in `checks`. `parse_policy` applies both and reports every error at once.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, ValidationError
from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS

from trimtab_policies.checks import (
    DEFAULT_APPROVAL_DEADLINE,
    DEFAULT_BEFORE,
    DEFAULT_MARGIN,
    DEFAULT_PROBE,
    cross_field_errors,
)
from trimtab_policies.errors import FieldError, InvalidPolicy
from trimtab_policies.models import Duration, Model, seconds
from trimtab_policies.rules import Rule
from trimtab_policies.validation import field_errors, shown


class Mode(StrEnum):
    """Whether findings may act."""

    OBSERVE = "Observe"
    ENFORCE = "Enforce"


class SkipBatches(Model):
    """The border skipped around the bad windows, and how many windows after the flagged ones are probed."""

    before: int = Field(default=DEFAULT_BEFORE, ge=0, le=1_000)
    after: int = Field(default=2, ge=0, le=1_000)
    probe: int = Field(default=DEFAULT_PROBE, ge=9, le=10_000)


class LearningRate(Model):
    """The learning rate times `scale` for `forSteps` steps after the restore."""

    scale: float = Field(gt=0, lt=1)
    for_steps: int = Field(ge=1, le=1_000_000)


class Escalate(Model):
    """By which factor the margin grows with each further plan of one incident."""

    margin_factor: float = Field(default=2, ge=1, le=100)


class Remediation(Model):
    """How a rollback asked for by this policy is done.

    `margin` is the number of steps between the checkpoint and the first suspicious step, at least; `probationSteps` are
    judged steps after the step at which the incident held, and `minThroughput` (0.6 unless given) is the share of the
    median throughput before the incident that the run must reach for its probation to pass in that time. With
    `approval: Required` a person sees each plan first; `approvalDeadline` (24h unless given) is how long they are
    waited for.
    """

    margin: int = Field(default=DEFAULT_MARGIN, ge=1, le=1_000_000)
    skip_batches: SkipBatches = SkipBatches()
    learning_rate: LearningRate | None = None
    probation_steps: int = Field(default=200, ge=1, le=1_000_000)
    min_throughput: float | None = Field(default=None, ge=0, le=1)
    approval: Literal["Automatic", "Required"] = "Automatic"
    approval_deadline: Duration | None = None
    escalate: Escalate = Escalate()

    @property
    def approval_seconds(self) -> int | None:
        """How long a plan waits for its approval; None where it needs none."""
        return seconds(self.approval_deadline or DEFAULT_APPROVAL_DEADLINE) if self.approval == "Required" else None


class GuardPolicySpec(Model):
    """The `spec` of a GuardPolicy. Made by `parse_policy`, which also checks what spans fields."""

    mode: Annotated[Mode, Field(strict=False)] = Mode.ENFORCE
    rules: Annotated[tuple[Rule, ...], Field(strict=False, min_length=1, max_length=64)]
    remediation: Remediation = Remediation()


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


def enforced(policy: AcceptedPolicy) -> AcceptedPolicy:
    """The policy as if it might act, where what it would have done is the question."""
    spec = policy.spec.model_copy(update={"mode": Mode.ENFORCE})
    return replace(policy, spec=spec, hash=policy_hash(spec))


def parse_policy(spec: object) -> GuardPolicySpec:
    """Check a GuardPolicy's `spec`; raises InvalidPolicy with every error at once."""
    if not isinstance(spec, Mapping):
        raise InvalidPolicy((FieldError("spec", f"must be an object with `rules`; it is {shown(spec)}"),))
    fields = cast("Mapping[Any, Any]", spec)
    errors: list[FieldError] = []
    parsed: GuardPolicySpec | None = None
    try:
        parsed = GuardPolicySpec.model_validate(fields)
    except ValidationError as error:
        errors += field_errors(error, GuardPolicySpec, "spec")
    errors += cross_field_errors(fields)
    if errors or parsed is None:
        raise InvalidPolicy(tuple(errors))
    return parsed


def nearest_name(metric: str, seen: Sequence[str] = ()) -> str | None:
    """The metric name most like `metric` among the known ones and those `seen` in records; None when none is alike."""
    candidates = sorted({*KNOWN_SCALARS, *KNOWN_VECTORS, *seen} - {metric})
    matches = get_close_matches(metric, candidates, n=1)
    return matches[0] if matches else None
