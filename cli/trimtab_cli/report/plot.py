"""A drawing area that fills any width: lines are stretched, their thickness and all lettering are not. Pure.

The lettering is HTML beside an SVG that gives up its aspect ratio, so that it can be read on a telephone and in print.
"""

from collections.abc import Iterable, Sequence

from trimtab_cli.curve_chart import Axes, Frame
from trimtab_cli.report.markup import text
from trimtab_cli.report.views import Mark, Shade

FRAME = Frame(width=1000, height=240, left=0, right=0, top=16, bottom=6)
_MOST_TICKS = 6
_BADGE_PERCENT = 5.0
_MOST_BADGE_ROWS = 4


def figure(
    title: str, summary: str, shapes: Iterable[str], axes: Axes, *, first: int, badges: str = "", unit: str = "step"
) -> str:
    """The shapes in a frame with a caption and scales; `first` is what stands at the left end."""
    scale = "".join(
        f'<span style="top:{axes.y(value) / FRAME.height:.1%}">{said}</span>' for said, value in _scale(axes).items()
    )
    drawn = "\n".join(shape for shape in shapes if shape)
    return (
        f"<figure><figcaption><b>{text(title)}</b> {text(summary)}</figcaption>"
        f'<div class="frame">{badges}<div class="area">{picture(title, summary, drawn, FRAME.width, FRAME.height)}'
        f'<div class="scale" aria-hidden="true">{scale}</div></div>{steps_scale(axes, first, unit)}</div></figure>'
    )


def picture(title: str, summary: str, shapes: str, width: int, height: int) -> str:
    """An SVG that fills its box, with its words for those who do not see it."""
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{text(title)}: '
        f'{text(summary)}">{shapes}</svg>'
    )


def steps_scale(axes: Axes, first: int, unit: str = "step") -> str:
    """The scale below a drawing."""
    ticks = "".join(
        f'<span style="left:{axes.x(step - first + 1) / FRAME.width:.1%}">{step}</span>'
        for step in round_numbers(first, first + axes.records - 1)
    )
    return f'<div class="steps" aria-hidden="true">{ticks}<em>{text(unit)}</em></div>'


def round_numbers(first: int, last: int) -> Sequence[int]:
    """A few round numbers between two."""
    rough = max(1, (last - first) / _MOST_TICKS)
    size = 10 ** (len(str(int(rough))) - 1)
    stride = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return range(-(-first // stride) * stride, last + 1, stride)


def mark_lines(marks: Sequence[Mark], axes: Axes, first: int) -> str:
    """A vertical line for each mark."""
    lines = (
        f'<path class="mark {one.kind}" d="M{axes.x(one.step - first + 1):.1f} 0V{FRAME.height}">'
        f"<title>{text(f'step {one.step}: {one.text}')}</title></path>"
        for one in marks
    )
    return "".join(lines)


def mark_badges(marks: Sequence[Mark], axes: Axes, first: int) -> str:
    """The marks' numbers above the drawing, in rows where they are close."""
    ends: list[float] = []
    badges: list[str] = []
    for number, one in enumerate(marks, 1):
        left = 100 * axes.x(one.step - first + 1) / FRAME.width
        row = next((row for row, end in enumerate(ends) if left >= end), len(ends))
        row = min(row, _MOST_BADGE_ROWS - 1)
        ends[row : row + 1] = [left + _BADGE_PERCENT]
        badges.append(f'<b class="{one.kind}" style="left:{left:.1f}%;top:{row * 1.25:.2f}em">{number}</b>')
    rows = len(ends) * 1.25
    return (
        f'<div class="badges" aria-hidden="true" style="height:{rows:.2f}em">{"".join(badges)}</div>' if marks else ""
    )


def marks_list(marks: Sequence[Mark]) -> str:
    """What the numbers mean."""
    rows = "".join(
        f'<li><b class="{one.kind}">{number}</b> step {one.step}: {text(one.text)}</li>'
        for number, one in enumerate(marks, 1)
    )
    return f'<ul class="marks">{rows}</ul>' if rows else ""


def shade_boxes(shades: Sequence[Shade], axes: Axes, first: int) -> str:
    """The shaded steps."""
    half = axes.x(2) / 2
    boxes: list[str] = []
    for one in shades:
        left = max(0.0, axes.x(one.first - first + 1) - half)
        right = min(float(FRAME.width), axes.x(one.last - first + 1) + half)
        boxes.append(
            f'<rect class="shade {one.kind}" x="{left:.1f}" y="0" width="{max(1.0, right - left):.1f}" '
            f'height="{FRAME.height}"><title>{text(one.text)}</title></rect>'
        )
    return "".join(boxes)


def _scale(axes: Axes) -> dict[str, float]:
    """The scale's values as they are written, each once."""
    return {_short(value): value for value in axes.ticks()}


def _short(value: float) -> str:
    """Three digits, with `k` for thousands where an exponent would take more room than there is."""
    return f"{value / 1000:.3g}k" if 1e4 <= abs(value) < 1e6 else f"{value:.3g}"
