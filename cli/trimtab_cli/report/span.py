"""Which steps an incident's drawings show, and what marks them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trimtab_operator.incidents import DEGRADED, RECOVERED, Incident
from trimtab_operator.run_state import RunState
from trimtab_policies.lineage import Attempt, Lineage, Segment

from trimtab_cli.report.episodes import Chapters
from trimtab_cli.report.views import Lane, Mark, Shade

_LEAST_MARGIN, _MOST_MARGIN = 40, 400


@dataclass(frozen=True, slots=True)
class Span:
    """Steps `first` to `last`, both inclusive."""

    first: int
    last: int


def span_of(chapters: Chapters, incident: Incident) -> Span:
    """From behind the oldest checkpoint that was restored, or the first bad step, to the end of the probation."""
    latches = chapters.latches or (incident.latch,)
    targets = [one.plan.target.step for one in chapters.plans]
    first = min(one.first_bad_step for one in latches)
    first = min([first, *targets])
    held = [one.step for one in chapters.holds]
    last = max([*(one.fired_step for one in latches), *held])
    if chapters.plans:
        last = max(last, incident.probation_until)
    margin = min(_MOST_MARGIN, max(_LEAST_MARGIN, (last - first) // 4))
    return Span(max(1, first - margin), last + margin)


def lineage_of(state: RunState) -> Lineage:
    """The attempts of a run."""
    return Lineage(Attempt(one.number, one.parent, one.branch_step) for one in state.attempts)


def survivors(state: RunState) -> Mapping[int, Segment]:
    """By attempt, the steps that belong to the history as it survived."""
    return {one.attempt: one for one in lineage_of(state).surviving(state.attempt)} if state.attempts else {}


def lanes(state: RunState, span: Span, last_steps: Mapping[int, int]) -> tuple[Lane, ...]:
    """The attempts that have records in the span; `last_steps` are the newest ones that were read."""
    kept = survivors(state)
    found: list[Lane] = []
    for one in state.attempts:
        if one.number not in last_steps:
            continue
        last = last_steps[one.number]
        segment = kept.get(one.number)
        to = None if segment is None else last if segment.last is None else min(last, segment.last)
        found.append(Lane(one.number, max(span.first, one.branch_step + 1), last, to))
    return tuple(found)


def marks(chapters: Chapters, incident: Incident) -> tuple[Mark, ...]:
    """What happened at which step, in the order in which it did."""
    found = [
        Mark(one.fired_step, "request", f"{one.message}, in attempt {one.attempt}")
        if one.asked
        else Mark(one.fired_step, "fired", f"{one.rule} fires in attempt {one.attempt}")
        for one in chapters.latches
    ]
    found += [
        Mark(one.step, "held", f"every rank holds after step {one.step}") for one in chapters.holds if not one.lost
    ]
    for one in chapters.plans:
        ending = ", which failed" if one.failed else ", which relapsed" if one.relapsed else ""
        if one.deadline and not one.restored:
            ending = f", {one.answer or 'not approved yet'}"
        text = f"plan {one.plan.number} goes back to the checkpoint of step {one.plan.target.step}{ending}"
        found.append(Mark(one.plan.target.step, "target", text))
    if chapters.plans and incident.outcome in {RECOVERED, DEGRADED}:
        found.append(Mark(incident.probation_until, "passed", "the last step of the probation"))
    return _merged(sorted(found, key=lambda mark: mark.step))


def _merged(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """The marks, those of one kind at one step together."""
    said: dict[tuple[int, str], dict[str, None]] = {}
    for one in marks:
        said.setdefault((one.step, one.kind), {})[one.text] = None
    return tuple(Mark(step, kind, "; ".join(texts)) for (step, kind), texts in said.items())


def shades(chapters: Chapters, trained: Mapping[tuple[int, int], tuple[int, int]]) -> tuple[Shade, ...]:
    """The flagged steps of every firing, and the steps that had trained on what was skipped later.

    `trained` gives, by skip range, the steps whose windows lie in it.
    """
    found: list[Shade] = []
    for one in chapters.latches:
        if one.flagged is None:
            continue
        first, last = one.flagged
        text = f"windows {first} to {last} are flagged: steps {one.first_bad_step} to {one.fired_step}"
        found.append(Shade(one.first_bad_step, one.fired_step, "flagged", text))
    for (first, last), (first_step, last_step) in trained.items():
        text = f"windows {first} to {last} are skipped; steps {first_step} to {last_step} had trained on some of them"
        found.append(Shade(first_step, last_step, "skipped", text))
    return tuple(dict.fromkeys(found))
