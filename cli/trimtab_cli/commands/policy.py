"""What is wrong with a guard policy and what it would do, before it reaches a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab_cli.commands import policy_backtest, policy_calibrate, policy_explain, policy_test
from trimtab_cli.options import OutputOption
from trimtab_cli.output import Format, Output, counted
from trimtab_cli.policy_files import PolicyFinding, check_policies, doubtful_metrics
from trimtab_cli.text_files import read_text

app = typer.Typer(no_args_is_help=True, help=__doc__)
app.command("test")(policy_test.run_tests)
app.command("backtest")(policy_backtest.backtest)
app.command("explain")(policy_explain.explain)
app.command("calibrate")(policy_calibrate.calibrate)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="YAML with guard policy manifests.")],
    form: OutputOption = Format.TEXT,
) -> None:
    """Name every error with file, line and path; exit code 1 when there is any."""
    output = Output(form)
    findings: list[PolicyFinding] = []
    doubts: list[str] = []
    policies = 0
    for file in files:
        text = read_text(file)
        count, found = check_policies(str(file), text)
        doubts += doubtful_metrics(str(file), text)
        policies += count
        findings += found

    def show() -> None:
        for finding in findings:
            output.line(str(finding))
        for doubt in doubts:
            output.line(doubt)
        verdict = "valid" if not findings else counted(len(findings), "error")
        told = f"{counted(policies, 'policy', 'policies')} in {counted(len(files), 'file')}: {verdict}"
        output.line(told, "bold red" if findings else "bold green")

    output.result({"policies": policies, "valid": not findings, "errors": findings, "doubts": doubts}, show)
    raise typer.Exit(1 if findings else 0)
