"""A backtest as one page that needs nothing else: no script, no network, everything from logs escaped. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from trimtab_policies.backtest import LogReport
from trimtab_policies.backtest.curves import Curve
from trimtab_policies.explanation import subject
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.rules import Rule

from trimtab_cli.backtest_run import LogResult
from trimtab_cli.backtest_view import (
    EVENT_COLUMNS,
    SUMMARY_COLUMNS,
    counts_line,
    difference_lines,
    event_rows,
    heading,
    incident_lines,
    reading_notes,
    report_notes,
    short_names,
    spike_line,
    summary_row,
)
from trimtab_cli.curve_chart import chart

MOST_ROWS = 200
_INTRODUCTION = (
    "What the policies would have done on runs that nobody remedied: a run goes on behind a would-be rollback. "
    "Blue: the values. Shaded: from the baseline to the threshold (dashed). Red at the top: not finite. Dotted: where "
    "the log goes back to an earlier step, to a new run, or over a gap. Marks say more when pointed at."
)
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#1c2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem;border-top:1px solid #d5dbe1;padding-top:1rem}
h3{font-size:.95rem;margin:1.2rem 0 .2rem}table{border-collapse:collapse;font-size:.85rem}
th,td{text-align:left;padding:.15rem .8rem .15rem 0;vertical-align:top}th{border-bottom:1px solid #9aa7b4}
.note{color:#8a5a00}.act{color:#b00020}.scroll{overflow-x:auto}svg{width:100%;height:auto;display:block}
.value{fill:none;stroke:#1f5f99;stroke-width:1.2}.value.range{fill:#1f5f99;fill-opacity:.75;stroke-width:.6}
.threshold{fill:none;stroke:#b7791f;stroke-width:1;stroke-dasharray:4 3}.band{fill:#f0c36d;fill-opacity:.28}
.grid{stroke:#e6eaee}.tick{font:10px sans-serif;fill:#5b6875}.boundary{stroke:#7a8794;stroke-dasharray:1 3}
.nonfinite{fill:#b00020}.mark rect{fill-opacity:.12}.mark{fill:#7a8794}.mark.notify{fill:#8a5a00}
.mark.pause{fill:#a03e99}.mark.rollback,.mark.stop{fill:#b00020}
@media(prefers-color-scheme:dark){body{color:#d8dee6;background:#14191f}h2{border-color:#333c46}.note{color:#e0b15a}
.act{color:#ff7b86}.value{stroke:#6fb1ec}.value.range{fill:#6fb1ec}.grid{stroke:#29313a}.tick{fill:#93a0ad}}
"""


def page(results: Sequence[LogResult], policies: Sequence[AcceptedPolicy]) -> str:
    """The page; logs that say nothing are named with the reason."""
    names = ", ".join(policy.name for policy in policies)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Backtest of {escape(names)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Backtest of {escape(names)}</h1>",
        f"<p>{_INTRODUCTION}</p>",
        _summary(results),
        *(part for result in results for part in _log(result, policies)),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _summary(results: Sequence[LogResult]) -> str:
    names = short_names([result.path for result in results])
    rows = [summary_row(names[one.path], one.report) for one in results if one.report is not None]
    return _table(SUMMARY_COLUMNS, rows)


def _log(result: LogResult, policies: Sequence[AcceptedPolicy]) -> Iterator[str]:
    if result.report is None or result.reading is None:
        yield f'<h2>{escape(str(result.path))}</h2><p class="act">{escape(result.problem)}</p>'
        return
    report = result.report
    yield f"<h2>{escape(heading(result, report))}</h2>"
    for note in (*reading_notes(result.reading), *report_notes(report)):
        yield f'<p class="note">{escape(note)}</p>'
    yield f"<p>Would have: {escape(counts_line(report.counts))}.</p>"
    for line in list(incident_lines(report))[:MOST_ROWS]:
        yield f'<p class="act">{escape(line)}</p>'
    for title, curves in _charts(report, policies):
        shown = {(curve.policy, curve.rule) for curve in curves}
        events = [event for event in report.events if (event.policy, event.rule) in shown]
        yield f"<h3>{escape(title)}</h3>"
        yield chart(curves, events, report.boundaries, report.records)
    yield _table(EVENT_COLUMNS, event_rows(report, MOST_ROWS))
    if len(report.events) > MOST_ROWS:
        yield f"<p>and {len(report.events) - MOST_ROWS} further events</p>"
    yield from (f"<p>{escape(spike_line(spikes))}</p>" for spikes in report.spikes)
    if result.difference is not None:
        yield "<h3>Compared</h3>"
        yield from (f"<p>{escape(line)}</p>" for line in list(difference_lines(result.difference))[:MOST_ROWS])


def _charts(report: LogReport, policies: Sequence[AcceptedPolicy]) -> Iterator[tuple[str, list[Curve]]]:
    """The curves by what they show; those that show nothing are left out."""
    rules: dict[tuple[str, str], Rule] = {
        (policy.name, rule.name): rule for policy in policies for rule in policy.spec.rules
    }
    groups: dict[str, list[Curve]] = {}
    for curve in report.curves:
        rule = rules[curve.policy, curve.rule]
        if rule.metric is not None and rule.stale is None and any(_drawn(curve)):
            groups.setdefault(subject(rule), []).append(curve)
    for title, curves in groups.items():
        yield f"{title}: {', '.join(curve.rule for curve in curves)}", curves


def _drawn(curve: Curve) -> Iterable[bool]:
    return (bucket.high is not None or bucket.non_finite > 0 for bucket in curve.buckets)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'
