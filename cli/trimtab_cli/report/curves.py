"""A chart of a metric: the surviving history and what was abandoned, with the rule's baselines and thresholds. Pure."""

from collections.abc import Iterator, Sequence

from trimtab_policies.backtest.curves import Bucket

from trimtab_cli.curve_chart import Axes, band, line, path, values
from trimtab_cli.report.markup import legend
from trimtab_cli.report.plot import FRAME, figure, mark_badges, mark_lines, shade_boxes
from trimtab_cli.report.views import Chart, Line, Report

_LOGARITHMIC_FROM = 30.0


def chart_figure(chart: Chart, report: Report) -> str:
    """The chart as a figure."""
    axes = _axes(chart, report.last - report.first + 1)
    marks, first = report.marks, report.first
    shapes = [
        shade_boxes(report.shades, axes, first),
        *(_group(one, band(one.curve.buckets, axes)) for one in chart.lines if chart.judged),
        *_grid(axes),
        mark_lines(marks, axes, first),
        *(_group(one, values(one.curve, axes) + _single(one, axes)) for one in chart.lines),
        *(_group(one, _limits(one.curve.buckets, axes)) for one in chart.lines if chart.judged),
        *(_group(one, "".join(_not_finite(one.curve.buckets, axes))) for one in chart.lines),
    ]
    return figure(chart.title, chart.summary, shapes, axes, first=first, badges=mark_badges(marks, axes, first))


def curves_legend(charts: Sequence[Chart], *, flagged: bool, skipped: bool) -> str:
    """What the charts' lines are, as far as any of them has one."""
    lines = [one for chart in charts for one in chart.lines]
    entries = [("surviving", "the history as it survived")]
    if not all(one.surviving for one in lines):
        entries.append(("abandoned", "abandoned by a rollback"))
    if any(bucket.threshold is not None for chart in charts for bucket in _buckets(chart)):
        entries.append(("limit", "threshold (dashed), shaded from the baseline as the engine saw it"))
    if flagged:
        entries.append(("flagged", "flagged steps"))
    if skipped:
        entries.append(("skipped", "steps trained on windows that were skipped later"))
    if any(bucket.non_finite for chart in charts for bucket in _buckets(chart)):
        entries.append(("nonfinite", "not finite"))
    return legend(entries)


def _buckets(chart: Chart) -> Iterator[Bucket]:
    for one in chart.lines:
        yield from one.curve.buckets


def _axes(chart: Chart, steps: int) -> Axes:
    lows = [one.low for one in _buckets(chart) if one.low is not None]
    highs = [one.high for one in _buckets(chart) if one.high is not None]
    low, high = min(lows, default=0.0), max(highs, default=1.0)
    # A threshold far above all values would press them flat; it leaves the chart at the top.
    near = high + (high / 2 - low / 2)
    limits = [value for one in _buckets(chart) for value in (one.threshold, one.center) if value is not None]
    high = max([high, *(limit for limit in limits if limit <= near)])
    low = min([low, *(limit for limit in limits if limit >= low - (high / 2 - low / 2))])
    logarithmic = low > 0 and high / low > _LOGARITHMIC_FROM
    return Axes(steps, low, high if high > low else low + 1, logarithmic, FRAME)


def _group(one: Line, shapes: str) -> str:
    return f'<g class="{"surviving" if one.surviving else "abandoned"}">{shapes}</g>' if shapes else ""


def _grid(axes: Axes) -> Iterator[str]:
    for value in axes.ticks():
        yield f'<path class="grid" d="M0 {axes.y(value):.1f}H{FRAME.width}"/>'


def _limits(buckets: Sequence[Bucket], axes: Axes) -> str:
    center = line("center", path(buckets, lambda one: one.center, axes))
    return center + line("threshold", path(buckets, lambda one: one.threshold, axes))


def _single(one: Line, axes: Axes) -> str:
    """Points without neighbours, of which no line would be seen."""
    buckets = one.curve.buckets
    drawn = [bucket.low is not None for bucket in buckets]
    alone = [
        bucket
        for index, bucket in enumerate(buckets)
        if drawn[index] and not any(drawn[max(0, index - 1) : index]) and not any(drawn[index + 1 : index + 2])
    ]
    dots = "".join(f"M{axes.x(bucket.position):.1f} {axes.y(bucket.high or 0.0):.1f}h0" for bucket in alone)
    return line("dot", dots)


def _not_finite(buckets: Sequence[Bucket], axes: Axes) -> Iterator[str]:
    for bucket in buckets:
        if bucket.non_finite:
            yield (
                f'<path class="nonfinite" d="M{axes.x(bucket.position):.1f} 2V10">'
                f"<title>{bucket.non_finite} not finite from step {bucket.step}</title></path>"
            )
