"""A heat map: cells of equal colour as one shape, so that a grid of thousands stays small. Pure."""

import math
from collections.abc import Iterator

from trimtab_cli.report.markup import text
from trimtab_cli.report.plot import picture
from trimtab_cli.report.views import HeatMap

COLOURS = 8
"""Colours of the scale, from the lowest value to the highest."""
_NOT_FINITE = -1


def heat_figure(heat: HeatMap) -> str:
    """The map as a figure with its scale."""
    rows, columns = len(heat.values), len(heat.values[0])
    shapes: dict[int, list[str]] = {}
    for row, values in enumerate(heat.values):
        for column, width, colour in _runs(heat, values):
            shapes.setdefault(colour, []).append(f"M{column} {row}h{width}v1h-{width}z")
    drawn = "".join(
        f'<path class="{"nan" if colour == _NOT_FINITE else f"c{colour}"}" d="{"".join(parts)}"/>'
        for colour, parts in sorted(shapes.items())
    )
    marked = "".join(
        f'<rect class="{kind}" x="{column}" y="{row}" width="1" height="1"/>'
        for row, column in heat.marked
        for kind in ("ring", "ring inner")
    )
    down, first_row, last_row = heat.rows
    across, first_column, last_column = heat.columns
    height = min(22.0, max(4.0, rows * 0.9))
    return (
        f"<figure><figcaption><b>{text(heat.title)}</b> {text(heat.summary)}</figcaption>"
        f'<div class="frame"><div class="area heat" style="height:{height:.1f}rem">'
        f"{picture(heat.title, heat.summary, drawn + marked, columns, rows)}"
        f'<div class="scale ends" aria-hidden="true"><span>{text(down)} {first_row}</span><span>{last_row}</span></div>'
        f'</div><div class="steps ends" aria-hidden="true"><span>{text(across)} {first_column}</span>'
        f"<span>{last_column}</span></div></div>{_key(heat, not_finite=_NOT_FINITE in shapes)}</figure>"
    )


def _runs(heat: HeatMap, values: tuple[float | None, ...]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring cells of one colour in a row: where they begin, how many, and the colour."""
    start, colour = 0, None
    for column, value in enumerate((*values, None)):
        here = _colour(heat, value) if column < len(values) else None
        if here != colour:
            if colour is not None:
                yield start, column - start, colour
            start, colour = column, here


def _colour(heat: HeatMap, value: float | None) -> int | None:
    if value is None:
        return None
    if not math.isfinite(value):
        return _NOT_FINITE
    if heat.high <= heat.low:
        return 0
    return min(COLOURS - 1, int((value - heat.low) / (heat.high - heat.low) * COLOURS))


def _key(heat: HeatMap, *, not_finite: bool) -> str:
    swatches = "".join(f'<i class="c{colour}"></i>' for colour in range(COLOURS if heat.high > heat.low else 1))
    rest = f" {heat.high:.4g}" if heat.high > heat.low else ""
    nan = ' <i class="nan"></i> not finite' if not_finite else ""
    return f'<p class="key">{heat.low:.4g} {swatches}{rest}{nan} <i class="framed"></i> the element named above</p>'
