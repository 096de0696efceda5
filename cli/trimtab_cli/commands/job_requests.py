"""`trimtab job resume`, `rollback` and `stop`: a person says how a run goes on."""

from typing import Annotated

import typer
from trimtab_operator.run_state import RequestAction, RequestState

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_cluster
from trimtab_cli.errors import CliError
from trimtab_cli.options import JobArgument, OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.run_requests import make_request, request_summary, wait_for_answer

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the trail with your name.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the answer.")]

_PATIENCE_SECONDS = 60.0


@with_cluster
def resume(
    access: Access,
    name: JobArgument,
    reason: ReasonOption,
    form: OutputOption = Format.TEXT,
    seconds: TimeoutOption = _PATIENCE_SECONDS,
) -> None:
    """Let a run that is paused, or that needs a human, go on from where it holds."""
    _ask(access, name, RequestAction.RESUME, reason, Output(form), seconds)


@with_cluster
def rollback(
    access: Access,
    name: JobArgument,
    reason: ReasonOption,
    form: OutputOption = Format.TEXT,
    seconds: TimeoutOption = _PATIENCE_SECONDS,
) -> None:
    """Take a run that is paused, or that needs a human, back to a checkpoint from before the damage."""
    _ask(access, name, RequestAction.ROLLBACK, reason, Output(form), seconds)


@with_cluster
def stop(
    access: Access,
    name: JobArgument,
    reason: ReasonOption,
    form: OutputOption = Format.TEXT,
    seconds: TimeoutOption = _PATIENCE_SECONDS,
) -> None:
    """Stop a run for good, in any phase; its checkpoints and its trail stay."""
    _ask(access, name, RequestAction.STOP, reason, Output(form), seconds)


def _ask(access: Access, job: str, action: RequestAction, reason: str, output: Output, seconds: float) -> None:
    """Ask and wait; exit code 0 when it is accepted, 1 when it is refused."""
    made = make_request(access, job, action, reason)
    name = made["metadata"]["name"]
    with output.busy(f"runrequest {name}: waiting for the operator's answer"):
        request = wait_for_answer(access, name, seconds)
    answer = request_summary(request)
    if answer["state"] is None:
        raise CliError(
            f"No operator has answered runrequest {name} within {seconds:.0f} s; it stays and may be answered later: "
            f"kubectl get runrequest {name}."
        )
    output.result(answer, lambda: output.line(f"{answer['state']}: {answer['message']}"))
    raise typer.Exit(1 if answer["state"] == RequestState.REFUSED else 0)
