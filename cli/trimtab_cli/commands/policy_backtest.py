"""`trimtab policy backtest`: what policies would have done on the logs of runs that are over."""

from pathlib import Path
from typing import Annotated

import typer
from trimtab_policies.rules import Action

from trimtab_cli.backtest_page import page
from trimtab_cli.backtest_run import LogResult, Question, judge_file, told_apart
from trimtab_cli.backtest_view import (
    EVENT_COLUMNS,
    SUMMARY_COLUMNS,
    as_json,
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
from trimtab_cli.errors import CliError
from trimtab_cli.log_files import mapping_of
from trimtab_cli.options import FormatOption, LogOption, MapOption, OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.policy_loading import load_policies


def backtest(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="POLICY… LOG…", help="Policies (.yaml, .yml), which judge together, and logs."),
    ],
    logs: LogOption = None,
    mapping: MapOption = None,
    log_format: FormatOption = None,
    compare: Annotated[
        list[Path] | None, typer.Option("--compare", metavar="POLICY", help="Say what this policy would do otherwise.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with curves.")] = None,
    fail_on: Annotated[
        Action | None,
        typer.Option(
            "--fail-on", case_sensitive=False, help="Exit with 1 if this or a stronger action was called for."
        ),
    ] = None,
    most_events: Annotated[int, typer.Option("--events", min=0, help="Print at most so many events a log.")] = 20,
    form: OutputOption = Format.TEXT,
) -> None:
    """Judge logs as the operator would have judged the runs.

    All policies are taken as if they were in mode Enforce. A log is a run that nobody remedied: it goes on behind a
    would-be rollback. Exit codes: 1 when a policy is invalid, nothing in a log can be read or judged, or on --fail-on.
    """
    output = Output(form)
    policy_paths, log_paths = told_apart(files, logs or ())
    question = Question(
        load_policies(policy_paths), load_policies(compare or ()), log_format, mapping_of(mapping or ()), bool(html)
    )
    results = [judge_file(path, question, output.messages) for path in log_paths]
    if html is not None:
        _write(html, page(results, question.policies))
    output.result([as_json(one) for one in results], lambda: _show(output, results, most_events))
    for one in results:
        if one.problem:
            output.say(f"error: {one.problem}", "red")
    called_for = fail_on is not None and any(one.report and one.report.would_have(fail_on) for one in results)
    raise typer.Exit(1 if called_for or any(one.problem for one in results) else 0)


def _show(output: Output, results: list[LogResult], most_events: int) -> None:
    for result in results:
        if result.report is not None:
            _show_log(output, result, most_events)
            output.line()
    reports = [(one.path, one.report) for one in results if one.report is not None]
    if len(results) > 1 and reports:
        names = short_names([path for path, _ in reports])
        output.table(SUMMARY_COLUMNS, [summary_row(names[path], report) for path, report in reports])


def _show_log(output: Output, result: LogResult, most_events: int) -> None:
    report = result.report
    if report is None or result.reading is None:
        return
    output.line(heading(result, report), "bold")
    for note in (*reading_notes(result.reading), *report_notes(report)):
        output.line(note, "yellow")
    output.line(
        f"would have: {counts_line(report.counts)}; {report.alarms_per_10000_records:.2f} alarms (Notify or stronger) "
        f"per 10,000 records, {report.alarms_per_10000_steps:.2f} per 10,000 steps"
    )
    for line in list(incident_lines(report))[:most_events]:
        output.line(line, "red")
    if report.events and most_events:
        output.table(EVENT_COLUMNS, event_rows(report, most_events))
    if len(report.events) > most_events:
        output.line(f"and {len(report.events) - most_events} further events; --events prints more, -o json all", "dim")
    for spikes in report.spikes:
        output.line(spike_line(spikes))
    if result.difference is not None:
        for line in difference_lines(result.difference):
            output.line(line)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from error
