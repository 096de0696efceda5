"""Attempts and checkpoints over steps: what was trained, what was given up, and where the run went back to. Pure."""

from collections.abc import Iterator, Sequence

from trimtab_cli.curve_chart import Axes
from trimtab_cli.report.markup import legend, text
from trimtab_cli.report.plot import FRAME, mark_badges, picture, steps_scale
from trimtab_cli.report.views import CheckpointView, Lane, Report

_LANE = 48
GLYPHS = {"Committed": "○", "Verified": "◇", "Certified": "◆", "Quarantined": "✕", "Deleting": "–", "Deleted": "–"}
"""Shapes, not colours, tell the states apart."""


def timeline_figure(report: Report) -> str:
    """The time line as a figure; nothing where no record was read."""
    lanes = report.lanes
    if not lanes:
        return ""
    axes = Axes(report.last - report.first + 1, 0.0, 1.0, logarithmic=False, frame=FRAME)
    height = _LANE * len(lanes)
    rows = {one.attempt: index for index, one in enumerate(lanes)}
    shapes = "".join(part for one in lanes for part in _lane(one, rows, axes, report))
    labels = "".join(_label(one, rows, height) for one in lanes)
    glyphs = "".join(_glyph(one, rows, axes, report, height) for one in report.checkpoints if one.attempt in rows)
    summary = "; ".join(_said(one) for one in lanes)
    return (
        f"<figure><figcaption><b>Attempts and checkpoints</b> {text(summary)}</figcaption>"
        f'<div class="frame">{mark_badges(report.marks, axes, report.first)}'
        f'<div class="area lanes" style="height:{3.2 * len(lanes):.1f}rem">'
        f"{picture('Attempts and checkpoints', summary, shapes, FRAME.width, height)}"
        f'<div aria-hidden="true">{labels}{glyphs}</div></div>{steps_scale(axes, report.first)}</div>'
        f"{_legend(report.checkpoints)}</figure>"
    )


def _said(one: Lane) -> str:
    reach = f"attempt {one.attempt}: steps {one.first} to {one.last}"
    if one.survives_to is None:
        return f"{reach}, abandoned"
    return reach if one.survives_to >= one.last else f"{reach}, abandoned behind step {one.survives_to}"


def _lane(one: Lane, rows: dict[int, int], axes: Axes, report: Report) -> Iterator[str]:
    y = rows[one.attempt] * _LANE + _LANE * 0.7
    left, right = (axes.x(step - report.first + 1) for step in (one.first, one.last))
    middle = left if one.survives_to is None else axes.x(max(one.first, one.survives_to) - report.first + 1)
    if middle > left:
        yield f'<path class="lane surviving" d="M{left:.1f} {y:.1f}H{middle:.1f}"/>'
    if right > middle or one.last == one.first:
        kind = "abandoned" if one.survives_to is None or one.survives_to < one.last else "surviving"
        yield f'<path class="lane {kind}" d="M{middle:.1f} {y:.1f}H{max(right, middle + 0.1):.1f}"/>'
    if rows[one.attempt]:
        above = y - _LANE
        yield f'<path class="back" d="M{left:.1f} {above:.1f}V{y:.1f}"/>'


def _label(one: Lane, rows: dict[int, int], height: int) -> str:
    top = rows[one.attempt] * _LANE / height
    return f'<span class="lane" style="top:{top:.1%}">attempt {one.attempt}</span>'


def _glyph(one: CheckpointView, rows: dict[int, int], axes: Axes, report: Report, height: int) -> str:
    if not report.first <= one.step <= report.last:
        return ""
    top = (rows[one.attempt] * _LANE + _LANE * 0.7) / height
    left = axes.x(one.step - report.first + 1) / FRAME.width
    chosen = " chosen" if one.chosen else ""
    title = text(f"checkpoint of step {one.step}, attempt {one.attempt}: {one.state}{', restored' if chosen else ''}")
    glyph = GLYPHS.get(one.state, "○")
    return (
        f'<b class="glyph {text(one.state.lower())}{chosen}" title="{title}" '
        f'style="left:{left:.1%};top:{top:.1%}">{glyph}</b>'
    )


def _legend(checkpoints: Sequence[CheckpointView]) -> str:
    states = {one.state for one in checkpoints}
    shown = "".join(
        f"<li><b>{glyph}</b> {text(state.lower())}</li>" for state, glyph in GLYPHS.items() if state in states
    )
    ring = '<li><b class="ring">&nbsp;</b> chosen by a plan</li>' if any(one.chosen for one in checkpoints) else ""
    lines = legend([("surviving", "the history as it survived"), ("abandoned", "abandoned by a rollback")])
    return f'{lines}<ul class="legend">{shown}{ring}</ul>' if shown else lines
