"""The sections of the page, each from its values. Pure."""

from collections.abc import Sequence

from trimtab_cli.report.curves import chart_figure, curves_legend
from trimtab_cli.report.grids import heat_figure
from trimtab_cli.report.markup import block, facts_list, paragraphs, section, table, text
from trimtab_cli.report.plot import marks_list
from trimtab_cli.report.probes import probe_figure
from trimtab_cli.report.timeline import timeline_figure
from trimtab_cli.report.views import CheckpointView, Fact, PhaseView, Proof, Report, TrailLine
from trimtab_cli.report.words import duration, moment

MOST_OTHER_RECORDS = 1_000
"""So many records before the incident, and behind it, are told; its own are told all."""

_CHECKPOINT_COLUMNS = ("Step", "Attempt", "State, and how it came about", "Why it was taken or not")
_GOOD = frozenset({"Recovered", "Resumed"})


def alarm(proof: Proof) -> str:
    """What is wrong with the trail, before anything that rests on it."""
    if proof.verified:
        return ""
    introduction = (
        f"{len(proof.problems)} problem(s) were found. What follows is what the journal says, not what is proved."
    )
    return section("This trail is not verified", paragraphs([introduction, *proof.problems]), kind="alarm")


def head(report: Report) -> str:
    """The headline, the outcome, and what the page lacks."""
    tone = "good" if report.outcome in _GOOD else "bad"
    return (
        f'<header><p class="of">Incident {text(report.incident)} of run {text(report.run)}</p>'
        f"<h1>{text(report.headline)}</h1>"
        f'<p><span class="outcome {tone}">{text(report.outcome)}</span> {_proof_line(report.proof)}</p>'
        f"{paragraphs(report.notes, 'note')}</header>"
    )


def summary(report: Report) -> str:
    """The facts."""
    return section("Facts", facts_list(report.facts))


def story(report: Report) -> str:
    """The incident, one sentence a step."""
    told = "".join(f"<li>{text(line)}</li>" for line in report.story)
    return section("What happened", f'<ol class="story">{told}</ol>' if told else "")


def people(report: Report) -> str:
    """Requests, waits for other runs, suspect nodes."""
    return section(report.people.title, *(table(one) for one in report.people.tables))


def phases(report: Report) -> str:
    """Where the time went: each phase as a bar on the incident's own time."""
    whole = max((one.after + one.took for one in report.phases), default=0.0)
    rows = "".join(_phase_row(one, whole) for one in report.phases)
    if not rows:
        return ""
    total = f"{duration(whole)} from the firing to {'the end' if report.phases[-1].ended else 'the newest record'}"
    titles = "<tr><th>Phase</th><th>Began</th><th>Took</th><th>Of the whole</th></tr>"
    body = f'<div class="scroll"><table class="phases"><thead>{titles}</thead><tbody>{rows}</tbody></table></div>'
    return section("Where the time went", paragraphs([f"{total}."], "of"), body)


def _phase_row(one: PhaseView, whole: float) -> str:
    left, width = (100 * value / whole if whole else 0.0 for value in (one.after, one.took))
    began = f"+{duration(one.after)}" if one.after else moment(one.time)
    took = duration(one.took) + ("" if one.ended else " so far")
    bar = f'<i class="bar {text(one.phase.lower())}" style="margin-left:{left:.1f}%;width:{width:.1f}%"></i>'
    return (
        f'<tr><td><b>{text(one.phase)}</b></td><td class="t">{text(began)}</td><td class="t">{text(took)}</td>'
        f'<td class="bars" aria-hidden="true">{bar}</td></tr>'
    )


def drawings(report: Report) -> str:
    """The time line and the curves."""
    kinds = {shade.kind for shade in report.shades}
    marks = marks_list(report.marks) if report.charts or report.lanes else ""
    charts = "\n".join(chart_figure(one, report) for one in report.charts)
    key = curves_legend(report.charts, flagged="flagged" in kinds, skipped="skipped" in kinds) if charts else ""
    lines = f"Not drawn: {'; '.join(report.not_drawn)}." if report.not_drawn else ""
    timeline = timeline_figure(report)
    nothing = "" if charts else "No metric record of these steps was found."
    return section(
        f"Around the event: steps {report.first} to {report.last}",
        marks,
        timeline,
        key,
        charts,
        paragraphs([one for one in (lines, nothing) if one], "of"),
    )


def heat(report: Report) -> str:
    """The per-head vectors."""
    return section("Heads and layers", *(heat_figure(one) for one in report.heat_maps))


def diagnosis(report: Report) -> str:
    """What was found, with its numbers and what is missing, and the losses it rests on."""
    return section("Diagnosis", *map(block, report.diagnoses), *map(probe_figure, report.probes))


def plans(report: Report) -> str:
    """What was tried, and how the run did behind it."""
    return section("Plans and probation", *map(block, report.plans), block(report.probation))


def checkpoints(report: Report) -> str:
    """Every checkpoint near the event, how its state came about, and why it was or was not taken."""
    if not report.checkpoints:
        return ""
    rows = "".join(_checkpoint_row(one) for one in reversed(report.checkpoints))
    count = report.other_checkpoints
    others = [f"Further checkpoints, outside these steps: {count}."] if count else []
    titles = "".join(f"<th>{title}</th>" for title in _CHECKPOINT_COLUMNS)
    return section(
        "Checkpoints",
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>',
        paragraphs(others, "of"),
    )


def _checkpoint_row(one: CheckpointView) -> str:
    history = "".join(
        f"<div>{text(time[:19].replace('T', ' '))} {text(state)}: {text(why)}</div>" for time, state, why in one.history
    )
    thoughts = "".join(f"<div>{text(line)}</div>" for line in one.thoughts) or "considered by no plan"
    abandoned = "" if one.surviving else ", abandoned"
    kind = ' class="chosen"' if one.chosen else ""
    return (
        f'<tr{kind}><td class="n">step {one.step}</td><td class="n">attempt {one.attempt}{abandoned}</td>'
        f"<td><b>{text(one.state)}</b>{history}</td><td>{thoughts}</td></tr>"
    )


def trail(report: Report) -> str:
    """Every record of the run in words; those of other times are folded away."""
    lines = report.trail
    own = [index for index, line in enumerate(lines) if line.ours]
    first, last = (own[0], own[-1]) if own else (len(lines), len(lines))
    before, behind = lines[:first], lines[last + 1 :]
    return section(
        "The trail",
        _folded(f"{len(before)} records before the incident", before[-MOST_OTHER_RECORDS:], len(before)),
        _trail_table(lines[first : last + 1]),
        _folded(f"{len(behind)} records after the incident", behind[:MOST_OTHER_RECORDS], len(behind)),
    )


def _folded(title: str, lines: Sequence[TrailLine], count: int) -> str:
    if not lines:
        return ""
    left_out = f"{count - len(lines)} of them are left out here; `trimtab audit show` prints all."
    rest = paragraphs([left_out], "of") if count > len(lines) else ""
    return f"<details><summary>{text(title)}</summary>{rest}{_trail_table(lines)}</details>"


def _trail_table(lines: Sequence[TrailLine]) -> str:
    if not lines:
        return ""
    rows = "".join(map(_trail_row, lines))
    titles = "<tr><th>Record</th><th>Time</th><th>Since the firing</th><th>What it says</th></tr>"
    return f'<div class="scroll"><table class="trail"><thead>{titles}</thead><tbody>{rows}</tbody></table></div>'


def _trail_row(one: TrailLine) -> str:
    lapsed = "" if one.counts else " class=lapsed"
    action = f"<b>{text(one.action)}</b>" if one.ours else text(one.action)
    return (
        f'<tr{lapsed}><td class="n">{one.seq}</td><td class="t">{text(one.time)}</td>'
        f'<td class="t">{text(one.since)}</td><td>{action} {text(one.says)}</td></tr>'
    )


def proof(report: Report) -> str:
    """What verification found, and how anybody repeats it."""
    found = report.proof
    unchecked = f"; {found.unchecked} in the checkpoint bucket were not fetched" if found.unchecked else ""
    replaced = ", ".join(map(str, found.ignored))
    rows = [
        Fact("Verdict", _verdict(found)),
        Fact("Chain", f"intact from record 1 to {found.intact_until} of {found.head_seq}"),
        Fact("Head", f"record {found.head_seq}, SHA-256 {found.head_hash}"),
        Fact("End", found.end),
        Fact("Signature", found.signature),
        Fact("Versions", found.versions),
        *([Fact("Snapshots", found.snapshots)] if found.snapshots else []),
        Fact("Evidence", f"{found.fetched} objects fetched and hashed{unchecked}"),
        *([Fact("Of replaced operators", f"records {replaced}, which count for nothing")] if replaced else []),
        Fact("Repeat it", f"trimtab audit verify {report.run}"),
    ]
    return section("Proof", facts_list(rows))


def _verdict(found: Proof) -> str:
    if not found.verified:
        return f"NOT verified: {len(found.problems)} problem(s), above"
    left = f", but for {found.unchecked} objects in the checkpoint bucket, which were not fetched"
    return f"verified{left if found.unchecked else ''}"


def _proof_line(found: Proof) -> str:
    if not found.verified:
        return '<span class="bad">The trail is not verified.</span>'
    unchecked = f", {found.unchecked} not fetched" if found.unchecked else ""
    return text(f"Trail verified: {found.records} records, {found.fetched} objects of evidence hashed{unchecked}.")
