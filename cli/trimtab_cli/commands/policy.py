"""What is wrong with a guard policy and what it would do, before it reaches a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab_cli.commands import policy_backtest, policy_calibrate, policy_explain, policy_test
from trimtab_cli.options import OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.policy_files import PolicyFinding, check_policies
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
    policies = 0
    for file in files:
        count, found = check_policies(str(file), read_text(file))
        policies += count
        findings += found

    def show() -> None:
        for finding in findings:
            output.line(str(finding))
        verdict = "valid" if not findings else f"{len(findings)} error(s)"
        output.line(f"{policies} policies in {len(files)} file(s): {verdict}", "bold red" if findings else "bold green")

    output.result({"policies": policies, "valid": not findings, "errors": findings}, show)
    raise typer.Exit(1 if findings else 0)
