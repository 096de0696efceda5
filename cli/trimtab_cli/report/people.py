"""Who and what an incident waited for or points at: people, other runs, nodes; and where its time went. Pure."""

from trimtab_operator.incidents import Incident

from trimtab_cli.report.episodes import Chapters
from trimtab_cli.report.views import Block, PhaseView, Table
from trimtab_cli.report.words import duration, moment, seconds_between, wish_words


def people_view(chapters: Chapters) -> Block:
    """What people asked for, how long the run waited for others, and which nodes stand out."""
    asked = tuple(
        (
            moment(one.time),
            one.by,
            one.action,
            wish_words(one.wishes),
            one.reason,
            f"{one.outcome}: {one.answer}",
        )
        for one in chapters.requests
    )
    waits = tuple(
        (moment(one.since), _length(one.since, one.until), one.why, ", ".join(one.runs), one.how or "still waits")
        for one in chapters.waits
    )
    suspects = tuple(
        (str(one.rank), one.pod or "unknown", one.node or "unknown", one.why)
        for hold in chapters.holds
        for one in hold.suspects
    )
    return Block(
        "People, other runs and nodes",
        (),
        (
            Table("What people asked for", ("Time", "Who", "What", "Wishes", "Reason", "Answer"), asked),
            Table("Waits for the breaker over all runs", ("Since", "For", "Why", "Runs", "Ended by"), waits),
            Table("Suspect nodes: later worlds prefer others", ("Rank", "Pod", "Node", "Why"), suspects),
        ),
    )


def phase_views(incident: Incident, newest: str) -> tuple[PhaseView, ...]:
    """Where the time went; `newest` is when the journal's last record was written."""
    phases = incident.phases
    ends = [*(one.time for one in phases[1:]), incident.closed_at or newest]
    found: list[PhaseView] = []
    for index, (one, end) in enumerate(zip(phases, ends, strict=False)):
        after, took = seconds_between(phases[0].time, one.time), seconds_between(one.time, end)
        if after is None or took is None:
            continue  # A record that was tampered with; the proof names it.
        ended = index + 1 < len(phases) or bool(incident.closed_at)
        found.append(PhaseView(one.phase, one.time, max(0.0, after), max(0.0, took), ended))
    return tuple(found)


def _length(start: str, end: str) -> str:
    seconds = seconds_between(start, end)
    return "still" if seconds is None else duration(seconds)
