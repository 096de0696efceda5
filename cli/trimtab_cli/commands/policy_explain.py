"""`trimtab policy explain`: what every rule made of one step."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from trimtab_policies.backtest.inspection import Inspected, Inspection, inspect_step
from trimtab_policies.decision import Decision, decide
from trimtab_policies.explanation import explain as sentence
from trimtab_policies.policy import AcceptedPolicy, Mode
from trimtab_policies.reach import retention
from trimtab_policies.verdicts import Verdict

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_checkpoints
from trimtab_cli.backtest_run import ReadingBar, told_apart
from trimtab_cli.errors import NotFound, UsageError
from trimtab_cli.log_files import mapping_of, open_log
from trimtab_cli.options import FormatOption, LogOption, MapOption, OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.policy_loading import load_policies
from trimtab_cli.run_records import archived_records, policies_in_force, surviving_segments
from trimtab_cli.step_judgement import judge_step
from trimtab_cli.trail import read_trail

_STYLES = {"Firing": "bold red", "Healthy": "green", "Error": "bold red"}


@with_checkpoints
def explain(
    access: Access,
    step: Annotated[int, typer.Option("--step", min=0, help="The step to explain.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="POLICY… LOG", help="Policies (.yaml, .yml), which judge together, and one log."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="The attempt, where several have the step; else the last.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", help="Explain the archived records of this TrainingJob; without policies by those then in force."
        ),
    ] = None,
    logs: LogOption = None,
    mapping: MapOption = None,
    log_format: FormatOption = None,
    form: OutputOption = Format.TEXT,
) -> None:
    """Say in one sentence a rule what it saw at a step, what it compared that with, and what followed.

    Policies are taken as if they were in mode Enforce. Exit code 1 when the log has no such step.
    """
    output = Output(form)
    if job is not None:
        if logs or mapping or log_format:
            raise UsageError("--job reads the job's archive: leave out --log, --map and --format.")
        source, (found, settled) = job, _of_job(output, access, job, files or [], step, attempt)
    else:
        policy_paths, log_paths = told_apart(files or [], logs or ())
        path, *more = log_paths
        if more:
            raise UsageError(f"Name one log; these are {len(log_paths)}.")
        source, settled, bar = str(path), None, ReadingBar(path, output.messages)
        policies = load_policies(policy_paths)
        log = open_log(path, format=log_format, mapping=mapping_of(mapping or ()), progress=bar.advance)
        with bar.shown:
            found = inspect_step(policies, log, step, attempt)
        output.say(f"{source}: read as {log.reader_name}, {log.unreadable.unreadable} lines could not be read")
    judged = found.judged
    if judged is None:
        raise NotFound(_missing(source, step, attempt, found))
    decision = decide(judged.verdicts, guard_mode=Mode.ENFORCE)
    output.result(
        _as_json(source, judged, found, decision, settled),
        lambda: _show(output, source, judged, found, decision, settled),
    )


def _of_job(
    output: Output, access: Access, job: str, files: list[Path], step: int, attempt: int | None
) -> tuple[Inspection, int | None]:
    """What was said of the step, and behind which step a person let the run go on afterwards, if one did."""
    run = access.run(job)
    with output.busy("reading the trail and the archive"):
        state = read_trail(access.journal(run)).state
        if not state.attempts:
            raise NotFound(f"Run {run} has not begun: its journal names no attempt.")
        owner = state.owner(step) if attempt is None else attempt
        policies: tuple[AcceptedPolicy, ...] = load_policies(files)
        policies = policies or policies_in_force(access.audit, state, owner, step)
        store, root = access.checkpoints(access.job_of(run))
        first = step - retention(policies)
        records = archived_records(store, root, run, surviving_segments(state, owner), first, step)
        settled = min((resumed for resumed in state.resumed(owner) if step <= resumed), default=None)
        return judge_step(policies, records, state, owner, step), settled


def _missing(source: str, step: int, attempt: int | None, found: Inspection) -> str:
    if found.attempts:
        known = ", ".join(map(str, found.attempts))
        return f"{source} has step {step} in attempt {known}, not in attempt {attempt}."
    near = [str(one) for one in (found.before, found.after) if one is not None]
    return f"{source} has no step {step}" + (f"; the nearest are {' and '.join(near)}." if near else ".")


def _show(
    output: Output, source: str, judged: Inspected, found: Inspection, decision: Decision, settled: int | None
) -> None:
    others = [str(one) for one in dict.fromkeys(found.attempts) if one != judged.attempt]
    also = f"; attempt {', '.join(others)} has this step too" if others else ""
    output.line(f"{source}: step {judged.step} of attempt {judged.attempt}, line {judged.line}{also}", "bold")
    several = len({verdict.policy.name for verdict in judged.verdicts}) > 1
    for verdict in judged.verdicts:
        name = f"{verdict.policy.name}/{verdict.rule.name}" if several else verdict.rule.name
        style = _STYLES.get(verdict.state.value, "")
        output.line(f"{name}: {verdict.state.value} ({verdict.reason.value}): {sentence(verdict)}", style)
    winner, action = decision.winner, decision.action
    if winner is None or action is None:
        output.line("nothing fires: nothing would have been done")
        return
    first = winner.first_bad_step
    since = f"; the first bad step is {first}" if first is not None else ""
    output.line(f"would have: {action.value}, asked for by {winner.rule.name}{since}", "bold")
    if settled is not None:
        output.line(f"settled: a person let the run go on behind step {settled}")


def _as_json(
    source: str, judged: Inspected, found: Inspection, decision: Decision, settled: int | None
) -> dict[str, Any]:
    return {
        "source": source,
        "step": judged.step,
        "attempt": judged.attempt,
        "attempts": found.attempts,
        "line": judged.line,
        "settledBehind": settled,
        "action": decision.action.value if decision.action else None,
        "rule": decision.winner.rule.name if decision.winner else None,
        "verdicts": [_verdict(verdict) for verdict in judged.verdicts],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    comparison = verdict.comparison
    return {
        "policy": verdict.policy.name,
        "rule": verdict.rule.name,
        "metric": verdict.metric,
        "state": verdict.state.value,
        "reason": verdict.reason.value,
        "observed": _number(verdict.observed),
        "element": verdict.element,
        "baseline": comparison.summary if comparison else None,
        "threshold": _number(verdict.threshold),
        "streak": verdict.streak,
        "firstBadStep": verdict.first_bad_step,
        "action": verdict.action.value,
        "sentence": sentence(verdict),
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
