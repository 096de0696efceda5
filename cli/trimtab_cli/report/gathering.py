"""Everything the page shows: read once, said as values."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from trimtab_operator.incidents import Incident
from trimtab_operator.signatures import AnchorVerifier

from trimtab_cli.access import Access
from trimtab_cli.errors import CliError
from trimtab_cli.narrative import incident_story
from trimtab_cli.output import Output
from trimtab_cli.report.chapters import read_chapters
from trimtab_cli.report.checkpoints import checkpoint_views
from trimtab_cli.report.facts import facts
from trimtab_cli.report.headline import headline
from trimtab_cli.report.measurements import finding_views, latches_by_record, probe_views
from trimtab_cli.report.people import people_view, phase_views
from trimtab_cli.report.plans import plan_views, probation_view
from trimtab_cli.report.reading import Advance, Story, collect
from trimtab_cli.report.records import Checkpoints, Sources, archive_reader, batches_of, probes_of
from trimtab_cli.report.samples import sample_views
from trimtab_cli.report.span import lanes, marks, shades, span_of
from trimtab_cli.report.subject import Subject
from trimtab_cli.report.trail_lines import proof_of, trail_lines
from trimtab_cli.report.views import Report
from trimtab_cli.report.words import outcome_of
from trimtab_cli.trail import Trail, understood_trail
from trimtab_cli.trail_verification import Verified, verify_run


def gather(
    output: Output, access: Access, subject: Subject, checkpoints: Checkpoints, keys: Sequence[AnchorVerifier] = ()
) -> Report:
    """Verify the trail, read all that belongs to the incident, and say it as values."""
    store = checkpoints.store
    verified = verify_run(
        output, access, subject.run, subject.stored, checkpoints=store is not None, store=store, keys=keys
    )
    archive = archive_reader(store, checkpoints.root, subject.run) if store is not None else None
    telling = tell(subject)
    bar = RecordsBar(output, telling.story)
    with bar.shown:
        return compose(telling, verified, Sources(access.audit.get, archive, checkpoints.why_not), bar.advance)


@dataclass(frozen=True, slots=True)
class Telling:
    """An incident with the trail up to its end; what came later does not change what it was."""

    subject: Subject
    then: Trail
    story: Story


def tell(subject: Subject) -> Telling:
    """Read an incident out of its run's journal; raises CliError where it cannot be understood."""
    ends = _closing_seq(subject.trail, subject.incident)
    then = subject.trail
    if ends is not None:
        then = understood_trail([one for one in subject.stored.bodies if one[0] <= ends])
    chapters = read_chapters(then.counted, subject.incident)
    return Telling(subject, then, Story(then.state, chapters, _incident(then, subject.incident)))


def compose(telling: Telling, verified: Verified, sources: Sources, advance: Advance = lambda _step: None) -> Report:
    """The whole page as values; `advance` hears of each metric record that is read."""
    subject, then, story = telling.subject, telling.then, telling.story
    state, chapters, incident = story.state, story.chapters, story.incident
    collector, notes = collect(sources, story, advance)
    span = collector.span
    charts, not_drawn = collector.charts()
    views, others = checkpoint_views(state, then.counted, chapters, span)
    marked = marks(chapters, incident)
    return Report(
        run=str(subject.run),
        incident=subject.incident,
        headline=headline(chapters, incident, state),
        outcome=outcome_of(incident),
        notes=notes,
        facts=facts(chapters, incident, state),
        story=_sentences(then, incident),
        phases=phase_views(incident, then.records[-1].time),
        people=people_view(chapters),
        first=span.first,
        last=min(span.last, max((*collector.last_steps.values(), *(one.step for one in marked)), default=span.last)),
        marks=marked,
        shades=shades(chapters, collector.trained),
        charts=charts,
        not_drawn=not_drawn,
        heat_maps=collector.heat_maps(),
        lanes=lanes(state, span, collector.last_steps),
        checkpoints=views,
        other_checkpoints=others,
        diagnoses=(*finding_views(chapters), *sample_views(batches_of(sources, chapters.records))),
        plans=plan_views(chapters),
        probes=probe_views(probes_of(sources, chapters.records), latches_by_record(chapters)),
        probation=probation_view(chapters, incident),
        trail=trail_lines(subject.trail, subject.incident, chapters.opened_at),
        proof=proof_of(verified),
    )


class RecordsBar:
    """How far the metric records are read: each attempt of the steps shown, with what its rules look back at."""

    def __init__(self, output: Output, story: Story) -> None:
        span = span_of(story.chapters, story.incident)
        firsts = (max(span.first, one.branch_step + 1) for one in story.state.attempts)
        # An attempt that was given up has fewer; the bar then ends early.
        total = sum(max(0, span.last - first + 1) for first in firsts)
        columns = (TextColumn("reading the records"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        shown = output.messages.is_terminal
        self._progress = Progress(*columns, console=output.messages, transient=True) if shown else None
        self._task = self._progress.add_task("records", total=total) if self._progress else None
        if not shown:
            output.say("reading the records")
        self.shown = self._progress or nullcontext()

    def advance(self, _step: int) -> None:
        """One more record was read."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)


def _closing_seq(trail: Trail, name: str) -> int | None:
    """The record that closed the incident, behind which it changed nothing; None while it is open."""
    closed = {one.name: one.closed_at for one in trail.state.closed}
    own = (one.seq for one in trail.counted if one.incident == name and one.time == closed.get(name))
    return max(own, default=None)


def _incident(trail: Trail, name: str) -> Incident:
    """The incident as it was when it changed for the last time."""
    state = trail.state
    known = {one.name: one for one in (*state.closed, *((state.incident,) if state.incident else ()))}
    if name not in known:
        raise CliError(f"The journal names incident {name}, but what it says of it cannot be understood.")
    return known[name]


def _sentences(trail: Trail, incident: Incident) -> tuple[str, ...]:
    try:
        return incident_story(trail.counted, incident)
    except (AttributeError, KeyError, TypeError, ValueError):
        # A record that was tampered with; the proof names it.
        return ()
