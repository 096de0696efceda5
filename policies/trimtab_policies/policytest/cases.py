"""What a test file may say: the models of its objects, each field with its type and bounds.

`suite` reads the objects and checks what spans them. Steps and attempts are those of the records.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from trimtab_policies.checks import MOST_STEPS
from trimtab_policies.models import Model
from trimtab_policies.policy import Mode
from trimtab_policies.policytest.notation import MOST_RECORDS, Series
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import Reason, State

MOST_CASES = 1_000
MOST_ELEMENTS = 65_536

Step = Annotated[int, Field(ge=1, le=MOST_STEPS)]
ListOfAnything = Annotated[tuple[Any, ...], Field(strict=False)]


class TestFile(Model):
    """The document: the policies under test, files beside this one, and the cases."""

    __test__ = False

    policies: Annotated[tuple[str, ...], Field(strict=False, max_length=16)] = ()
    cases: Annotated[tuple[Any, ...], Field(strict=False, min_length=1, max_length=MOST_CASES)]


class Pause(Model):
    """Nothing comes for so many seconds behind the record of a step."""

    after_step: Step
    seconds: float = Field(gt=0, le=1e9)


class Stretch(Model):
    """What one attempt published: its series, the steps whose records never arrive, its pauses and checkpoints."""

    series: dict[str, Any]
    missing_steps: Annotated[tuple[Step, ...], Field(strict=False)] = ()
    pauses: ListOfAnything = ()
    checkpoints: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()


class LaterAttempt(Stretch):
    """An attempt behind the first: it continues attempt `from` behind `branchStep`."""

    attempt: int = Field(ge=2, le=1_000)
    parent: int = Field(alias="from", ge=1, le=1_000)
    branch_step: int = Field(ge=0, le=MOST_STEPS)


class CaseHead(Stretch):
    """One case; its own series are those of attempt 1."""

    name: str = Field(min_length=1, max_length=200)
    mode: Annotated[Mode, Field(strict=False)] = Mode.ENFORCE
    start_step: int = Field(default=0, ge=0, le=MOST_STEPS)
    every_steps: int = Field(default=1, ge=1, le=100_000)
    seconds_per_step: float | None = Field(default=None, gt=0, le=1e6)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    checkpoint_every: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    attempts: ListOfAnything = ()
    verdicts: ListOfAnything = ()
    decisions: ListOfAnything = ()


class VectorFields(Model):
    """A vector metric: every element is `base`, but for those that have a series of their own."""

    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_ELEMENTS)], ...], Field(strict=False, min_length=1)]
    base: Any
    elements: dict[str, Any] = Field(default_factory=dict)


class ExpectedVerdict(Model):
    """What a rule says about the record of step `at`, or of each from `at` to `to`; absent fields may be anything."""

    at: Step
    to: Step | None = None
    attempt: int = Field(default=1, ge=1)
    waited: bool = False
    policy: str | None = None
    rule: str
    state: Annotated[State, Field(strict=False)]
    reason: Annotated[Reason, Field(strict=False)] | None = None
    first_bad_step: Step | None = None
    element: Annotated[tuple[int, ...], Field(strict=False)] | None = None
    streak: int | None = Field(default=None, ge=0)
    observed: float | None = None
    threshold: float | None = None
    says: str | None = None


class ExpectedDecision(Model):
    """A decision, at the step at which it is first made; absent fields may be anything."""

    step: Step
    attempt: int = Field(default=1, ge=1)
    policy: str | None = None
    rule: str
    action: Annotated[Action, Field(strict=False)]
    would_have: Annotated[Action, Field(strict=False)] | None = None
    first_bad_step: Step | None = None
    not_after: int | None = None
    target: int | None = Field(default=None, ge=0)


@dataclass(frozen=True, slots=True)
class VectorSeries:
    """A vector metric's values: the row-major offsets of the elements that have a series of their own."""

    shape: tuple[int, ...]
    base: Series
    elements: tuple[tuple[int, Series], ...]


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """One attempt: it continues `parent` behind `branch_step` with `records` records."""

    attempt: int
    parent: int | None
    branch_step: int
    records: int
    series: tuple[tuple[str, Series | VectorSeries], ...]
    missing: tuple[int, ...]
    pauses: tuple[tuple[int, float], ...]
    checkpoints: tuple[int, ...]
    every_steps: int

    def step(self, index: int) -> int:
        """The step of the record with this index, from 0."""
        return (self.branch_step // self.every_steps + 1 + index) * self.every_steps

    def index(self, step: int) -> int | None:
        """The index of a step's record; None where no record has that step."""
        index, rest = divmod(step, self.every_steps)
        index -= self.branch_step // self.every_steps + 1
        return index if not rest and 0 <= index < self.records else None

    def steps(self, first: int, last: int) -> range:
        """The steps of the records from step `first`, which is one, to `last`."""
        return range(first, last + 1, self.every_steps)

    @property
    def last_step(self) -> int:
        """The step of the last record."""
        return self.step(self.records - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """One case, read and checked. `path` is that of its object in the file."""

    path: str
    name: str
    mode: Mode
    seconds_per_step: float | None
    seed: int
    checkpoint_every: int | None
    attempts: tuple[AttemptPlan, ...]
    verdicts: tuple[tuple[str, ExpectedVerdict], ...]
    decisions: tuple[tuple[str, ExpectedDecision], ...]


__all__ = [
    "MOST_RECORDS",
    "AttemptPlan",
    "Case",
    "CaseHead",
    "ExpectedDecision",
    "ExpectedVerdict",
    "LaterAttempt",
    "Pause",
    "TestFile",
    "VectorFields",
    "VectorSeries",
]
