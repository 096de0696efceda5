"""The rules' semantics written down as plainly as they can be: every verdict is worked out from the origin, from lists.

Nothing here is fast and nothing is shared with the engine but the models of a policy and the words for states and
reasons. The engine's verdicts are compared with these on random records.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.models import seconds
from trimtab_policies.reach import reach
from trimtab_policies.rules import NOISE_RECORDS, Divergence, OnNoData, Reduce, Rule, Spike

FEWEST_DISTANCES = 20


@dataclass(frozen=True)
class SlowVerdict:
    """What a rule says about a record."""

    state: str
    reason: str
    observed: float | None = None
    element: tuple[int, ...] | None = None
    threshold: float | None = None
    streak: int = 0
    first_bad: int | None = None
    pauses: bool = False
    """Fires because the metric is absent, and asks for no more than a pause."""


@dataclass(frozen=True)
class Assessed:
    """One value against its detector."""

    breach: bool
    threshold: float | None
    warming_up: bool = False
    level_shift: bool = False


NearTie = Callable[[float, float], None]
"""Told of each comparison of a value with a threshold that comes out of arithmetic."""


def slow_verdicts(
    rules: Sequence[Rule],
    records: Sequence[MetricRecord],
    *,
    attempt: int,
    start_step: int = 0,
    resumed: Sequence[int] = (),
    since: int = 0,
    near_tie: NearTie = lambda value, threshold: None,
) -> list[dict[str, SlowVerdict]]:
    """Each rule's verdict on each record; a record's time is when it came."""
    found: list[dict[str, SlowVerdict]] = [{} for _ in records]
    for rule in sorted(rules, key=lambda one: bool(one.components)):
        for number in range(1, len(records) + 1):
            seen = records[origin_of(number, reach(rule)) - 1 : number]
            stretch = Stretch(attempt, start_step, resumed, since)
            if rule.stale is not None:
                verdict = stale(rule, records[:number], stretch)
            elif rule.components:
                verdicts = found[origin_of(number, reach(rule)) - 1 : number]
                verdict = composite(rule, seen, [[one[name] for name in rule.components] for one in verdicts], stretch)
            else:
                verdict = valued(rule, seen, stretch, near_tie)
                overdue = absent_too_long(rule, records[:number], stretch) if verdict.state != "Firing" else None
                verdict = overdue or verdict
            found[number - 1][rule.name] = verdict
    return found


def origin_of(number: int, span: int) -> int:
    """The record, counted from 1, at which the judgement of record `number` begins."""
    return max(1, ((number - 1) // span - 1) * span + 1)


@dataclass(frozen=True)
class Stretch:
    """Where the present attempt began, after which steps it went on, and since which the policy is in force."""

    attempt: int
    start_step: int
    resumed: Sequence[int]
    since: int

    def begins_at(self, records: Sequence[MetricRecord], index: int) -> bool:
        """Whether streaks begin anew with this record: a new attempt, or a run that goes on."""
        record = records[index]
        if index == 0 or record.attempt != records[index - 1].attempt:
            return True
        return record.attempt == self.attempt and (record.step - 1 in self.resumed or record.step == self.since)

    def pending(self, rule: Rule, record: MetricRecord) -> str | None:
        """Why a rule is not armed."""
        if rule.after_steps < record.step < self.since and record.attempt == self.attempt:
            return "NotYetInForce"
        return self.held_back(rule, record)

    def held_back(self, rule: Rule, record: MetricRecord) -> str | None:
        """Why a rule waits; a policy need not see a record before it may find that none comes."""
        if record.step <= rule.after_steps:
            return "NotYetArmed"
        if record.attempt != self.attempt:
            return None
        began = max([self.start_step, *(step for step in self.resumed if step < record.step)])
        return "InGrace" if record.step <= began + rule.grace_steps and rule.grace_steps else None


def valued(rule: Rule, records: Sequence[MetricRecord], stretch: Stretch, near_tie: NearTie) -> SlowVerdict:
    """A rule with a detector that looks at values, on the last of the records."""
    observed = observations(rule, records, stretch)
    last = observed[-1]
    if isinstance(last, str):
        return SlowVerdict("Error", "MetricMismatch")
    if last is None:
        return SlowVerdict("NoData", "MetricAbsent")
    places = [index for index, one in enumerate(observed) if one is not None and not isinstance(one, str)]
    begins = [
        any(stretch.begins_at(records, between) for between in range(before + 1, place + 1))
        for before, place in zip([-1, *places], places, strict=False)
    ]
    values = [one[0] for one in observed if one is not None and not isinstance(one, str)]
    every = assess(rule, values, begins, near_tie)
    assessed = every[-1]
    counted: list[int | None] = []
    firsts: list[int | None] = []
    for index, one, begin in zip(places, every, begins, strict=True):
        if begin or one.level_shift:
            counted, firsts = [], []
        armed = stretch.pending(rule, records[index]) is None
        counted.append(records[index].step if one.breach and armed else None)
        firsts.append(first_of(rule, counted, firsts))
    pending = stretch.pending(rule, records[-1])
    return concluded(rule, last, assessed, breaches(rule, counted), firsts[-1], pending)


def concluded(
    rule: Rule,
    last: tuple[float, tuple[int, ...] | None],
    assessed: Assessed,
    row: Sequence[int],
    first: int | None,
    pending: str | None,
) -> SlowVerdict:
    """The words for the last observation, given the breaches that count."""
    said = SlowVerdict("Pending", pending or "", last[0], last[1], assessed.threshold)
    if pending is not None:
        return said
    if not assessed.breach and len(row) < rule.for_records:
        if assessed.level_shift:
            return replace(said, state="Healthy", reason="LevelShift")
        if assessed.warming_up:
            return replace(said, reason="WarmingUp")
        return replace(said, state="Healthy", reason="WithinLimits")
    if len(row) < rule.for_records:
        return replace(said, reason="Breaching", streak=len(row), first_bad=first)
    named = "OutOfRange" if rule.range else "Spike" if rule.spike else "Divergence"
    reason = named if math.isfinite(last[0]) else "NonFinite"
    return replace(said, state="Firing", reason=reason, streak=len(row), first_bad=first)


def breaches(rule: Rule, counted: Sequence[int | None]) -> list[int]:
    """The steps of the breaching observations that count at the last one."""
    if rule.within_records is not None:
        return [step for step in counted[-rule.within_records :] if step is not None]
    row: list[int] = []
    for step in reversed(counted):
        if step is None:
            break
        row.insert(0, step)
    return row


def first_of(rule: Rule, counted: Sequence[int | None], firsts: Sequence[int | None]) -> int | None:
    """The first bad step: while a rule fires it stays the one with which it began to."""
    row = breaches(rule, counted)
    fired = len(breaches(rule, counted[:-1])) >= rule.for_records and bool(firsts)
    if fired and len(row) >= rule.for_records:
        return firsts[-1]
    return row[0] if row else None


def observations(
    rule: Rule, records: Sequence[MetricRecord], stretch: Stretch
) -> list[tuple[float, tuple[int, ...] | None] | str | None]:
    """The rule's value in each record; None where the metric is absent, a word where it is of the other kind."""
    found: list[tuple[float, tuple[int, ...] | None] | str | None] = []
    earlier: list[Vector] = []
    metric = rule.metric or ""
    for index, record in enumerate(records):
        if stretch.begins_at(records, index):
            earlier = []
        scalar, vector = record.scalars.get(metric), record.vectors.get(metric)
        other = vector if rule.reduce is None else scalar
        if other is not None:
            found.append("mismatch")
        elif rule.reduce is None:
            found.append(None if scalar is None else (scalar, None))
        elif vector is None:
            found.append(None)
        else:
            bad = [offset for offset, one in enumerate(vector.values()) if not math.isfinite(one)]
            if bad:
                earlier = []
                found.append((vector.values()[bad[0]], vector.index(bad[0])))
                continue
            if earlier and earlier[-1].shape != vector.shape:
                earlier = []
            earlier.append(vector)
            found.append(reduced(rule.reduce, earlier))
    return found


def reduced(reduce: Reduce, vectors: Sequence[Vector]) -> tuple[float, tuple[int, ...] | None]:
    """The last of the vectors as one number, and the index of the element that it is."""
    vector = vectors[-1]
    values = vector.values()
    ascending = sorted(values)

    if reduce.mean:
        return float(Fraction(sum(map(Fraction, values))) / len(values)), None
    share = 1.0 if reduce.max else 0.0 if reduce.min else reduce.quantile
    if share is not None:
        value = ascending[min(math.floor(Fraction(str(share)) * len(values)), len(values) - 1)]
        return value, vector.index(values.index(value))
    return beyond_limit(reduce, vectors)


def beyond_limit(reduce: Reduce, vectors: Sequence[Vector]) -> tuple[float, tuple[int, ...] | None]:
    """How many elements lie beyond the limit, which share of them, or for how long one and the same has."""
    vector = vectors[-1]
    values = vector.values()
    limits = {
        "fraction": (reduce.fraction_above, reduce.fraction_below),
        "count": (reduce.count_above, reduce.count_below),
        "streak": (reduce.longest_streak_above, reduce.longest_streak_below),
    }
    kind, (above, below) = next((name, pair) for name, pair in limits.items() if pair != (None, None))

    def beyond(value: float) -> bool:
        return value > above if above is not None else value < (below or 0.0)

    if kind == "streak":
        rows = [0] * len(values)
        for offset in range(len(values)):
            for one in reversed(vectors):
                if not beyond(one.values()[offset]):
                    break
                rows[offset] += 1
        longest = max(rows)
        return float(longest), vector.index(rows.index(longest)) if longest else None
    count = sum(map(beyond, values))
    if kind == "count":
        return float(count), None
    return (count / len(values) if count >= (reduce.min_count or 0) else 0.0), None


def assess(rule: Rule, values: Sequence[float], begins: Sequence[bool], near_tie: NearTie) -> list[Assessed]:
    """Each of the values against the detector; `begins` says where a new attempt or stretch began."""
    if rule.range is not None:
        low, high = rule.range.min, rule.range.max
        return [within(value, low, high) for value in values]
    if rule.spike is not None:
        return spike(rule.spike, values, begins, near_tie)
    if rule.divergence is not None:
        return divergence(rule.divergence, values, begins, near_tie)
    return [Assessed(not math.isfinite(value), None) for value in values]


def within(value: float, low: float | None, high: float | None) -> Assessed:
    """Below one bound, above the other, or not finite."""
    if low is not None and value < low:
        return Assessed(breach=True, threshold=low)
    breach = not math.isfinite(value) or (high is not None and value > high)
    return Assessed(breach, low if high is None else high)


def spike(settings: Spike, values: Sequence[float], begins: Sequence[bool], near_tie: NearTie) -> list[Assessed]:
    """Above the center of the accepted values by so many deviations, or times the ratio, and by the floor."""
    accepted: list[float] = []
    frozen_out: list[float] = []
    every: list[Assessed] = []
    for value, begin in zip(values, begins, strict=True):
        finite = math.isfinite(value)
        if begin:
            frozen_out = []
        level_shift = finite and len(frozen_out) >= settings.baseline.max_freeze
        if level_shift:
            accepted, frozen_out = frozen_out, []
        baseline = accepted[-settings.baseline.records :]
        if len(baseline) < settings.baseline.min_records:
            assessed = Assessed(not finite, None, warming_up=finite, level_shift=level_shift)
        else:
            threshold = spike_threshold(settings, baseline)
            if finite:
                near_tie(value, threshold)
            assessed = Assessed(not finite or value > threshold, threshold, level_shift=level_shift)
        if finite and assessed.breach:
            frozen_out.append(value)
        elif finite:
            accepted.append(value)
            frozen_out = []
        every.append(assessed)
    return every


def spike_threshold(settings: Spike, baseline: Sequence[float]) -> float:
    """What a value must exceed."""
    if settings.baseline.statistic == "Mean":
        center = float(statistics.mean(map(Fraction, baseline)))
        deviation = float(statistics.stdev(map(Fraction, baseline)))
    else:
        center = statistics.median(baseline)
        deviation = 1.4826 * statistics.median(abs(value - center) for value in baseline)
    deviation = max(deviation, 1e-6 * abs(center))
    if settings.ratio is None:
        beyond = center + (settings.sigma or 0.0) * deviation
    else:
        beyond = center + abs(center) * (settings.ratio - 1)
    return max(beyond, center + (settings.floor or 0.0))


def divergence(
    settings: Divergence, values: Sequence[float], begins: Sequence[bool], near_tie: NearTie
) -> list[Assessed]:
    """The median of the last values above the best settled level."""
    seen: list[float] = []
    since = 0
    levels: list[tuple[int, float, float | None]] = []
    distances: list[float] = []
    neighbours: list[float] = []
    apart: list[float] = []
    row = 0

    def noise() -> float | None:
        return noise_of(distances, apart, settings.settle_records)

    every: list[Assessed] = []
    for value, begin in zip(values, begins, strict=True):
        if begin:
            since, row, neighbours = len(seen), 0, []
        if not math.isfinite(value):
            every.append(Assessed(True, level_threshold(settings, seen[since:], levels)))
            continue
        level_shift = row >= settings.max_freeze
        if level_shift:
            levels = [(len(seen), statistics.median(seen[since:][-settings.records :]), noise())]
            row = 0
        seen.append(value)
        levels = [level for level in levels if level[0] > len(seen) - settings.lookback_records]
        threshold = level_threshold(settings, seen[since:], levels)
        recent = statistics.median(seen[since:][-settings.records :])
        if threshold is not None:
            near_tie(recent, threshold)
        breach = threshold is not None and recent > threshold
        row = row + 1 if breach else 0
        every.append(Assessed(breach, threshold, warming_up=threshold is None, level_shift=level_shift))
        settling = seen[since:][-settings.settle_records :]
        if len(settling) == settings.settle_records:
            levels.append((len(seen), statistics.median(settling), noise()))
            neighbours.append(statistics.median(settling))
            apart += from_the_middle(neighbours, settings.settle_records)
        if len(seen) - since >= 3:
            distances.append(abs(seen[-2] - (seen[-3] + seen[-1]) / 2))
            if len(distances) == FEWEST_DISTANCES:
                levels = [(count, level, noise()) for count, level, _ in levels]
    return every


def level_threshold(
    settings: Divergence, values: Sequence[float], levels: Sequence[tuple[int, float, float | None]]
) -> float | None:
    """What the recent level must exceed; None while there is nothing to compare."""
    if len(values) < settings.records or not levels:
        return None
    best = min(level for _, level, _ in levels)
    noise = [noise for _, level, noise in levels if level == best][-1]
    if settings.sigma is not None and noise is None:
        return None
    return best + max(settings.relative * abs(best), settings.absolute, (settings.sigma or 0.0) * (noise or 0.0))


def from_the_middle(levels: Sequence[float], far: int) -> list[float]:
    """How far the level `far` before the last lies from the middle of the last and the one as far before it."""
    if len(levels) <= 2 * far:
        return []
    return [abs(levels[-1 - far] - (levels[-1 - 2 * far] + levels[-1]) / 2)]


def noise_of(distances: Sequence[float], apart: Sequence[float], settle: int) -> float | None:
    """The standard deviation of normal noise whose values, or levels, lie so far from the middle of two others."""
    if len(distances) < FEWEST_DISTANCES:
        return None
    noise = 1.4826 / math.sqrt(1.5) * statistics.median(distances[-NOISE_RECORDS:])
    if len(apart) < FEWEST_DISTANCES:
        return noise
    of_levels = 1.4826 / math.sqrt(1.5) * statistics.median(apart[-200:])
    return max(noise, of_levels * math.sqrt(settle) / math.sqrt(math.pi / 2))


def composite(
    rule: Rule, records: Sequence[MetricRecord], verdicts: Sequence[Sequence[SlowVerdict]], stretch: Stretch
) -> SlowVerdict:
    """What other rules' verdicts on the same records come to at the last one."""
    counted: list[int | None] = []
    firsts: list[int | None] = []
    word: tuple[str, str] = ("", "")
    begin = False
    for index, components in enumerate(verdicts):
        begin = begin or stretch.begins_at(records, index)
        if begin:
            counted, firsts, begin = [], [], False
        word = combined(rule, components)
        if word[0] == "NoData":
            continue
        armed = stretch.pending(rule, records[index]) is None
        breach = word[0] == "Firing" and armed
        starts = [one.first_bad for one in components if one.state == "Firing" and not one.pauses]
        starting = [step for step in starts if step is not None]
        counted.append(min(starting, default=records[index].step) if breach else None)
        firsts.append(first_of(rule, counted, firsts))
    if word[0] == "NoData":
        return SlowVerdict(*word)
    pending = stretch.pending(rule, records[-1])
    if pending is not None:
        return SlowVerdict("Pending", pending)
    count = len(breaches(rule, counted))
    if word[0] != "Firing" and count < rule.for_records:
        return SlowVerdict(*word)
    fires = count >= rule.for_records
    words = ("Firing", "Components") if fires else ("Pending", "Breaching")
    return SlowVerdict(*words, streak=count, first_bad=firsts[-1])


def combined(rule: Rule, components: Sequence[SlowVerdict]) -> tuple[str, str]:
    """State and reason of a composite, its streak left aside."""
    # An absence that asks for a pause says nothing about the run.
    said = [("NoData", one.reason) if one.pauses else (one.state, one.reason) for one in components]
    states = [state for state, _ in said]
    if (rule.all_of and set(states) == {"Firing"}) or (rule.any_of and "Firing" in states):
        return "Firing", "Components"
    if rule.all_of and "Healthy" in states:
        return "Healthy", "WithinLimits"
    for state in ("Error", "NoData", "Pending"):
        if state in states:
            return said[states.index(state)]
    return "Healthy", "WithinLimits"


def silent_for(metric: str | None, records: Sequence[MetricRecord]) -> tuple[float, int | None]:
    """For how long a metric (None: any record) has not come, as of the last record, and since which step."""
    last = records[-1]
    since, missing = last.time, None
    for record in reversed(records):
        if record.attempt != last.attempt:
            break
        since = record.time
        if metric is None or metric in record.scalars or metric in record.vectors:
            break
        missing = record.step
    return last.time - since, missing


def absent_too_long(rule: Rule, records: Sequence[MetricRecord], stretch: Stretch) -> SlowVerdict | None:
    """`onNoData` after `noDataFor`; the clock starts with the first record of an attempt."""
    if rule.on_no_data is OnNoData.IGNORE or stretch.held_back(rule, records[-1]) is not None:
        return None
    silence, missing = silent_for(rule.metric, records)
    if silence < seconds(rule.no_data_for or "5m"):
        return None
    pauses = rule.on_no_data is OnNoData.PAUSE
    return SlowVerdict("Firing", "AbsentTooLong", streak=1, first_bad=missing or records[-1].step, pauses=pauses)


def stale(rule: Rule, records: Sequence[MetricRecord], stretch: Stretch) -> SlowVerdict:
    """`stale`, as of the last record."""
    silence, missing = silent_for(rule.metric, records)
    if rule.stale is None or silence < seconds(rule.stale.after):
        return SlowVerdict("Healthy", "WithinLimits")
    pending = stretch.held_back(rule, records[-1])
    if pending is not None:
        return SlowVerdict("Pending", pending)
    return SlowVerdict("Firing", "Stale", streak=1, first_bad=missing or records[-1].step)
