"""`trimtab policy`: what is wrong with a GuardPolicy, before it reaches a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab_cli.options import OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.policy_files import PolicyFinding, check_policies

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.callback()
def _group() -> None:
    """Keep `check` a command of a group, as its siblings will be."""


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="YAML with one or more GuardPolicy manifests.")],
    form: OutputOption = Format.TEXT,
) -> None:
    """Name every error with file, line and path; exit code 1 when there is any."""
    output = Output(form)
    findings: list[PolicyFinding] = []
    policies = 0
    for file in files:
        count, found = check_policies(str(file), _read(file))
        policies += count
        findings += found

    def show() -> None:
        for finding in findings:
            output.line(str(finding))
        verdict = "valid" if not findings else f"{len(findings)} error(s)"
        output.line(f"{policies} policies in {len(files)} file(s): {verdict}", "bold red" if findings else "bold green")

    output.result({"policies": policies, "valid": not findings, "errors": findings}, show)
    raise typer.Exit(1 if findings else 0)


def _read(file: Path) -> str | PolicyFinding:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return PolicyFinding(str(file), 0, "", f"cannot be read: {getattr(error, 'strerror', None) or error}")
