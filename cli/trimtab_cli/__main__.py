"""The `trimtab` program; `kubectl-trimtab` is the same one."""

import sys

import typer

from trimtab_cli.commands import audit, checkpoint, job, policy, sandbox
from trimtab_cli.commands.crds import crds
from trimtab_cli.commands.demo import demo
from trimtab_cli.commands.report import report
from trimtab_cli.errors import CliError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keeps large training runs steady on Kubernetes. Exit codes: 0 yes, 1 the answer is no, 2 usage.",
)
app.command()(demo)
app.command()(crds)
app.command()(report)
for name, group in (
    ("sandbox", sandbox.app),
    ("policy", policy.app),
    ("job", job.app),
    ("audit", audit.app),
    ("checkpoint", checkpoint.app),
):
    app.add_typer(group, name=name)


def main() -> None:
    """Run a command; errors are one sentence, the exit code says the rest."""
    try:
        app(prog_name="trimtab")
    except CliError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
