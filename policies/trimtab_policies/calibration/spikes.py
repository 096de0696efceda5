"""How often each setting of `spike` would have fired on healthy records, and the most sensitive one that is quiet.

All settings of the grid are judged by the engine itself. `forRecords` needs no rules of its own: a rule that fires at
the k-th record in a row is one that fires at the first whose streak reaches k.

The choice, precisely. The settings of one statistic and one `forRecords` are a family, whose sigma is lowered from the
highest while the upper bound of the rate stays within the limit; the first that does not ends the descent. Tests in a
fixed order need no correction for their number (A. N. Angelopoulos et al., "Learn then Test", 2021), and a tenth of the
error is given to each of the ten families, so CONFIDENCE holds for the setting that is chosen, although it was chosen
on the records that it was counted on. The limit is the target, or what so many records can show at best if that is
more. Of the families' settings the most sensitive is that with the smallest excursion that fires: sigma times
`forRecords`, at equal size the shorter one.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Literal

import msgspec

from trimtab_policies.calibration.poisson import upper_bound
from trimtab_policies.policy import AcceptedPolicy, parse_policy
from trimtab_policies.verdicts import Reason, State, Verdict

METRICS = ("loss", "grad_norm")
STATISTICS: tuple[Literal["Mean", "Median"], ...] = ("Mean", "Median")
SIGMAS: tuple[int, ...] = (10, 9, 8, 7, 6, 5, 4, 3)
FOR_RECORDS: tuple[int, ...] = (1, 2, 3, 4, 5)
AFTER_STEPS = 200
FEWEST_RECORDS = 1_000
"""Over fewer judged records nothing is proposed."""

CONFIDENCE = 0.95
_FAMILY_CONFIDENCE = 1 - (1 - CONFIDENCE) / (len(STATISTICS) * len(FOR_RECORDS))
_PER = 10_000
_ROUNDING = 1 + 1e-9
_UNJUDGED = frozenset({Reason.NOT_YET_ARMED, Reason.WARMING_UP})


class Setting(msgspec.Struct, frozen=True):
    """One way to set `spike` and `forRecords`."""

    statistic: Literal["Mean", "Median"]
    sigma: int
    for_records: int

    @property
    def excursion(self) -> int:
        """The smallest excursion that fires, in deviations times records."""
        return self.sigma * self.for_records


class Firings(msgspec.Struct, frozen=True):
    """So many firings in so many records that were judged, which stand for so many steps."""

    events: int = 0
    records: int = 0
    steps: int = 0

    def __add__(self, other: "Firings") -> "Firings":
        return Firings(self.events + other.events, self.records + other.records, self.steps + other.steps)

    @property
    def rate(self) -> float:
        """Firings per 10,000 steps, as seen."""
        return _PER * self.events / self.steps if self.steps else 0.0

    @property
    def bound(self) -> float:
        """The highest rate per 10,000 steps that the count does not contradict, corrected for the choice."""
        return _PER * upper_bound(self.events, _FAMILY_CONFIDENCE) / max(self.steps, 1)


Counts = Mapping[Setting, Firings]


class Candidate(msgspec.Struct, frozen=True):
    """A family's most sensitive setting within the limit, and what was counted of it."""

    setting: Setting
    firings: Firings


class SpikeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The setting proposed for a metric.

    `supported` says whether its bound lies within the target, `steps_missing` how many more healthy steps without a
    firing would show it if not. `by_log` has the firings of the setting in each log.
    """

    metric: str
    setting: Setting
    firings: Firings
    target: float
    supported: bool
    steps_missing: int
    candidates: tuple[Candidate, ...]
    by_log: tuple[Firings, ...]


def grid_policy() -> AcceptedPolicy:
    """A policy that judges by every statistic and sigma, for every metric, in the order of `_GRID`."""
    rules = [
        {
            "name": f"{metric}-{statistic}-{sigma}".lower().replace("_", "-"),
            "metric": metric,
            "spike": {"baseline": {"statistic": statistic}, "sigma": sigma},
            "afterSteps": AFTER_STEPS,
            "action": "Record",
        }
        for metric, statistic, sigma in _GRID
    ]
    spec = parse_policy({"rules": rules})
    return AcceptedPolicy.of(spec, kind="GuardPolicy", namespace=None, name="grid", uid="grid", generation=1)


_GRID = tuple(product(METRICS, STATISTICS, SIGMAS))


class FiringCounter:
    """Counts the firings of every setting in the verdicts of one log.

    A record stands for the steps since the one before it; behind a gap, and where an attempt begins, for one.
    """

    def __init__(self) -> None:
        self._last = (0, 0)
        self._streaks = [0] * len(_GRID)
        self._records = [0] * len(_GRID)
        self._steps = [0] * len(_GRID)
        self._events = [[0] * (FOR_RECORDS[-1] + 1) for _ in _GRID]

    def take(self, verdicts: Sequence[Verdict]) -> None:
        """Take the grid policy's verdicts on the next record."""
        attempt, step = verdicts[0].attempt, verdicts[0].step
        steps = step - self._last[1] if attempt == self._last[0] else 1
        self._last = attempt, step
        for index, verdict in enumerate(verdicts):
            finding = verdict.finding
            if finding.state is State.NO_DATA or finding.state is State.ERROR or finding.reason in _UNJUDGED:
                continue
            self._records[index] += 1
            self._steps[index] += steps
            streak, before = finding.streak, self._streaks[index]
            if streak > before:
                events = self._events[index]
                for length in range(before + 1, min(streak, FOR_RECORDS[-1]) + 1):
                    events[length] += 1
            self._streaks[index] = streak

    def counts(self, metric: str) -> dict[Setting, Firings]:
        """What was counted for one metric; empty where it was never judged."""
        return {
            Setting(statistic, sigma, length): Firings(
                self._events[index][length], self._records[index], self._steps[index]
            )
            for index, (judged, statistic, sigma) in enumerate(_GRID)
            if judged == metric and self._records[index]
            for length in FOR_RECORDS
        }


def pooled(logs: Iterable[Counts]) -> dict[Setting, Firings]:
    """The counts of all logs together."""
    total: dict[Setting, Firings] = {}
    for counts in logs:
        for setting, firings in counts.items():
            total[setting] = total.get(setting, Firings()) + firings
    return total


def choose(metric: str, logs: Sequence[Counts], target: float) -> SpikeChoice | str:
    """The most sensitive setting that fires at most `target` times per 10,000 steps, or why there is none."""
    total = pooled(logs)
    judged = min(total.values(), key=lambda firings: firings.records, default=Firings())
    records = judged.records
    if not records:
        return (
            f"{metric}: no record could be judged: either it is absent (--map {metric}=COLUMN names its column), "
            f"or the logs end before step {AFTER_STEPS} or before a baseline has filled"
        )
    if records < FEWEST_RECORDS:
        return (
            f"{metric}: {records:,} records could be judged and at least {FEWEST_RECORDS:,} are needed "
            f"(the first {AFTER_STEPS} steps and a filling baseline do not count)"
        )
    limit = max(target, Firings(0, records, judged.steps).bound)
    families = product(STATISTICS, FOR_RECORDS)
    candidates = [found for family in families if (found := _descend(total, *family, limit)) is not None]
    if not candidates:
        return f"{metric}: every setting up to {SIGMAS[0]} deviations and {FOR_RECORDS[-1]} records fires too often"
    best = min(candidates, key=lambda one: (one.setting.excursion, one.setting.for_records))
    supported = best.firings.bound <= target * _ROUNDING
    needed = _PER * upper_bound(0, _FAMILY_CONFIDENCE) / target
    return SpikeChoice(
        metric=metric,
        setting=best.setting,
        firings=best.firings,
        target=target,
        supported=supported,
        steps_missing=0 if supported else max(1, round(needed) - best.firings.steps),
        candidates=tuple(candidates),
        by_log=tuple(counts.get(best.setting, Firings()) for counts in logs),
    )


def _descend(total: Counts, statistic: Literal["Mean", "Median"], length: int, limit: float) -> Candidate | None:
    found: Candidate | None = None
    for sigma in SIGMAS:
        setting = Setting(statistic, sigma, length)
        firings = total[setting]
        if firings.bound > limit * _ROUNDING:
            break
        found = Candidate(setting, firings)
    return found
