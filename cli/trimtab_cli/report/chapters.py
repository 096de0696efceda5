"""An incident's journal records, read as what they say. Pure.

What a record does not say as this version writes it is left out.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from trimtab_contract.directives import Directive, Reason
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.incidents import Candidate, Latch, Measurement, Plan, SkipRange, Vitals, Wishes, WithheldStep
from trimtab_operator.run_state import AutomationHold, JournalAction, RequestAction, RequestState
from trimtab_operator.suspects import Suspect

from trimtab_cli.report.episodes import (
    Chapters,
    FindingStory,
    Firing,
    Hold,
    PlanStory,
    ProbationStory,
    RequestStory,
    Wait,
)

_Value = TypeVar("_Value")


def read_chapters(records: Iterable[JournalRecord], incident: str) -> Chapters:
    """The chapters of an incident."""
    own = tuple(one for one in records if one.incident == incident)
    chapters = Chapters(own)
    for record in own:
        read = _READ.get(record.action)
        if read is not None and record.phase is not Phase.RESULT:
            chapters = read(chapters, record)
    return chapters


def number(value: object) -> float | None:
    """A number of the journal, in which those that are not finite are texts; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _fired(chapters: Chapters, record: JournalRecord) -> Chapters:
    latch = _read(Latch, record.after, "latch")
    if latch is None:
        return chapters
    if record.action == JournalAction.RELAPSED and chapters.plans:
        chapters = _with_plan(chapters, relapsed=f"{latch.rule} fired at step {latch.fired_step} behind it")
    firing = Firing(record.action, record.seq, record.time, latch)
    return replace(chapters, firings=(*chapters.firings, firing))


def _held(chapters: Chapters, record: JournalRecord) -> Chapters:
    after = record.after or {}
    agree = after.get("replicas_agree")
    hold = Hold(
        time=record.time,
        step=int(number(after.get("step")) or 0),
        lost=bool(after.get("lost")),
        replicas_agree=agree if isinstance(agree, bool) else None,
        nonfinite=_read(tuple[str, ...], after, "nonfinite_state"),
        withheld=_read(WithheldStep, after, "withheld"),
        suspects=_read(tuple[Suspect, ...], after, "suspects") or (),
    )
    return replace(chapters, holds=(*chapters.holds, hold))


def _diagnosed(chapters: Chapters, record: JournalRecord) -> Chapters:
    after = record.after or {}
    finding = FindingStory(
        time=record.time,
        finding=str(after.get("finding")),
        why=str(after.get("why") or ""),
        missing=_read(tuple[str, ...], after, "missing") or (),
        suspect=_read(Measurement, after, "suspect"),
        restored=_read(Measurement, after, "restored"),
    )
    return replace(chapters, findings=(*chapters.findings, finding))


def _selected(chapters: Chapters, record: JournalRecord) -> Chapters:
    plan = _read(Plan, record.after, "plan")
    if plan is None:
        return chapters
    fresh = PlanStory(
        plan=plan,
        attempt=0,
        time=record.time,
        why=_told(record),
        candidates=_read(tuple[Candidate, ...], record.reason, "candidates") or (),
        wishes=_wishes(chapters),
        deadline=str((record.after or {}).get("deadline") or ""),
    )
    return replace(chapters, plans=(*chapters.plans, fresh))


def _wishes(chapters: Chapters) -> Wishes:
    """What a person wants of the plan under way; a relapse is nothing that anybody asked for."""
    since = max((one.time for one in chapters.firings if one.kind == JournalAction.RELAPSED), default="")
    asked = [one for one in chapters.requests if one.action == RequestAction.ROLLBACK and one.time >= since]
    return next((one.wishes for one in reversed(asked) if _accepted(one)), Wishes())


def _extent(chapters: Chapters, record: JournalRecord) -> Chapters:
    """The windows to skip; where they reach beyond what was approved, the plan with them is another one."""
    skip = _read(SkipRange, record.after, "skip")
    if chapters.plans and (record.after or {}).get("plan") is not None:
        before = chapters.plans[-1]
        chapters = _selected(_with_plan(chapters, failed="its windows were too few for the damage"), record)
        chapters = _with_plan(chapters, attempt=before.attempt, restored=before.restored)
    return _with_plan(chapters, skip=skip, extent=_told(record), numbers=_numbers(record))


def _restored(chapters: Chapters, record: JournalRecord) -> Chapters:
    attempt = int(number((record.after or {}).get("attempt")) or 0)
    return _with_plan(chapters, restored=_told(record) or "restored", attempt=attempt)


def _restore_failed(chapters: Chapters, record: JournalRecord) -> Chapters:
    return _with_plan(chapters, failed=str((record.after or {}).get("why") or _told(record)))


def _instructed(chapters: Chapters, record: JournalRecord) -> Chapters:
    directive, plan = _read(Directive, record.after, "directive"), chapters.plans[-1] if chapters.plans else None
    if directive is None or plan is None or directive.action != "Run" or directive.restore != plan.plan.target:
        return chapters
    return _with_plan(chapters, learning_rate=directive.lr, resumed_at=record.time, attempt=directive.attempt)


def _refused(chapters: Chapters, record: JournalRecord) -> Chapters:
    """A trainer that does not skip the plan's windows; where people asked for some, too, theirs may be meant."""
    asked = any(one.action == RequestAction.SKIP and _accepted(one) for one in chapters.requests)
    if asked or (record.reason or {}).get("reason") != Reason.RANGE_ALREADY_TRAINED:
        return chapters
    return _with_plan(chapters, skip=None, failed=f"its skip was refused: {_told(record)}")


def _requested(chapters: Chapters, record: JournalRecord) -> Chapters:
    """A request and its answer; an accepted one may open the incident, answer a plan or end a wait."""
    after, reason = record.after or {}, record.reason or {}
    asked = _read(dict[str, Any], after, "request") or {}
    story = RequestStory(
        time=record.time,
        by=str(asked.get("by") or ""),
        action=str(asked.get("action") or ""),
        reason=str(reason.get("asked") or ""),
        outcome=record.outcome or "",
        answer=_told(record),
        wishes=_read(Wishes, after, "wishes") or Wishes(),
    )
    chapters = replace(chapters, requests=(*chapters.requests, story))
    if not _accepted(story):
        return chapters
    if story.action in {RequestAction.APPROVE, RequestAction.REJECT}:
        verb = "approved" if story.action == RequestAction.APPROVE else "rejected"
        chapters = _with_plan(chapters, answer=f"{verb} by {story.by} ({story.reason})")
    if "let_go" in after:
        chapters = _let_go(chapters, record.time, f"{story.by} let this run go on")
    if story.action == RequestAction.RESUME:
        chapters = replace(chapters, closing=f"{story.by} let the run go on: {story.reason}")
    return _fired(chapters, record)


def _waits(chapters: Chapters, record: JournalRecord) -> Chapters:
    hold = _read(AutomationHold, record.after, "hold")
    if hold is None:
        return chapters
    return replace(chapters, waits=(*chapters.waits, Wait(record.time, hold.message, hold.runs)))


def _released(chapters: Chapters, record: JournalRecord) -> Chapters:
    return _let_go(chapters, record.time, _told(record))


def _let_go(chapters: Chapters, time: str, how: str) -> Chapters:
    if not chapters.waits or chapters.waits[-1].until:
        return chapters
    return replace(chapters, waits=(*chapters.waits[:-1], replace(chapters.waits[-1], until=time, how=how)))


def _probation(chapters: Chapters, record: JournalRecord) -> Chapters:
    after = record.after or {}
    until = number(after.get("until"))
    doubts = _read(tuple[str, ...], after, "doubts") or ()
    judged = ProbationStory(record.time, None if until is None else int(until), doubts, _read(Vitals, after, "vitals"))
    return replace(chapters, probations=(*chapters.probations, judged))


def _closed(chapters: Chapters, record: JournalRecord) -> Chapters:
    said = _told(record) or str((record.after or {}).get("message") or "")
    chapters = replace(chapters, closing=said)
    return _probation(chapters, record) if record.action == JournalAction.INCIDENT_CLOSED else chapters


def _asked(chapters: Chapters, record: JournalRecord) -> Chapters:
    plan = chapters.plans[-1] if chapters.plans else None
    if plan is not None and plan.deadline and not plan.answer:
        chapters = _with_plan(chapters, answer="nobody answered in time")
    return replace(chapters, questions=(*chapters.questions, _told(record)))


_READ: Mapping[str, Callable[[Chapters, JournalRecord], Chapters]] = {
    JournalAction.INCIDENT_OPENED: _fired,
    JournalAction.RELAPSED: _fired,
    JournalAction.UPGRADED: _fired,
    JournalAction.HELD: _held,
    JournalAction.DIAGNOSED: _diagnosed,
    JournalAction.TARGET_SELECTED: _selected,
    JournalAction.RESTORED: _restored,
    JournalAction.RESTORE_FAILED: _restore_failed,
    JournalAction.EXTENT_FOUND: _extent,
    JournalAction.DIRECTIVE: _instructed,
    JournalAction.START_WORLD: _instructed,
    JournalAction.DIRECTIVE_REFUSED: _refused,
    JournalAction.RUN_REQUESTED: _requested,
    JournalAction.AUTOMATION_HELD: _waits,
    JournalAction.AUTOMATION_RELEASED: _released,
    JournalAction.PROBATION_EXTENDED: _probation,
    JournalAction.INCIDENT_CLOSED: _closed,
    JournalAction.STOPPED: _closed,
    JournalAction.FAILED: _closed,
    JournalAction.NEEDS_HUMAN: _asked,
}


def _with_plan(chapters: Chapters, **changes: Any) -> Chapters:
    """The chapters with what became of the plan under way."""
    if not chapters.plans:
        return chapters
    return replace(chapters, plans=(*chapters.plans[:-1], replace(chapters.plans[-1], **changes)))


def _accepted(request: RequestStory) -> bool:
    return request.outcome != RequestState.REFUSED


def _told(record: JournalRecord) -> str:
    return str((record.reason or {}).get("message") or "")


def _numbers(record: JournalRecord) -> Mapping[str, float]:
    found = {name: number(value) for name, value in (record.reason or {}).items() if name != "message"}
    return {name: value for name, value in found.items() if value is not None and not math.isnan(value)}


def _read(kind: type[_Value], content: Mapping[str, Any] | None, name: str) -> _Value | None:
    try:
        return msgspec.convert((content or {}).get(name), type=kind)
    except msgspec.ValidationError:
        return None
