"""Everything the page shows, read once: journal, proof, policies, records, probes."""

from trimtab_operator.incidents import Incident

from trimtab_cli.access import Access
from trimtab_cli.commands.audit import verify_run
from trimtab_cli.errors import CliError
from trimtab_cli.narrative import incident_story
from trimtab_cli.output import Output
from trimtab_cli.report.chapters import read_chapters
from trimtab_cli.report.plans import checkpoint_views, closing_seq, latches_by_record, plan_views, probe_views
from trimtab_cli.report.reading import collect
from trimtab_cli.report.records import Checkpoints, probes_of
from trimtab_cli.report.span import lanes, marks, shades
from trimtab_cli.report.subject import Subject
from trimtab_cli.report.trail_lines import proof_of, trail_lines
from trimtab_cli.report.views import Report
from trimtab_cli.report.words import facts, headline, outcome_of
from trimtab_cli.trail import Trail, understood_trail


def gather(output: Output, access: Access, subject: Subject, checkpoints: Checkpoints) -> Report:
    """Read all that belongs to an incident and say it as values."""
    verified = verify_run(
        output,
        access,
        subject.run,
        subject.bodies,
        checkpoints=checkpoints.store is not None,
        store=checkpoints.store,
    )
    ends = closing_seq(subject.trail.counted, subject.incident)
    bodies = [one for one in subject.bodies if ends is None or one[0] <= ends]
    then = understood_trail(bodies)
    incident = _incident(then, subject.incident)
    chapters = read_chapters(then.counted, subject.incident)
    with output.busy("reading the records"):
        collector, notes = collect(access, subject.run, checkpoints, then.state, (chapters, incident))
    span = collector.span
    charts, not_drawn = collector.charts()
    views, others = checkpoint_views(then.state, then.counted, chapters, span)
    return Report(
        run=str(subject.run),
        incident=subject.incident,
        headline=headline(chapters, incident, then.state),
        outcome=outcome_of(incident),
        notes=notes,
        facts=facts(chapters, incident),
        story=_story(then, incident),
        first=span.first,
        last=span.last,
        marks=marks(chapters, incident),
        shades=shades(chapters, collector.trained),
        charts=charts,
        not_drawn=not_drawn,
        heat_maps=collector.heat_maps(),
        lanes=lanes(then.state, span, collector.last_steps),
        checkpoints=views,
        other_checkpoints=others,
        plans=plan_views(chapters),
        probes=probe_views(probes_of(access.audit, chapters.records), latches_by_record(chapters)),
        trail=trail_lines(subject.trail, subject.incident, chapters.opened_at),
        proof=proof_of(verified),
    )


def _incident(trail: Trail, name: str) -> Incident:
    """The incident as it was when it changed for the last time."""
    state = trail.state
    known = {one.name: one for one in (*state.closed, *((state.incident,) if state.incident else ()))}
    if name not in known:
        raise CliError(f"The journal names incident {name}, but what it says of it cannot be understood.")
    return known[name]


def _story(trail: Trail, incident: Incident) -> tuple[str, ...]:
    try:
        return incident_story(trail.counted, incident)
    except (AttributeError, KeyError, TypeError, ValueError):
        # A record that was tampered with; the proof names it.
        return ()
