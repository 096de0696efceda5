"""`trimtab report`: an incident as one page that can be kept, sent and printed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_checkpoints
from trimtab_cli.anchor_signature import load_public_keys
from trimtab_cli.commands.audit import PublicKeyOption
from trimtab_cli.errors import CliError, UsageError
from trimtab_cli.json_values import json_value
from trimtab_cli.output import Format, Output
from trimtab_cli.report.gathering import gather
from trimtab_cli.report.page import page
from trimtab_cli.report.records import find_checkpoints
from trimtab_cli.report.subject import NEWEST, find_subject
from trimtab_cli.report.views import Report


@with_checkpoints
def report(
    access: Access,
    incident: Annotated[
        str,
        typer.Argument(
            metavar="INCIDENT",
            help="A GuardIncident, or a TrainingJob or run (NAMESPACE/NAME/UID), whose newest incident is meant.",
        ),
    ],
    target: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page; else INCIDENT.html here.")
    ] = None,
    which: Annotated[
        str, typer.Option("--incident", metavar="NAME", help="Which incident of the job or run; `last` for the newest.")
    ] = NEWEST,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints", metavar="S3-URI", help="Where checkpoints and archive lie, for a job that is deleted."
        ),
    ] = None,
    public_key: PublicKeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Write one page about an incident: numbers, curves, checkpoints, plan, outcome, trail and proof.

    It needs no network to be read. Records come from the archive beside the checkpoints; where that cannot be read,
    from the evidence that was frozen when the run held. Exit code 1 when the trail is not verified; the page says so.
    """
    if target is not None and str(target) in {one.value for one in Format}:
        raise UsageError(f"-o names the page's file here; `{target}` is none. --json prints a summary as JSON.")
    output = Output(Format.JSON if as_json else Format.TEXT)
    signers = load_public_keys(public_key or ())
    with output.busy("reading the trail"):
        subject = find_subject(access, incident, which)
    found = gather(output, access, subject, find_checkpoints(access, subject.run, checkpoints), signers)
    written = page(found).encode("utf-8", errors="replace")
    path = target or Path(f"{subject.incident}.html")
    try:
        path.write_bytes(written)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from error
    output.result(_summary(found, path, len(written)), lambda: _show(output, found, path, len(written)))
    raise typer.Exit(0 if found.proof.verified else 1)


def _show(output: Output, found: Report, path: Path, size: int) -> None:
    for problem in found.proof.problems:
        output.line(problem, "red")
    output.line(found.headline)
    for note in found.notes:
        output.line(note, "yellow")
    output.line(f"{path}: {size / 1000:.0f} kB")


def _summary(found: Report, path: Path, size: int) -> dict[str, Any]:
    return {
        "page": str(path),
        "bytes": size,
        "run": found.run,
        "incident": found.incident,
        "headline": found.headline,
        "outcome": found.outcome,
        "notes": found.notes,
        "facts": json_value(found.facts),
        "phases": json_value(found.phases),
        "firstStep": found.first,
        "lastStep": found.last,
        "charts": [one.title for one in found.charts],
        "heatMaps": [one.title for one in found.heat_maps],
        "proof": json_value(found.proof),
    }
