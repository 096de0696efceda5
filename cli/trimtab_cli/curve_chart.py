"""One chart of a backtest as SVG: what the rules on one metric saw, their baselines and thresholds, and marks. Pure.

Positions, not steps, run along the axis: where a log goes back to an earlier step, both stretches are drawn. Whatever
comes from a log or a policy is escaped.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from trimtab_policies.backtest.curves import Bucket, Curve
from trimtab_policies.backtest.events import Event
from trimtab_policies.backtest.report import Boundary

WIDTH, HEIGHT = 960, 240
_LOGARITHMIC_FROM = 30.0
_TICKS = 6
_FIRST_DESCENT = 20
_MOST_MARKS = 400

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """A drawing's size and what its edges leave free, in pixels."""

    width: int = WIDTH
    height: int = HEIGHT
    left: int = 64
    right: int = 12
    top: int = 18
    bottom: int = 24


_FRAME = Frame()


@dataclass(frozen=True, slots=True)
class Axes:
    """From positions and values to pixels; `logarithmic` where all values are positive and far apart."""

    records: int
    low: float
    high: float
    logarithmic: bool
    frame: Frame = _FRAME

    def x(self, position: float) -> float:
        """The pixel of a position, counted from 1."""
        frame = self.frame
        return frame.left + (position - 1) / max(1, self.records - 1) * (frame.width - frame.left - frame.right)

    def y(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn at the edge."""
        low, high, at = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        share = (at - low) / (high - low) if high > low else 0.5
        frame = self.frame
        return frame.height - frame.bottom - min(1.0, max(0.0, share)) * (frame.height - frame.top - frame.bottom)

    def ticks(self) -> Iterator[float]:
        """Values to write beside the axis."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        for index in range(5):
            at = low + index / 4 * (high - low)
            yield math.exp(at) if self.logarithmic else 2 * at

    def _scaled(self, value: float) -> float:
        # Halved, so that the distance of two huge values of opposite sign is still a number.
        return math.log(max(value, self.low)) if self.logarithmic else value / 2


def chart(curves: Sequence[Curve], events: Sequence[Event], boundaries: Sequence[Boundary], records: int) -> str:
    """The chart of curves that show the same values, with the events of their rules."""
    axes = _axes(curves, records)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        *(band(curve.buckets, axes) for curve in curves),
        *_frame(curves[0].buckets, axes),
        *(_boundary(one, axes) for one in boundaries[:_MOST_MARKS]),
        values(curves[0], axes),
        *(line("threshold", path(curve.buckets, lambda one: one.threshold, axes)) for curve in curves),
        *_non_finite(curves[0], axes),
        *(_mark(event, axes) for event in events[:_MOST_MARKS]),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def _axes(curves: Sequence[Curve], records: int) -> Axes:
    buckets = curves[0].buckets
    low = min((one.low for one in buckets if one.low is not None), default=0.0)
    # A run's first descent would leave no room for all that follows: it may leave the chart at the top.
    later = buckets[len(buckets) // _FIRST_DESCENT :]
    high = max((one.high for one in later if one.high is not None), default=low + 1.0)
    near = high + (high / 2 - low / 2)
    limits = [one.threshold for curve in curves for one in curve.buckets if one.threshold is not None]
    high = max([high, *(limit for limit in limits if limit <= near)])
    logarithmic = low > 0 and high / low > _LOGARITHMIC_FROM
    return Axes(records, low, high if high > low else low + 1, logarithmic)


def values(curve: Curve, axes: Axes) -> str:
    """The values: a line, or where several records share a bucket the area from their lowest to their highest."""
    if curve.width == 1:
        return line("value", path(curve.buckets, lambda one: one.low, axes))
    shapes: list[str] = []
    for stretch in stretches(curve.buckets, lambda one: None if one.high is None else (one.low or 0.0, one.high)):
        there = [(axes.x(bucket.position), axes.y(high)) for bucket, (_, high) in stretch]
        back = [(axes.x(bucket.position), axes.y(low)) for bucket, (low, _) in reversed(stretch)]
        shapes.append(f"M{points([*there, *back])}Z")
    return f'<path class="value range" d="{"".join(shapes)}"/>' if shapes else ""


def band(buckets: Sequence[Bucket], axes: Axes) -> str:
    """The area from the baseline to the threshold."""

    def edges(one: Bucket) -> tuple[float, float] | None:
        return None if one.center is None or one.threshold is None else (one.center, one.threshold)

    shapes: list[str] = []
    for stretch in stretches(buckets, edges):
        there = [(axes.x(bucket.position), axes.y(threshold)) for bucket, (_, threshold) in stretch]
        back = [(axes.x(bucket.position), axes.y(center)) for bucket, (center, _) in reversed(stretch)]
        shapes.append(f"M{points([*there, *back])}Z")
    return f'<path class="band" d="{"".join(shapes)}"/>' if shapes else ""


def path(buckets: Sequence[Bucket], value: Callable[[Bucket], float | None], axes: Axes) -> str:
    """The path through one value of each bucket, broken where there is none."""
    shapes: list[str] = []
    for stretch in stretches(buckets, lambda one: None if (found := value(one)) is None else (found, found)):
        shapes.append(f"M{points((axes.x(bucket.position), axes.y(low)) for bucket, (low, _) in stretch)}")
    return "".join(shapes)


def line(kind: str, shape: str) -> str:
    """A path of a class; nothing where there is nothing to draw."""
    return f'<path class="{kind}" d="{shape}"/>' if shape else ""


def stretches(
    buckets: Iterable[Bucket], edges: Callable[[Bucket], tuple[float, float] | None]
) -> Iterator[list[tuple[Bucket, tuple[float, float]]]]:
    """Rows of neighbouring buckets that have something to draw."""
    row: list[tuple[Bucket, tuple[float, float]]] = []
    for bucket in buckets:
        found = edges(bucket)
        if found is not None:
            row.append((bucket, found))
        elif row:
            yield row
            row = []
    if row:
        yield row


def _frame(buckets: Sequence[Bucket], axes: Axes) -> Iterator[str]:
    for value in axes.ticks():
        y = axes.y(value)
        yield f'<path class="grid" d="M{_FRAME.left} {y:.1f}H{WIDTH - _FRAME.right}"/>'
        yield f'<text class="tick" x="{_FRAME.left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    stride = max(1, len(buckets) // _TICKS)
    for bucket in buckets[::stride]:
        x = axes.x(bucket.position)
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{bucket.step}</text>'


def _boundary(one: Boundary, axes: Axes) -> str:
    if one.position <= 1:
        return ""
    x = axes.x(one.position)
    title = escape(f"{one.kind} begins at step {one.step} (line {one.line})")
    return f'<path class="boundary" d="M{x:.1f} {_FRAME.top}V{HEIGHT - _FRAME.bottom}"><title>{title}</title></path>'


def _non_finite(curve: Curve, axes: Axes) -> Iterator[str]:
    row: list[Bucket] = []
    for bucket in (*curve.buckets, None):
        if bucket is not None and bucket.non_finite:
            row.append(bucket)
        elif row:
            first, last = axes.x(row[0].position), axes.x(row[-1].position)
            count = sum(one.non_finite for one in row)
            title = f"{count} records not finite from step {row[0].step}"
            yield f'<rect class="nonfinite" x="{first:.1f}" y="4" width="{max(2.0, last - first):.1f}" height="8">'
            yield f"<title>{title}</title></rect>"
            row = []


def _mark(event: Event, axes: Axes) -> str:
    x, last = axes.x(event.position), axes.x(event.last_position)
    kind = event.action.value.lower()
    title = escape(f"{event.action.value} by {event.rule} at step {event.step}: {event.sentence}")
    base = HEIGHT - _FRAME.bottom
    return (
        f'<g class="mark {kind}"><title>{title}</title><rect x="{x:.1f}" y="{_FRAME.top}" '
        f'width="{max(1.0, last - x):.1f}" height="{base - _FRAME.top}"/>'
        f'<circle cx="{x:.1f}" cy="{_FRAME.top}" r="4"/></g>'
    )


def points(places: Iterable[Point]) -> str:
    """Points of a path."""
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
