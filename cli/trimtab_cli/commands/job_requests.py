"""`trimtab job hold`, `resume`, `rollback`, `skip`, `stop`, `approve` and `reject`: people's hands on a run."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from trimtab_operator.run_state import RequestAction

from trimtab_cli.access import Access
from trimtab_cli.errors import CliError, UsageError
from trimtab_cli.job_view import plan_lines
from trimtab_cli.output import Format, Output
from trimtab_cli.request_options import asks
from trimtab_cli.run_requests import WaitingPlan, waiting_plan

Spec = Mapping[str, Any]

_WINDOWS = re.compile(r"([0-9]+)-([0-9]+)")
_SHORTEST_HASH = 8

WindowsArgument = Annotated[
    str, typer.Argument(metavar="FIRST-LAST", help="Absolute data windows, both included, such as 480-505.")
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="STEP|KEY", help="The checkpoint's step or manifest key; else the newest good one."),
]
SkipOption = Annotated[
    str | None,
    typer.Option("--skip", metavar="FIRST-LAST", help="Windows not to train on, in place of what would be measured."),
]
ScaleOption = Annotated[
    float | None, typer.Option("--lr-scale", help="Multiply the learning rate by this for --lr-steps steps.")
]
StepsOption = Annotated[int | None, typer.Option("--lr-steps", min=1, help="How long --lr-scale holds.")]
UnchangedOption = Annotated[
    bool, typer.Option("--unchanged", help="Change nothing: train the same steps again; recorded as such.")
]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="HASH", help="The plan's hash, or how it begins; shown by approve.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask; needs --plan.")]


@asks(RequestAction.HOLD)
def hold(_access: Access, _name: str) -> Spec:
    """Hold a run that trains at its next step boundary, until somebody says how it goes on."""
    return {}


@asks(RequestAction.RESUME)
def resume(_access: Access, _name: str) -> Spec:
    """Let a run that is held or paused, or that needs a human, go on from where it holds."""
    return {}


@asks(RequestAction.ROLLBACK)
def rollback(
    _access: Access,
    _name: str,
    to: ToOption = None,
    skip: SkipOption = None,
    scale: ScaleOption = None,
    steps: StepsOption = None,
    unchanged: UnchangedOption = False,
) -> Spec:
    """Take a run back to a checkpoint; where no rule has fired, say what shall change, or that nothing shall."""
    if (scale is None) is not (steps is None):
        raise UsageError("--lr-scale and --lr-steps belong together: by how much, and for how many steps.")
    args: dict[str, Any] = {}
    if to is not None:
        args |= {"toStep": int(to)} if to.isdecimal() else {"toKey": to}
    if skip is not None:
        args["skip"] = _windows(skip)
    if scale is not None:
        args["learningRate"] = {"scale": scale, "forSteps": steps}
    if unchanged:
        args["unchanged"] = True
    return {"args": args} if args else {}


@asks(RequestAction.SKIP)
def skip(_access: Access, _name: str, windows: WindowsArgument) -> Spec:
    """Take windows out that the run has not come to, such as a shard that is known to be bad."""
    return {"args": {"skip": _windows(windows)}}


@asks(RequestAction.STOP)
def stop(_access: Access, _name: str) -> Spec:
    """Stop a run for good, in any phase; its checkpoints and its trail stay."""
    return {}


@asks(RequestAction.APPROVE)
def approve(access: Access, name: str, plan: PlanOption = None, yes: YesOption = False) -> Spec:
    """Let a plan be carried out that waits for approval: it is shown, and you are asked."""
    if yes and plan is None:
        raise UsageError("--yes would approve whatever waits by then: name the plan with --plan HASH.")
    waiting = waiting_plan(access, name)
    hashed = _hash_of(waiting, plan)
    if not yes:
        _confirm(waiting)
    return {"planHash": hashed}


@asks(RequestAction.REJECT)
def reject(access: Access, name: str, plan: PlanOption = None) -> Spec:
    """Keep a plan from being carried out that waits for approval; the run stays held, and needs a human."""
    return {"planHash": _hash_of(waiting_plan(access, name), plan)} if plan is not None else {}


def _windows(text: str) -> dict[str, int]:
    found = _WINDOWS.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} are no windows: write them as FIRST-LAST, such as 480-505.")
    if int(found[1]) > int(found[2]):
        raise UsageError(f"{text!r} are no windows: the first, {found[1]}, is behind the last, {found[2]}.")
    return {"first": int(found[1]), "last": int(found[2])}


def _hash_of(waiting: WaitingPlan, named: str | None) -> str:
    """The whole hash of the plan that is meant; another than the one that waits is named before anybody is asked."""
    if named is None or (len(named) >= _SHORTEST_HASH and waiting.hash.startswith(named)):
        return waiting.hash
    raise CliError(f"Plan {named} is not the one that waits: that is {waiting.hash}; look at it again.")


def _confirm(waiting: WaitingPlan) -> None:
    """Show the plan on standard error and ask; raises UsageError where nobody answers, Exit for a no."""
    output = Output(Format.TEXT)
    for line in plan_lines(waiting.plan):
        output.say(line, style="")
    output.say(f"  {waiting.message}", style="")
    try:
        agreed = typer.confirm("Approve it?", err=True)
    except typer.Abort as error:
        message = f"Nothing is approved; where nobody can be asked, give --plan {waiting.hash} --yes."
        raise UsageError(message) from error
    if not agreed:
        output.say("Nothing was asked for: the plan still waits.", style="")
        raise typer.Exit(1)
