"""The losses of a forward-only probe: control, flagged and bad windows against the threshold. Pure."""

import math

from trimtab_cli.curve_chart import Axes
from trimtab_cli.report.markup import legend
from trimtab_cli.report.plot import FRAME, figure
from trimtab_cli.report.views import ProbeView

_KINDS = {
    "control": "control windows",
    "healthy": "windows measured healthy",
    "flagged": "flagged by the rule, measured healthy",
    "bad": "measured bad",
}
_LOGARITHMIC_FROM = 30.0


def probe_figure(probe: ProbeView) -> str:
    """The probe as a figure; nothing where nothing was measured."""
    if not probe.losses:
        return ""
    first, last = probe.losses[0][0], probe.losses[-1][0]
    axes = _axes(probe, last - first + 1)
    points: dict[str, list[str]] = {}
    not_finite: list[str] = []
    for window, loss, kind in probe.losses:
        x = axes.x(window - first + 1)
        if loss is None or not math.isfinite(loss):
            not_finite.append(f"M{x:.1f} 2V10")
        else:
            points.setdefault(kind, []).append(f"M{x:.1f} {axes.y(loss):.1f}h0")
    shapes = [
        _skip(probe, axes, first),
        *(f'<path class="grid" d="M0 {axes.y(value):.1f}H{FRAME.width}"/>' for value in axes.ticks()),
        _level("center", probe.mean, axes),
        _level("threshold", probe.threshold, axes),
        *(f'<path class="point {kind}" d="{"".join(points[kind])}"/>' for kind in _KINDS if kind in points),
        # A smaller point in the page's colour on top of it leaves a ring.
        f'<path class="point hole" d="{"".join(points["control"])}"/>' if "control" in points else "",
        f'<path class="nonfinite" d="{"".join(not_finite)}"/>' if not_finite else "",
    ]
    entries = [(f"point {kind}", said) for kind, said in _KINDS.items() if kind in points]
    entries += [("limit", "threshold (dashed); the control's mean (thin)")] if probe.threshold is not None else []
    entries += [("skipped", "windows that are skipped")] if probe.skip else []
    entries += [("nonfinite", "not finite")] if not_finite else []
    return figure(probe.title, probe.summary, shapes, axes, first=first, unit="window") + legend(entries)


def _axes(probe: ProbeView, windows: int) -> Axes:
    losses = [loss for _, loss, _ in probe.losses if loss is not None and math.isfinite(loss)]
    known = [*losses, *(value for value in (probe.mean, probe.threshold) if value is not None)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    logarithmic = low > 0 and high / low > _LOGARITHMIC_FROM
    return Axes(windows, low, high if high > low else low + 1, logarithmic, FRAME)


def _level(kind: str, value: float | None, axes: Axes) -> str:
    return "" if value is None else f'<path class="{kind}" d="M0 {axes.y(value):.1f}H{FRAME.width}"/>'


def _skip(probe: ProbeView, axes: Axes, first: int) -> str:
    if probe.skip is None:
        return ""
    half = axes.x(2) / 2
    left = max(0.0, axes.x(probe.skip[0] - first + 1) - half)
    right = min(float(FRAME.width), axes.x(probe.skip[1] - first + 1) + half)
    if right <= left:
        return ""
    title = f"windows {probe.skip[0]} to {probe.skip[1]} are skipped"
    return (
        f'<rect class="shade skipped" x="{left:.1f}" y="0" width="{right - left:.1f}" height="{FRAME.height}">'
        f"<title>{title}</title></rect>"
    )
