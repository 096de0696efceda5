"""A backtest's results as text and as JSON. Pure."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trimtab_policies.backtest import LogReport
from trimtab_policies.backtest.comparison import Difference
from trimtab_policies.backtest.events import Counts, Event, Incident
from trimtab_policies.backtest.report import RuleTally
from trimtab_policies.backtest.spikes import SpikeStatistics
from trimtab_policies.log_readers.reading import ReadingSummary
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import State

from trimtab_cli.backtest_run import LogResult
from trimtab_cli.json_values import json_value

EVENT_COLUMNS = ("Would have", "Rule", "At step", "Since", "Observed", "Threshold", "Records", "Then")
SUMMARY_COLUMNS = (
    "Log",
    "Records",
    "Record",
    "Notify",
    "Pause",
    "Rollback",
    "Stop",
    "Alarms per 10,000 records",
    "per 10,000 steps",
)
_MOST_REASONS = 3


def heading(result: LogResult, report: LogReport) -> str:
    """What was read, how, and what the log's steps say about the run."""
    parts = [f"{report.records:,} records, steps {report.first_step} to {report.last_step}"]
    if report.runs > 1:
        parts.append(f"{report.runs} runs in one log")
    resumed = report.attempts - report.runs
    if resumed:
        parts.append(f"{resumed} times back to an earlier step")
    if report.gaps:
        parts.append(f"{report.gaps} gaps")
    parts += [f"{count} {reason} left out" for reason, count in report.left_out.items() if count]
    return f"{result.path}: read as {result.reader}; {'; '.join(parts)}"


def reading_notes(reading: ReadingSummary) -> Iterator[str]:
    """What could not be read."""
    if reading.unreadable:
        reasons = "; ".join(map(str, reading.reasons[:_MOST_REASONS]))
        more = ", …" if reading.unreadable > _MOST_REASONS else ""
        yield f"could not read {reading.unreadable} lines: {reasons}{more}"


def report_notes(report: LogReport) -> Iterator[str]:
    """What a reader must know before trusting the figures."""
    for name in report.observing:
        yield f"policy {name} is in mode Observe: it would only have recorded what is told here"
    blind = [f"{rule.rule} ({_blindness(rule, report)})" for rule in report.rules if rule.is_blind]
    if blind:
        yield f"rules that had nothing to judge, whose silence says nothing: {', '.join(blind)}"
    partly = [f"{rule.rule} ({_unjudged(rule, report)})" for rule in report.rules if _is_partly_blind(rule)]
    if partly:
        yield f"rules that could not judge some records, about which their silence says nothing: {', '.join(partly)}"
    if report.events_left_out:
        yield f"{report.events_left_out} further events and incidents are counted but not kept"


def incident_lines(report: LogReport) -> Iterator[str]:
    """What would have been done, one sentence each."""
    for one in report.incidents:
        yield f"{deed(one)}: {_rule(one, report)}: {one.sentence}; {aftermath(one)}"


def deed(incident: Incident) -> str:
    """What would have happened at the step."""
    place = f"at step {incident.step}"
    match incident.action:
        case Action.ROLLBACK:
            return f"would have rolled back {place}, to a checkpoint at or before step {incident.restore_at_most}"
        case Action.STOP:
            return f"would have stopped {place}"
        case _:
            return f"would have held {place} for a person"


def aftermath(incident: Incident) -> str:
    """How the run went on, which nobody remedied."""
    went_on = f"the run went on for {incident.records_after} records"
    match incident.ending:
        case "Recovered":
            return f"{went_on} and recovered by itself at step {incident.ended_step}"
        case "LevelShift":
            return f"{went_on} on a new level from step {incident.ended_step}"
        case "Resumed":
            return f"the log itself goes back after step {incident.ended_step}"
        case _:
            return f"{went_on} and did not recover"


def event_rows(report: LogReport, most: int) -> list[tuple[str, ...]]:
    """The first events, under EVENT_COLUMNS."""
    return [_event_row(event, report) for event in report.events[:most]]


def _event_row(event: Event, report: LogReport) -> tuple[str, ...]:
    ended = "" if event.ended_step is None else f" at {event.ended_step}"
    return (
        event.action.value,
        _rule(event, report),
        str(event.step),
        str(event.first_bad_step),
        _number(event.observed),
        _number(event.threshold),
        str(event.records),
        f"{_words(event.ending.value)}{ended}",
    )


def summary_row(name: str, report: LogReport) -> tuple[str, ...]:
    """One row under SUMMARY_COLUMNS."""
    counts = report.counts
    return (
        name,
        f"{report.records:,}",
        *(str(counts.of(action)) for action in Action),
        f"{report.alarms_per_10000_records:.2f}",
        f"{report.alarms_per_10000_steps:.2f}",
    )


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """The files' names, with their folders where two are alike."""
    names = [path.name for path in paths]
    return {path: path.name if names.count(path.name) == 1 else str(path) for path in paths}


def counts_line(counts: Counts) -> str:
    """The counts in words."""
    said = [f"{counts.of(action)} {action.value}" for action in Action if counts.of(action)]
    return ", ".join(said) or "nothing"


def spike_line(spikes: SpikeStatistics) -> str:
    """A metric's spikes in one line."""
    extra = f", {spikes.non_finite} records not finite" if spikes.non_finite else ""
    shifts = f", {spikes.level_shifts} shifts of level" if spikes.level_shifts else ""
    if not spikes.spikes:
        return f"spikes of {spikes.metric}: none above 4 sigma{shifts}{extra}"
    heights = ", ".join(f"{count} above {sigma}" for sigma, count in spikes.at_sigma.items() if count)
    highest = spikes.highest[0]
    return (
        f"spikes of {spikes.metric}: {heights} sigma; the highest {highest.height:.1f} sigma at step {highest.step}; "
        f"recovered after {spikes.median_records_to_recover} records (median), {spikes.most_records_to_recover} at most"
        f"{shifts}{extra}"
    )


def difference_lines(difference: Difference) -> Iterator[str]:
    """What the other policies would have done differently."""
    yield f"would have: {counts_line(difference.counts)}; the other: {counts_line(difference.other_counts)}"
    for sign, events in (("only here", difference.only_first), ("only the other", difference.only_other)):
        for event in events:
            yield f"{sign}: {event.action.value} by {event.rule} at step {event.step}: {event.sentence}"
    for event, step in difference.moved:
        yield f"at another step: {event.action.value} by {event.rule} at step {event.step}, the other at step {step}"
    if difference.is_none:
        yield "no difference"


def as_json(result: LogResult) -> dict[str, Any]:
    """Everything about one log; numbers that are not finite are the texts `nan`, `inf` and `-inf`."""
    answer: dict[str, Any] = {"log": str(result.path), "problem": result.problem or None}
    if result.reading is not None:
        answer["reader"] = result.reader
        answer["reading"] = json_value(result.reading)
    if result.report is not None:
        report = json_value(result.report)
        report.pop("curves")
        for tally, told in zip(result.report.rules, report["rules"], strict=True):
            told["blind"] = tally.is_blind
        report["alarmsPer10000Records"] = result.report.alarms_per_10000_records
        report["alarmsPer10000Steps"] = result.report.alarms_per_10000_steps
        answer["report"] = report
    if result.difference is not None:
        answer["difference"] = json_value(result.difference)
    return answer


def _rule(found: Event | Incident, report: LogReport) -> str:
    """The rule's name, with its policy's where several judged."""
    several = len({rule.policy for rule in report.rules}) > 1
    return f"{found.policy}/{found.rule}" if several else found.rule


def _blindness(rule: RuleTally, report: LogReport) -> str:
    if rule.states[State.ERROR]:
        return f"{rule.metric} is a vector and is not reduced, or the reverse"
    if rule.metric is None:
        return "the log's records have no time" if not report.timed else "none of its parts had"
    near = f"; the nearest name is {rule.nearest}" if rule.nearest else ""
    return f"no {rule.metric} in the log{near}"


def _is_partly_blind(rule: RuleTally) -> bool:
    return not rule.is_blind and rule.states[State.ERROR] > 0


def _unjudged(rule: RuleTally, report: LogReport) -> str:
    what = f"{rule.metric} is a vector there and is not reduced, or the reverse" if rule.metric else "one of its parts"
    return f"{rule.states[State.ERROR]} of {report.records}: {what}"


def _words(name: str) -> str:
    return {"LevelShift": "level shift", "EndOfLog": "end of the log", "Resumed": "the log goes back"}.get(
        name, name.lower()
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
