"""Metric records, read once, become charts and heat maps: what the collector keeps does not grow with the run. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab_operator.incidents import Latch
from trimtab_policies.backtest.curves import baseline_of
from trimtab_policies.explanation import subject
from trimtab_policies.lineage import Segment
from trimtab_policies.rules import Rule

from trimtab_cli.report.heat import MAPPED, MOST_STEP_COLUMNS, HeatCollector
from trimtab_cli.report.replay import Seen
from trimtab_cli.report.series import Columns, Decimator
from trimtab_cli.report.span import Span
from trimtab_cli.report.views import Chart, HeatMap, Line

FIRST_DRAWN = (
    "loss",
    "grad_norm",
    "loss_max",
    "lr",
    "update_rms",
    "clip_ratio",
    "nonfinite",
    "skipped_update",
    "replica_mismatch",
    "z_loss",
    "router_entropy",
    "tokens_per_second",
)
MOST_CHARTS = 12
_MOST_METRICS = 100

Stretch = tuple[int, bool]
"""An attempt, and whether the values belong to the surviving history."""


@dataclass
class Collector:
    """Follows all attempts of an incident, one after the other. `ranges` are the windows that were skipped for it."""

    span: Span
    latch: Latch
    kept: Mapping[int, Segment]
    last_attempt: int
    ranges: tuple[tuple[int, int], ...] = ()
    last_steps: dict[int, int] = field(default_factory=dict[int, int])
    missing: dict[int, int] = field(default_factory=dict[int, int])
    trained: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict[tuple[int, int], tuple[int, int]])
    records: int = 0
    fired: Seen | None = None
    _rule: Rule | None = None
    _judged: dict[Stretch, Decimator] = field(default_factory=dict[Stretch, Decimator])
    _scalars: dict[str, dict[Stretch, Decimator]] = field(default_factory=dict[str, dict[Stretch, Decimator]])
    _heat: dict[tuple[str, int], HeatCollector] = field(default_factory=dict[tuple[str, int], HeatCollector])

    def take(self, attempt: int, seen: Seen) -> None:
        """Note a point of an attempt; those out of the span are left out."""
        point, verdict = seen.point, seen.verdict
        step = point.step
        if not self.span.first <= step <= self.span.last:
            return
        before = self.last_steps.get(attempt)
        if before is not None and step > before + 1:
            self.missing[attempt] = self.missing.get(attempt, 0) + step - before - 1
        self.last_steps[attempt] = step
        self.records += 1
        segment = self.kept.get(attempt)
        surviving = segment is not None and (segment.last is None or step <= segment.last)
        stretch = attempt, surviving
        for name, value in point.scalars.items():
            if name in self._scalars or len(self._scalars) < _MOST_METRICS:
                self._of(self._scalars.setdefault(name, {}), stretch).take(step, value)
        if verdict is not None and verdict.observed is not None:
            self._rule = verdict.rule
            self._of(self._judged, stretch).take(
                step, verdict.observed, baseline_of(verdict), _finite(verdict.threshold)
            )
        if (attempt, step) == (self.latch.attempt, self.latch.fired_step):
            self.fired = seen
        self._note_windows(surviving, step, point.window)
        self._note_vectors(attempt, seen)

    def charts(self) -> tuple[tuple[Chart, ...], tuple[str, ...]]:
        """What is drawn, the judged metric first; and what is not, with the reason."""
        charts: list[Chart] = []
        left_out: list[str] = []
        if self._judged and self._rule is not None:
            name = f"{subject(self._rule) or self.latch.metric}, as rule {self.latch.rule} saw it"
            charts.append(_chart(name, self._judged, judged=True))
        plain = self._rule is not None and self._rule.reduce is None and bool(self._judged)
        order = [name for name in FIRST_DRAWN if name in self._scalars]
        order += sorted(self._scalars.keys() - set(order))
        for name in order:
            if plain and name == self.latch.metric:
                continue
            lines = self._scalars[name]
            constants = {one.constant for one in lines.values()}
            if len(constants) == 1 and (constant := constants.pop()) is not None:
                left_out.append(f"{name} is {constant:.6g} in every record shown")
            elif len(charts) >= MOST_CHARTS:
                left_out.append(f"{name} is not drawn: the page has {MOST_CHARTS} charts at most")
            else:
                charts.append(_chart(name, lines))
        return tuple(charts), tuple(left_out)

    def heat_maps(self) -> tuple[HeatMap, ...]:
        """The per-head vectors around the firing, and of the attempt that went on."""
        found: list[HeatMap] = []
        for (_, attempt), collector in self._heat.items():
            here = attempt == self.latch.attempt
            found += [one for one in collector.maps(whole=here) if here or one.high > one.low]
        return tuple(found)

    def _of(self, lines: dict[Stretch, Decimator], stretch: Stretch) -> Decimator:
        if stretch not in lines:
            lines[stretch] = Decimator(Columns(self.span.first, self.span.last))
        return lines[stretch]

    def _note_windows(self, surviving: bool, step: int, window: int | None) -> None:
        if window is None or surviving:
            return
        for one in self.ranges:
            if one[0] <= window <= one[1]:
                first, last = self.trained.get(one, (step, step))
                self.trained[one] = min(first, step), max(last, step)

    def _note_vectors(self, attempt: int, seen: Seen) -> None:
        if attempt not in {self.latch.attempt, self.last_attempt}:
            return
        for metric in MAPPED:
            vector = seen.point.vectors.get(metric)
            if vector is None:
                continue
            if (metric, attempt) not in self._heat:
                columns = Columns(self.span.first, self.span.last, MOST_STEP_COLUMNS)
                self._heat[metric, attempt] = HeatCollector(metric, attempt, self.latch.fired_step, columns)
            collector = self._heat[metric, attempt]
            verdict = seen.verdict
            here = (attempt, seen.point.step) == (self.latch.attempt, self.latch.fired_step)
            if here and verdict is not None and verdict.metric == metric:
                collector.element = verdict.element
            collector.take(seen.point.step, vector)


def _chart(title: str, lines: Mapping[Stretch, Decimator], *, judged: bool = False) -> Chart:
    several = len(lines) > 1
    drawn = [Line(attempt, surviving, one.curve()) for (attempt, surviving), one in lines.items()]
    said = "; ".join(
        f"attempt {attempt}{'' if surviving else ', abandoned'}: {one.summary()}" if several else one.summary()
        for (attempt, surviving), one in lines.items()
    )
    return Chart(title, said, tuple(sorted(drawn, key=lambda line: line.surviving)), judged)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
