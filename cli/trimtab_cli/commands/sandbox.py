"""`trimtab sandbox`: a real one-node cluster with Redis and S3 on this machine, or only the chart elsewhere."""

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab_cli.cluster_choice import ClusterChoice
from trimtab_cli.errors import ProgramFailed
from trimtab_cli.installation import SANDBOX_VALUES, install_chart
from trimtab_cli.options import ContextOption, KubeconfigOption, OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.sandbox_link import repository, sandbox_error, sandbox_module

app = typer.Typer(no_args_is_help=True, help=__doc__)


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except sandbox_error() as error:
        raise ProgramFailed(str(error)) from error


def bring_up(output: Output) -> Any:
    """Bring the sandbox up, or complete it; returns the sandbox's own description of itself."""
    with _translated():
        return sandbox_module("cluster").up(progress=output.say)


@app.command()
def up(
    form: OutputOption = Format.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    values: Annotated[Path | None, typer.Option("--values", "-f", help="Values of the chart, with --context.")] = None,
    operator: Annotated[bool, typer.Option("--operator/--no-operator", help="Install the chart too.")] = True,
) -> None:
    """Bring the sandbox up and install the operator; with --context only install the operator in that cluster."""
    output = Output(form)
    if context is not None or kubeconfig is not None:
        install_chart(output, ClusterChoice(kubeconfig, context), values=values)
        output.result({"context": context, "installed": True}, lambda: output.line("the operator is installed"))
        return
    info = bring_up(output)
    if operator:
        chosen = values or repository() / SANDBOX_VALUES
        install_chart(output, ClusterChoice(info.kubeconfig), values=chosen, environment=info.environment)
    answer = {"kubeconfig": str(info.kubeconfig), "seconds": round(info.seconds, 1), "operator": operator}
    output.result(answer, lambda: output.line(f"export KUBECONFIG={shlex.quote(str(info.kubeconfig))}"))


@app.command()
def down(
    form: OutputOption = Format.TEXT,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Leave Redis's and S3's data for the next up.")
    ] = False,
) -> None:
    """End everything that `up` started."""
    output = Output(form)
    with _translated():
        sandbox_module("cluster").down(progress=output.say, keep_data=keep_data)
    output.result({"running": False}, lambda: None)


@app.command()
def status(form: OutputOption = Format.TEXT) -> None:
    """Say how the sandbox is; exit code 0 when it is up."""
    output = Output(form)
    with _translated():
        state = sandbox_module("cluster").status()
    processes: list[dict[str, Any]] = [
        {"name": one.name, "pid": one.pid, "frozen": one.frozen, "residentMebibytes": one.resident_mebibytes}
        for one in state.processes
    ]

    def show() -> None:
        output.line(f"the sandbox is {'up' if state.running else 'not up'} ({state.home})")
        rows = [
            (
                one["name"],
                str(one["pid"] or "-"),
                "frozen" if one["frozen"] else "running" if one["pid"] else "not running",
                str(one["residentMebibytes"]),
            )
            for one in processes
        ]
        output.table(("Process", "PID", "State", "MiB"), rows)

    output.result({"running": state.running, "home": str(state.home), "processes": processes}, show)
    raise typer.Exit(0 if state.running else 1)


@app.command()
def env(form: OutputOption = Format.TEXT) -> None:
    """Print shell commands that lead to the sandbox's parts: `eval "$(trimtab sandbox env)"`."""
    output = Output(form)
    with _translated():
        variables: dict[str, str] = sandbox_module("environment").environment()

    def show() -> None:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")

    output.result(variables, show)
