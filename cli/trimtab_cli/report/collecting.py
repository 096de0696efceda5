"""Metric records, read once, become charts and heat maps: what the collector keeps does not grow with the run. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trimtab_operator.incidents import Latch
from trimtab_policies.backtest.curves import baseline_of
from trimtab_policies.explanation import subject
from trimtab_policies.lineage import Segment
from trimtab_policies.rules import Rule
from trimtab_policies.verdicts import State, Verdict

from trimtab_cli.report.heat import MAPPED, MOST_STEP_COLUMNS, HeatCollector
from trimtab_cli.report.replay import Seen, Watched
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
    latches: tuple[Latch, ...]
    watched: tuple[Watched, ...]
    kept: Mapping[int, Segment]
    last_attempt: int
    ranges: tuple[tuple[int, int], ...] = ()
    last_steps: dict[int, int] = field(default_factory=dict[int, int])
    missing: dict[int, int] = field(default_factory=dict[int, int])
    trained: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict[tuple[int, int], tuple[int, int]])
    records: int = 0
    fired: dict[tuple[int, int], Seen] = field(default_factory=dict[tuple[int, int], Seen])
    """By attempt and step, the records at which something fired."""
    _rules: dict[Watched, Rule] = field(default_factory=dict[Watched, Rule])
    _judged: dict[Watched, dict[Stretch, Decimator]] = field(default_factory=dict[Watched, dict[Stretch, Decimator]])
    _scalars: dict[str, dict[Stretch, Decimator]] = field(default_factory=dict[str, dict[Stretch, Decimator]])
    _heat: dict[tuple[str, int], HeatCollector] = field(default_factory=dict[tuple[str, int], HeatCollector])

    def take(self, attempt: int, seen: Seen) -> None:
        """Note a point of an attempt; those out of the span are left out."""
        point = seen.point
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
        for watched, verdict in seen.verdicts.items():
            if verdict.observed is not None and not verdict.rule.components:
                self._rules[watched] = verdict.rule
                self._of(self._judged.setdefault(watched, {}), stretch).take(
                    step, verdict.observed, baseline_of(verdict), _finite(verdict.threshold)
                )
        if any((attempt, step) == (latch.attempt, latch.fired_step) for latch in self.latches):
            self.fired[attempt, step] = seen
        self._note_windows(surviving, step, point.window)
        self._note_vectors(attempt, seen)

    def charts(self) -> tuple[tuple[Chart, ...], tuple[str, ...]]:
        """What is drawn, the judged metrics first; and what is not, with the reason."""
        charts: list[Chart] = []
        left_out: list[str] = []
        shown: set[str] = set()
        for watched in self.watched:
            if watched not in self._judged or len(charts) >= MOST_CHARTS:
                continue
            rule = self._rules[watched]
            of = f", which is part of {watched.part_of}" if watched.part_of else ""
            charts.append(
                _chart(f"{subject(rule)}, as rule {rule.name}{of} saw it", self._judged[watched], judged=True)
            )
            if rule.reduce is None and rule.metric:
                shown.add(rule.metric)
        for name in self._order():
            if name in shown:
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
        """The per-element vectors around the firings, and of the attempt that went on."""
        fired = {one.attempt for one in self.latches}
        judged = {(one.metric, one.attempt) for one in self.latches}
        found: list[HeatMap] = []
        for (metric, attempt), collector in self._heat.items():
            wanted = (metric, attempt) in judged
            found += [one for one in collector.maps(whole=attempt in fired) if wanted or one.high > one.low]
        return tuple(found)

    def _order(self) -> list[str]:
        """The metrics' names: those that the rules are about, those that most people look at, and the others."""
        first = (*(one.metric for one in self.latches), *FIRST_DRAWN, *sorted(self._scalars))
        return [name for name in dict.fromkeys(first) if name in self._scalars]

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
        for metric in self._mapped(attempt):
            vector = seen.point.vectors.get(metric)
            if vector is None:
                continue
            if (metric, attempt) not in self._heat:
                step = next((one.fired_step for one in self.latches if one.attempt == attempt), 0)
                columns = Columns(self.span.first, self.span.last, MOST_STEP_COLUMNS)
                self._heat[metric, attempt] = HeatCollector(metric, attempt, step, columns)
            collector = self._heat[metric, attempt]
            if seen.point.step == collector.step:
                named = [one.element for one in seen.verdicts.values() if one.metric == metric and _breaches(one)]
                collector.element = next((one for one in named if one is not None), None)
            collector.take(seen.point.step, vector)

    def _mapped(self, attempt: int) -> Iterable[str]:
        """The vectors that are shown: all of the first attempt that broke and of the last, of others the rule's own."""
        own = [one.metric for one in self.latches if one.attempt == attempt]
        shown = attempt in {self.latches[0].attempt, self.last_attempt}
        return dict.fromkeys((*own, *(MAPPED if shown else ())))


def _chart(title: str, lines: Mapping[Stretch, Decimator], *, judged: bool = False) -> Chart:
    several = len(lines) > 1
    drawn = [Line(attempt, surviving, one.curve()) for (attempt, surviving), one in lines.items()]
    said = "; ".join(
        f"attempt {attempt}{'' if surviving else ', abandoned'}: {one.summary()}" if several else one.summary()
        for (attempt, surviving), one in lines.items()
    )
    return Chart(title, said, tuple(sorted(drawn, key=lambda line: line.surviving)), judged)


def _breaches(verdict: Verdict) -> bool:
    return verdict.state is State.FIRING or verdict.streak > 0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
