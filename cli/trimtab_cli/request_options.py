"""What requests of people have in common on the command line: the job, the reason, and the wait for the answer."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from trimtab_operator.run_state import RequestAction, RequestState

from trimtab_cli.access import Access
from trimtab_cli.access_options import Command, with_cluster
from trimtab_cli.errors import CliError
from trimtab_cli.job_view import condition_message
from trimtab_cli.options import JobArgument, OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.run_requests import make_request, request_summary, wait_for_answer

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the trail with your name.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the answer.")]
PATIENCE_SECONDS = 60.0

Arguments = Callable[..., Mapping[str, Any]]
"""Takes `access`, the job's name and options of its own; gives what the RunRequest's spec has besides the usual."""

_KEYWORD, _REQUIRED = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
_SHARED = (
    inspect.Parameter("reason", _KEYWORD, default=_REQUIRED, annotation=ReasonOption),
    inspect.Parameter("form", _KEYWORD, default=Format.TEXT, annotation=OutputOption),
    inspect.Parameter("seconds", _KEYWORD, default=PATIENCE_SECONDS, annotation=TimeoutOption),
)


def asks(action: RequestAction) -> Callable[[Arguments], Command]:
    """Make a command of a function that says what is asked for."""

    def decorate(arguments: Arguments) -> Command:
        @functools.wraps(arguments)
        def command(*, access: Access, name: str, reason: str, form: Format, seconds: float, **own: Any) -> None:
            spec = arguments(access, name, **own)
            _ask(access, name, action, {"reason": reason, **spec}, Output(form), seconds)

        parameters = list(inspect.signature(arguments).parameters.values())
        kept = parameters[2:]
        first = [
            inspect.Parameter("access", _KEYWORD, annotation=Access),
            inspect.Parameter("name", _KEYWORD, annotation=JobArgument),
        ]
        options = [one.replace(kind=_KEYWORD) for one in kept]
        required = [one for one in options if one.default is _REQUIRED]
        optional = [one for one in options if one.default is not _REQUIRED]
        made = [*first, *required, _SHARED[0], *optional, *_SHARED[1:]]
        command.__signature__ = inspect.Signature(made)  # pyright: ignore[reportAttributeAccessIssue] - what inspect looks at first
        command.__annotations__ = {one.name: one.annotation for one in made}
        return with_cluster(command)

    return decorate


def _ask(
    access: Access, job: str, action: RequestAction, spec: Mapping[str, Any], output: Output, seconds: float
) -> None:
    """Ask and wait; exit code 0 when it is accepted, 1 when it is refused."""
    made = make_request(access, job, action, spec)
    name = made["metadata"]["name"]
    with output.busy(f"runrequest {name}: waiting for the operator's answer"):
        request = wait_for_answer(access, name, seconds)
    answer = request_summary(request)
    if answer["state"] is None:
        broken = condition_message(access.job(job), "JournalBroken")
        if broken:
            raise CliError(f"Runrequest {name} is not answered while the run's journal is broken: {broken}")
        raise CliError(
            f"No operator has answered runrequest {name} within {seconds:.0f} s; it stays and may be answered later: "
            f"kubectl get runrequest {name}."
        )
    output.result(answer, lambda: output.line(f"{answer['state']}: {answer['message']}"))
    raise typer.Exit(1 if answer["state"] == RequestState.REFUSED else 0)
