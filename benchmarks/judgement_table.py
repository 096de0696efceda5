"""docs/judgement.md from judged logs and their labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab_policies.backtest import LogReport
from trimtab_policies.backtest.events import Event, Incident
from trimtab_policies.backtest.report import RuleTally
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import State

PATIENCE = 5
"""Within so many records of becoming visible, damage has to be acted on."""
NEAR_RECORDS = 10
"""An event belongs to a labelled spike when it is no further from it than this."""
_CLEAN = "clean"

RISEN = 0.2
"""In a log labelled as a divergence, so far above its lowest loss the damage is visible."""

KNOWN = """# What the `{policy}` policy does on public logs

Written by `python -m benchmarks.judgement --logs DIRECTORY`, where DIRECTORY has the logs and their labels
(`python -m benchmarks.judgement --help` says in which form). The labels are a person's reading of the curves. A log is
a run that nobody remedied: it goes on behind a would-be rollback. Hash of the policy: {hashes}.

*Records* are what the log has, which may be one every 5 or 200 steps. *Rollback* and *Pause or Stop* count incidents,
*Notify* and *Record* count events, as `trimtab policy backtest` does. *Damage* is where the loss stops being finite or,
in a log labelled as a divergence, where it has risen 20 % above its lowest value and never comes back; *acted* says at
which step, and how many records later. *Spikes* are the labelled ones: how many were recorded, and at how many the
policy would have acted. A star marks what happened in a tail of which the label says nothing: there the loss is not
finite up to the end of the log. [Another page](judgement-held-out.md) has logs on which nobody tuned anything.
"""
HELD_OUT = """# What the `{policy}` policy does on logs that nobody tuned on

Written by `python -m benchmarks.judgement --held-out --logs DIRECTORY`. The [other page](judgement.md) has the logs on
which the numbers of the policy were found. Those of this one were looked for when the policy was finished, and were
labelled by their curves alone before any policy had judged them. What was changed for them is the reading of text logs
that count steps within an epoch; no number of a policy was. Hash of the policy: {hashes}.

The logs are not in this repository. To judge them again, put each into DIRECTORY under its name here with any ending
(`keras_issue_21.csv`): from a `git clone` of the repository at the commit, from the unpacked Python package, or copied
out of the thread of the issue. Where the last column says so, the losses were brought into a table `step,loss`; all
others are read as they are. What counts is what a log says: `benchmarks/held_out_logs.json` has a SHA-256 of the steps
and losses that were judged, and a log that says anything else is refused. All logs but those of the Python package were
retyped, so a digit may be wrong in them; the original then has another hash. Of threads only the lines that a search
showed were at hand.

*Records*, *Rollback*, *Pause or Stop*, *Notify* and *Record* are counted as on the other page. *Damage* is where the
loss stops being finite or where a person sees the divergence; *acted* says at which step, and how many records later.
*Spikes* are the labelled ones: how many were recorded, and at how many the policy would have acted. Below, each log at
which a goal was missed says why.
"""
_COLUMNS = (
    "log",
    "label",
    "records",
    "Rollback",
    "Pause or Stop",
    "Notify",
    "Record",
    "damage at step",
    "acted at step",
    "spikes recorded",
    "spikes acted on",
)


@dataclass(frozen=True)
class Stretch:
    """A row of records, by number in the log, whose loss is not finite; `step` is that of the first."""

    run: int
    step: int
    position: int
    last_position: int


@dataclass(frozen=True)
class Rise:
    """A loss that leaves its lowest value, reached at `lowest_step`, for good at record `position`, of `step`."""

    lowest_step: int
    lowest: float
    step: int
    position: int


@dataclass(frozen=True)
class Judgement:
    """One labelled log and what came of it."""

    label: dict[str, Any]
    report: LogReport
    non_finite: tuple[Stretch, ...]
    rise: Rise | None
    seen: tuple[Stretch, ...] = ()
    """The records at which a person sees a divergence, where the label says so."""

    @property
    def name(self) -> str:
        """The log's name in the index."""
        return self.label["name"]

    @property
    def kind(self) -> str:
        """What a person said it is."""
        return self.label["kind"]

    @property
    def is_clean(self) -> bool:
        """Whether nothing may be done about it."""
        return self.kind.startswith(_CLEAN)

    @property
    def tail(self) -> Stretch | None:
        """The last stretch, where nothing but non-finite records follows in a log that a person called healthy."""
        harmless = "nan" not in self.kind
        last = self.non_finite[-1] if self.non_finite and harmless else None
        return last if last and last.last_position == self.report.records else None

    @property
    def alarms(self) -> tuple[int, int]:
        """Notify and stronger: before such a tail, and in it."""
        end = self.tail.position if self.tail else self.report.records + 1
        heard = [event.position for event in self.report.events if event.action is Action.NOTIFY]
        heard += [incident.position for incident in self.report.incidents]
        return sum(position < end for position in heard), sum(position >= end for position in heard)


def file_of(folder: Path, name: str) -> Path:
    """The log that is called so up to its first dot; raises FileNotFoundError."""
    for path in sorted(folder.iterdir()):
        if path.name.partition(".")[0] == name:
            return path
    message = f"{folder} has no log called {name}"
    raise FileNotFoundError(message)


def document(judgements: Sequence[Judgement], policy: str, hashes: Sequence[str], head: str = KNOWN) -> str:
    """The page."""
    told = ", ".join(f"`{one[:12]}`" for one in hashes)
    parts = [
        head.format(policy=policy, hashes=told),
        _table(_COLUMNS, [_row(one) for one in judgements]),
        "## In sum\n",
        *(f"* {line}" for line in _sums(judgements)),
        "\n## Log by log\n",
        *(line for one in judgements for line in _story(one)),
        "## Where the logs come from\n",
        _sources([one.label for one in judgements]),
    ]
    return "\n".join(parts)


def _row(one: Judgement) -> tuple[str, ...]:
    counts = one.report.counts
    damage = _damage(one)
    recorded, acted = map(len, _spikes(one))
    labelled = len(one.label.get("spikes", ()))
    star = "*" if one.alarms[1] else ""
    return (
        one.name,
        one.kind,
        f"{one.report.records:,}",
        f"{counts.rollback}{star if counts.rollback else ''}",
        str(counts.pause + counts.stop),
        str(counts.notify),
        str(counts.record),
        "; ".join(place for place, _ in damage),
        "; ".join(acted_at for _, acted_at in damage),
        f"{recorded} of {labelled}" if labelled else "",
        f"{acted} of {labelled}" if labelled else "",
    )


def _damage(one: Judgement) -> list[tuple[str, str]]:
    """Where there is damage, and when it was acted on."""
    stretches: tuple[Stretch, ...] = () if one.tail else one.non_finite
    found = [(stretch, _incident(one.report, stretch.position, stretch.last_position)) for stretch in stretches] + [
        (seen, _answer(one.report, seen)) for seen in _divergences(one)
    ]
    return [(str(stretch.step), _told(stretch, incident)) for stretch, incident in found]


def _told(stretch: Stretch, incident: Incident | None) -> str:
    return "never" if incident is None else f"{incident.step} ({incident.position - stretch.position:+d})"


def _divergences(one: Judgement) -> tuple[Stretch, ...]:
    """Where a person sees them; without such a mark, where the loss has risen for good."""
    if one.seen or one.rise is None or "diverge" not in one.kind:
        return one.seen
    return (Stretch(0, one.rise.step, one.rise.position, one.rise.position),)


def _answer(report: LogReport, seen: Stretch) -> Incident | None:
    """The first incident that begins at a record or after it, or is open at it."""
    return next((one for one in report.incidents if one.position >= seen.position or _is_open(one, seen)), None)


def _is_open(incident: Incident, at: Stretch) -> bool:
    ended = incident.ended_step is not None and incident.ended_step <= at.step
    return incident.run == at.run and incident.position < at.position and not ended


def _incident(report: LogReport, position: int, last: int | None = None) -> Incident | None:
    """The first incident from a record on, up to another."""
    return next(
        (one for one in report.incidents if one.position >= position and (last is None or one.position <= last)), None
    )


def _spikes(one: Judgement) -> tuple[list[int], list[int]]:
    """The labelled ones that were recorded, and those that would have been acted on."""
    steps: Sequence[int] = one.label.get("spikes", ())
    width = NEAR_RECORDS * max(1, one.report.steps // max(1, one.report.records))
    recorded = [step for step in steps if any(_near(step, event, width) for event in one.report.events)]
    acted = [
        step for step in steps if any(abs(incident.first_bad_step - step) <= width for incident in one.report.incidents)
    ]
    return recorded, acted


def _near(step: int, event: Event, width: int) -> bool:
    return event.first_bad_step - width <= step <= event.last_step + width


def _sums(judgements: Sequence[Judgement]) -> list[str]:
    clean = [one for one in judgements if one.is_clean]
    records, steps = sum(one.report.records for one in clean), sum(one.report.steps for one in clean)
    heard = [one.alarms for one in clean]
    alarms, in_tails = sum(before for before, _ in heard), sum(within for _, within in heard)
    rate = 10_000 * alarms / max(1, records)
    tails = ", ".join(f"{one.name} from step {one.tail.step}" for one in clean if one.tail is not None)
    labelled = sum(len(one.label.get("spikes", ())) for one in judgements)
    recorded, acted = (sum(map(len, column)) for column in zip(*map(_spikes, judgements), strict=True))
    stretches = [(one, stretch) for one in judgements if one.tail is None for stretch in one.non_finite]
    late = [f"{one.name} at step {stretch.step}" for one, stretch in stretches if _is_late(one.report, stretch)]
    divergences = [(one, seen) for one in judgements for seen in _divergences(one)]
    slow = [f"{one.name} at step {seen.step}" for one, seen in divergences if _is_slow(one.report, seen)]
    size = f"{len(clean)}, with {records:,} records over {steps:,} steps"
    lines = [f"Clean logs: {size}; {alarms} times Notify or stronger, {rate:.2f} per 10,000 records."]
    if in_tails:
        lines.append(
            f"A further {in_tails} in tails of clean logs whose loss is not finite to the end ({tails}). By the log "
            "alone such a run is lost, and the policy is to act on it."
        )
    caught = f"Stretches whose loss is not finite: {len(stretches)}; not acted on within {PATIENCE} records: "
    lines.append(caught + (", ".join(late) or "none") + ".")
    caught = f"Divergences: {len(divergences)}; not acted on within {PATIENCE} records: "
    lines.append(caught + (", ".join(slow) or "none") + ".")
    lines.append(f"Labelled spikes that recovered by themselves: {labelled}; {recorded} recorded, {acted} acted on.")
    return lines


def _is_late(report: LogReport, stretch: Stretch) -> bool:
    found = _incident(report, stretch.position, stretch.last_position)
    possible = stretch.last_position - stretch.position
    return possible >= 1 if found is None else found.position - stretch.position > PATIENCE


def _is_slow(report: LogReport, seen: Stretch) -> bool:
    found = _answer(report, seen)
    return found is None or found.position - seen.position > PATIENCE


def _story(one: Judgement) -> list[str]:
    report = one.report
    lines = [f"**{one.name}** ({one.kind}). {one.label.get('note', '')}".strip(), ""]
    if one.tail is not None:
        count = one.tail.last_position - one.tail.position + 1
        lines.append(f"* The loss is not finite from step {one.tail.step} to the end of the log, for {count} records.")
    if "diverge" in one.kind and one.rise is not None:
        rise = one.rise
        lines.append(
            f"* The loss is lowest, {rise.lowest:.4g}, at step {rise.lowest_step}, and above that by 20 % for good "
            f"from step {rise.step} on."
        )
    filling = [rule.rule for rule in report.rules if _never_ready(rule)]
    if filling:
        lines.append(f"* Too few records for {', '.join(filling)}: to the end they had nothing to compare with.")
    gaps = f", {report.gaps} gap(s)" if report.gaps else ""
    runs = f", {report.runs} runs" if report.runs > 1 else ""
    lines.append(f"* Steps {report.first_step} to {report.last_step}{runs}{gaps}.")
    lines += [f"* {incident.action.value} by {incident.rule}: {_sentence(incident)}." for incident in report.incidents]
    for spikes in report.spikes:
        if spikes.metric == "loss" and spikes.spikes:
            lines.append(
                f"* Spikes of the loss above 4 sigma: {spikes.spikes}, the highest "
                f"{spikes.highest[0].height:.1f} sigma at step {spikes.highest[0].step}; over after "
                f"{spikes.most_records_to_recover} records at most."
            )
    if "why" in one.label:
        lines += ["", one.label["why"]]
    return [*lines, ""]


def _never_ready(rule: RuleTally) -> bool:
    return rule.states[State.PENDING] > 0 and not rule.states[State.HEALTHY] and not rule.states[State.FIRING]


def _sentence(incident: Incident) -> str:
    ended = "" if incident.ended_step is None else f", until step {incident.ended_step} ({incident.ending.value})"
    return f"at step {incident.step}, {incident.sentence}{ended}"


def _sources(labels: Sequence[dict[str, Any]]) -> str:
    """Where the logs are, and where it was said, how much of each was judged and how it was brought into form."""
    fields = {"name": "log", "source": "repository", "path": "file", "commit": "commit", "licence": "licence"}
    fields |= {field: field for field in ("extent", "form") if any(field in label for label in labels)}
    return _table(tuple(fields.values()), [[_cell(label, field) for field in fields] for label in labels])


def _cell(label: dict[str, Any], field: str) -> str:
    text = str(label.get(field, ""))
    return text[:12] if field == "commit" else text


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"
