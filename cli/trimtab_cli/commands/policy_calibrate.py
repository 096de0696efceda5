"""`trimtab policy calibrate`: thresholds from the logs of healthy runs."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from trimtab_policies.calibration import LogEvidence, LogSurvey, NothingToPropose, Proposal, manifest, propose
from trimtab_policies.calibration.manifest import action_of, logit_sentences, sentences
from trimtab_policies.calibration.spikes import Candidate, SpikeChoice
from trimtab_policies.policy import AcceptedPolicy

from trimtab_cli.backtest_run import ReadingBar
from trimtab_cli.errors import CliError, UsageError
from trimtab_cli.log_files import mapping_of, open_log
from trimtab_cli.options import FormatOption, MapOption, OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.policy_loading import load_policies, shipped_default

_COLUMNS = ("", "metric", "statistic", "sigma", "forRecords", "firings", "records", "per 10,000 steps", "at most")


def calibrate(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Logs of healthy runs.")],
    target: Annotated[
        float, typer.Option("--target-false-alarms", help="Firings of each rule per 10,000 healthy steps, at most.")
    ] = 0.1,
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Write the policy here.")] = None,
    guards: Annotated[
        list[Path] | None,
        typer.Option(
            "--guard",
            metavar="POLICY",
            help="What a healthy log gives no reason to hold the run; else the shipped default.",
        ),
    ] = None,
    mapping: MapOption = None,
    log_format: FormatOption = None,
    form: OutputOption = Format.TEXT,
) -> None:
    """Propose spike rules and a threshold for QK-Clip, each with its evidence.

    Exit code 1 when a log cannot be read or is not healthy, or nothing can be proposed.
    """
    output = Output(form)
    if not (math.isfinite(target) and 0 < target <= 10_000):
        raise UsageError(f"--target-false-alarms is {target:g}: give a number above 0, at most 10,000, such as 0.1.")
    columns = mapping_of(mapping or ())
    policies = load_policies(guards) if guards else shipped_default()
    found = [_survey(path, policies, log_format, columns, output) for path in _distinct(logs)]
    try:
        proposal = propose(found, target)
    except NothingToPropose as error:
        raise CliError("\n".join(f"{reason}." for reason in error.reasons)) from error
    text = manifest(proposal)
    if write is not None:
        _write(write, text)
    output.result(_as_json(proposal, text), lambda: _show(output, proposal, write))


def _distinct(paths: list[Path]) -> list[Path]:
    """Each file once: records that are counted twice are no more evidence."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def _survey(
    path: Path, policies: tuple[AcceptedPolicy, ...], log_format: str | None, columns: dict[str, str], output: Output
) -> LogEvidence:
    survey = LogSurvey(str(path), policies)
    bar = ReadingBar(path, output.messages)
    log = open_log(path, format=log_format, mapping=columns, progress=bar.advance)
    with bar.shown:
        for point in log:
            survey.take(point)
    unreadable = log.unreadable.unreadable
    if unreadable:
        output.say(f"{path}: {unreadable} lines could not be read; the first: {log.unreadable.reasons[0]}", "yellow")
    return survey.evidence()


def _show(output: Output, proposal: Proposal, written: Path | None) -> None:
    output.line(
        f"{proposal.records:,} records of {len(proposal.logs)} log(s); target: at most {proposal.target:g} firings per "
        "10,000 steps and rule",
        "bold",
    )
    rows = [_row(choice, one) for choice in proposal.spikes for one in choice.candidates]
    if rows:
        output.table(_COLUMNS, rows)
    for choice in proposal.spikes:
        setting = choice.setting
        output.line(
            f"{choice.metric}: {setting.sigma} deviations above the {setting.statistic.lower()}, "
            f"{setting.for_records} record(s) in a row, {action_of(choice).value}",
            "bold",
        )
        output.line(sentences(choice), "" if choice.supported else "yellow")
        if len(proposal.logs) > 1:
            for log, firings in zip(proposal.logs, choice.by_log, strict=True):
                output.line(f"  {log}: {firings.events} in {firings.records:,} records, {firings.steps:,} steps")
    if proposal.logits is not None:
        output.line(f"QK-Clip threshold (optimizer.qkClipThreshold): {proposal.logits.tau:g}", "bold")
        output.line(logit_sentences(proposal.logits))
    for reason in proposal.refused:
        output.line(f"not proposed: {reason}", "yellow")
    output.line(f"written to {written}" if written else "--write FILE writes the policy", "dim")


def _row(choice: SpikeChoice, one: Candidate) -> tuple[str, ...]:
    setting, firings = one.setting, one.firings
    numbers = f"{firings.events}", f"{firings.records:,}", f"{firings.rate:.3g}", f"{firings.bound:.3g}"
    mark = "→" if setting == choice.setting else ""
    return mark, choice.metric, setting.statistic, f"{setting.sigma}", f"{setting.for_records}", *numbers


def _as_json(proposal: Proposal, text: str) -> dict[str, Any]:
    return {
        "target": proposal.target,
        "records": proposal.records,
        "logs": proposal.logs,
        "spikes": [_spike_json(choice) for choice in proposal.spikes],
        "logits": proposal.logits,
        "refused": proposal.refused,
        "policy": text,
    }


def _spike_json(choice: SpikeChoice) -> dict[str, Any]:
    candidates = [_evidence(one) for one in choice.candidates]
    return {
        "metric": choice.metric,
        **_evidence(Candidate(choice.setting, choice.firings)),
        "action": action_of(choice).value,
        "supported": choice.supported,
        "stepsMissing": choice.steps_missing,
        "byLog": choice.by_log,
        "candidates": candidates,
    }


def _evidence(one: Candidate) -> dict[str, Any]:
    setting, firings = one.setting, one.firings
    return {
        "statistic": setting.statistic,
        "sigma": setting.sigma,
        "forRecords": setting.for_records,
        "firings": firings.events,
        "records": firings.records,
        "steps": firings.steps,
        "per10000Steps": firings.rate,
        "atMostPer10000Steps": firings.bound,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from error
