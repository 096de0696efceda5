"""An incident's journal records, read as what they say: firings, holds, findings, plans, the end. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from trimtab_contract.directives import Directive, LearningRateOverride
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.incidents import Candidate, Latch, Plan, SkipRange
from trimtab_operator.run_state import JournalAction

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Firing:
    """A rule that fired: `kind` is the action of its record."""

    kind: str
    time: str
    latch: Latch


@dataclass(frozen=True, slots=True)
class Hold:
    """Every rank holds after `step`, or was lost before."""

    time: str
    step: int
    lost: bool
    replicas_agree: bool | None


@dataclass(frozen=True, slots=True)
class PlanStory:
    """One plan from its choice to its end; `numbers` are those of the extent, by the journal's names."""

    plan: Plan
    attempt: int
    time: str
    why: str
    bound: int | None
    candidates: tuple[Candidate, ...]
    restored: str = ""
    failed: str = ""
    skip: SkipRange | None = None
    extent: str = ""
    numbers: Mapping[str, float] | None = None
    learning_rate: LearningRateOverride | None = None
    resumed_at: str = ""


@dataclass(frozen=True, slots=True)
class Chapters:
    """All of one incident, in the order of the journal."""

    records: tuple[JournalRecord, ...]
    firings: tuple[Firing, ...] = ()
    holds: tuple[Hold, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    plans: tuple[PlanStory, ...] = ()
    questions: tuple[str, ...] = ()
    closing: str = ""

    @property
    def opened_at(self) -> str:
        """When the rule that opened the incident had fired; empty in a journal that has lost it."""
        return self.firings[0].time if self.firings else ""


def read_chapters(records: Iterable[JournalRecord], incident: str) -> Chapters:
    """The chapters of an incident; what a record does not say as this version writes it is left out."""
    own = tuple(one for one in records if one.incident == incident)
    chapters = Chapters(own)
    for record in own:
        if record.phase is not Phase.RESULT:
            chapters = _with(chapters, record)
    return chapters


def number(value: object) -> float | None:
    """A number of the journal, in which those that are not finite are texts; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _with(chapters: Chapters, record: JournalRecord) -> Chapters:
    after, reason = record.after or {}, record.reason or {}
    told = str(reason.get("message") or "")
    match record.action:
        case JournalAction.INCIDENT_OPENED | JournalAction.RELAPSED | JournalAction.UPGRADED:
            latch = _read(Latch, after, "latch")
            firings = (Firing(record.action, record.time, latch),) if latch else ()
            return replace(chapters, firings=(*chapters.firings, *firings))
        case JournalAction.HELD:
            agree = after.get("replicas_agree")
            step = int(number(after.get("step")) or 0)
            hold = Hold(record.time, step, bool(after.get("lost")), agree if isinstance(agree, bool) else None)
            return replace(chapters, holds=(*chapters.holds, hold))
        case JournalAction.DIAGNOSED:
            finding = str(after.get("finding")), str(after.get("why") or "")
            return replace(chapters, findings=(*chapters.findings, finding))
        case JournalAction.TARGET_SELECTED:
            plan = _read(Plan, after, "plan")
            return replace(chapters, plans=(*chapters.plans, *_plan(plan, record))) if plan else chapters
        case JournalAction.NEEDS_HUMAN:
            return replace(chapters, questions=(*chapters.questions, told))
        case JournalAction.INCIDENT_CLOSED | JournalAction.STOPPED | JournalAction.FAILED:
            return replace(chapters, closing=told or str(after.get("message") or ""))
        case _:
            return _with_plan(chapters, record, told)


def _plan(plan: Plan, record: JournalRecord) -> tuple[PlanStory, ...]:
    reason = record.reason or {}
    bound = number(reason.get("bound"))
    return (
        PlanStory(
            plan=plan,
            attempt=0,
            time=record.time,
            why=str(reason.get("message") or ""),
            bound=None if bound is None else int(bound),
            candidates=_read(tuple[Candidate, ...], reason, "candidates") or (),
        ),
    )


def _with_plan(chapters: Chapters, record: JournalRecord, told: str) -> Chapters:
    """What became of the plan under way."""
    if not chapters.plans:
        return chapters
    after, plan = record.after or {}, chapters.plans[-1]
    match record.action:
        case JournalAction.RESTORED:
            plan = replace(plan, restored=told or "restored", attempt=int(number(after.get("attempt")) or 0))
        case JournalAction.RESTORE_FAILED:
            plan = replace(plan, failed=str(after.get("why") or told))
        case JournalAction.EXTENT_FOUND:
            plan = replace(plan, skip=_read(SkipRange, after, "skip"), extent=told, numbers=_numbers(record))
        case JournalAction.DIRECTIVE | JournalAction.START_WORLD:
            directive = _read(Directive, after, "directive")
            if directive is not None and directive.action == "Run" and directive.restore == plan.plan.target:
                plan = replace(plan, learning_rate=directive.lr, resumed_at=record.time, attempt=directive.attempt)
        case _:
            return chapters
    return replace(chapters, plans=(*chapters.plans[:-1], plan))


def _numbers(record: JournalRecord) -> Mapping[str, float]:
    found = {name: number(value) for name, value in (record.reason or {}).items() if name != "message"}
    return {name: value for name, value in found.items() if value is not None and not math.isnan(value)}


def _read(kind: type[_Value], content: Mapping[str, Any], name: str) -> _Value | None:
    try:
        return msgspec.convert(content.get(name), type=kind)
    except msgspec.ValidationError:
        return None
