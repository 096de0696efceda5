"""What an incident's journal records say, as values: firings, holds, findings, plans, requests, waits, the end."""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab_contract.directives import LearningRateOverride
from trimtab_contract.journal import JournalRecord
from trimtab_operator.incidents import Candidate, Latch, Measurement, Plan, SkipRange, Vitals, Wishes, WithheldStep
from trimtab_operator.suspects import Suspect

NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class Firing:
    """What an incident, or a part of it, began with, a rule or a person; `kind` is the action of its record."""

    kind: str
    seq: int
    time: str
    latch: Latch


@dataclass(frozen=True, slots=True)
class Hold:
    """Every rank holds after `step`, or was lost before. `nonfinite` names what is not finite, None: nobody looked."""

    time: str
    step: int
    lost: bool
    replicas_agree: bool | None
    nonfinite: tuple[str, ...] | None = None
    withheld: WithheldStep | None = None
    suspects: tuple[Suspect, ...] = ()


@dataclass(frozen=True, slots=True)
class FindingStory:
    """What the evidence is consistent with, the numbers of both states as far as they were measured, what it lacks."""

    time: str
    finding: str
    why: str
    missing: tuple[str, ...]
    suspect: Measurement | None
    restored: Measurement | None


@dataclass(frozen=True, slots=True)
class PlanStory:
    """One plan from its choice to its end; `numbers` are those of the extent, by the journal's names.

    `relapsed` says why the run broke again behind it, `answer` how a plan that waited until `deadline` was answered.
    """

    plan: Plan
    attempt: int
    time: str
    why: str
    candidates: tuple[Candidate, ...]
    wishes: Wishes = NO_WISHES
    deadline: str = ""
    answer: str = ""
    restored: str = ""
    failed: str = ""
    relapsed: str = ""
    skip: SkipRange | None = None
    extent: str = ""
    numbers: Mapping[str, float] | None = None
    learning_rate: LearningRateOverride | None = None
    resumed_at: str = ""

    @property
    def measured(self) -> bool:
        """Whether the windows to skip were measured, and not named by a person."""
        return self.skip is not None and (self.skip.bad > 0 or bool(self.numbers))


@dataclass(frozen=True, slots=True)
class RequestStory:
    """What a person asked for within the incident, and the answer."""

    time: str
    by: str
    action: str
    reason: str
    outcome: str
    answer: str
    wishes: Wishes


@dataclass(frozen=True, slots=True)
class Wait:
    """The run waited for the breaker over all runs; `until` is empty while it does, `how` says what ended it."""

    since: str
    why: str
    runs: tuple[str, ...]
    until: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class ProbationStory:
    """What a probation was judged by when it was extended (`until`: to which step) or over (None)."""

    time: str
    until: int | None
    doubts: tuple[str, ...]
    vitals: Vitals | None


@dataclass(frozen=True, slots=True)
class Chapters:
    """All of one incident, in the order of the journal."""

    records: tuple[JournalRecord, ...]
    firings: tuple[Firing, ...] = ()
    holds: tuple[Hold, ...] = ()
    findings: tuple[FindingStory, ...] = ()
    plans: tuple[PlanStory, ...] = ()
    requests: tuple[RequestStory, ...] = ()
    waits: tuple[Wait, ...] = ()
    probations: tuple[ProbationStory, ...] = ()
    questions: tuple[str, ...] = ()
    closing: str = ""

    @property
    def opened_at(self) -> str:
        """When the incident began; empty in a journal that has lost it."""
        return self.firings[0].time if self.firings else ""

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Everything the incident acted on, in order."""
        return tuple(one.latch for one in self.firings)
