"""`trimtab audit`: the trail of a run, and its proof."""

from pathlib import Path
from typing import Annotated, Any

import typer
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.journal import record_hash

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_checkpoints, with_trail
from trimtab_cli.anchor_signature import load_public_keys
from trimtab_cli.errors import NotFound, UsageError
from trimtab_cli.narrative import incident_story, record_line, record_row
from trimtab_cli.options import OutputOption, RunArgument
from trimtab_cli.output import Format, Output
from trimtab_cli.trail import intact_until, read_trail
from trimtab_cli.trail_file import names_file, pack, unpack
from trimtab_cli.trail_verification import (
    Verified,
    as_json,
    gather_trail,
    read_stored,
    report_lines,
    verify_file,
    verify_run,
)

__all__ = ["Verified", "app", "as_json", "read_stored", "verify_run"]

PublicKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Ed25519 public key in PEM that signs anchors; several where keys were changed.",
    ),
]
WithoutCheckpointsOption = Annotated[
    bool, typer.Option("--without-checkpoints", help="Do not fetch what lies in the checkpoint bucket.")
]

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.command()
@with_trail
def show(
    access: Access,
    job: RunArgument,
    form: OutputOption = Format.TEXT,
    incident: Annotated[
        str | None, typer.Option("--incident", help="Tell one incident as a story; `last` for the newest.")
    ] = None,
) -> None:
    """Print the trail in plain words, one line a record."""
    output = Output(form)
    run = access.run(job)
    with output.busy("reading the trail"):
        bodies = access.journal(run)
        trail = read_trail(bodies)
    whole = intact_until(bodies)
    if whole < len(bodies):
        broken = f"the chain is broken behind record {whole}: do not trust what is told of it and of what follows"
        output.say(f"{broken}; `trimtab audit verify {job}` says what is wrong", "bold red")
    if incident is None:
        rows = [record_row(one, record_hash(body)) for one, (_, body) in zip(trail.records, bodies, strict=True)]
        output.result(rows, lambda: _lines(output, [record_line(one) for one in trail.records]))
        return
    state = trail.state
    known = {one.name: one for one in (*state.closed, *((state.incident,) if state.incident else ()))}
    name = next(reversed(known), incident) if incident == "last" else incident
    if name not in known:
        had = f"it has had {', '.join(known)}" if known else "it has had none"
        raise NotFound(f"Run {run} has had no incident{'' if name == 'last' else f' {name}; {had}'}.")
    story = incident_story(trail.counted, known[name])
    output.result({"incident": name, "story": story}, lambda: _lines(output, story))


@app.command()
@with_checkpoints
def verify(
    access: Access,
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|FILE",
            help="Name of a TrainingJob, a run as NAMESPACE/NAME/UID (also of a deleted job), or a file of `export`.",
        ),
    ],
    form: OutputOption = Format.TEXT,
    public_key: PublicKeyOption = None,
    without_checkpoints: WithoutCheckpointsOption = False,
) -> None:
    """Prove the trail: chain, legal changes of phase, anchor and signature, evidence, the bucket's versions.

    A file is proved by itself, without a cluster and without S3. Exit code 1 on any problem, and when something the
    trail names cannot be looked at: that is not proved.
    """
    output = Output(form)
    keys = load_public_keys(public_key or ())
    if names_file(job):
        trail = unpack(Path(job))
        run, verified = trail.run, verify_file(output, trail, keys)
        if trail.keys and not keys:
            output.say("the public key lies in the file itself: compare its fingerprint with one you got elsewhere")
    else:
        run = access.run(job)
        with output.busy("reading the trail"):
            stored = read_stored(access, run)
        verified = verify_run(output, access, run, stored, checkpoints=not without_checkpoints, keys=keys)
    output.result(as_json(run, verified), lambda: _show(output, report_lines(run, verified)))
    raise typer.Exit(1 if verified.problems else 0)


@app.command()
@with_checkpoints
def export(
    access: Access,
    job: RunArgument,
    target: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file; else NAME-trail.zip here.")
    ] = None,
    public_key: PublicKeyOption = None,
    without_checkpoints: WithoutCheckpointsOption = False,
    as_json_summary: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Pack the trail, all that it names, its anchor and public keys into one file, which `verify` proves by itself.

    The same trail gives the same bytes. What is missing or altered is packed as it is: `verify` says so.
    """
    if target is not None and str(target) in {one.value for one in Format}:
        raise UsageError(f"-o names the file here; `{target}` is none. --json prints a summary as JSON.")
    output = Output(Format.JSON if as_json_summary else Format.TEXT)
    keys = load_public_keys(public_key or ())
    run = access.run(job)
    with output.busy("reading the trail"):
        stored = read_stored(access, run)
    trail = gather_trail(output, access, run, stored, checkpoints=not without_checkpoints, keys=keys)
    path = target or Path(f"{run.name}-trail.zip")
    size = pack(path, trail)
    summary = {
        "run": str(run),
        "file": str(path),
        "bytes": size,
        "sha256": sha256_hex(path.read_bytes()),
        "records": len(trail.bodies),
        "objects": len(trail.objects),
        "anchoredUntil": trail.anchor.seq if trail.anchor is not None else 0,
    }
    output.result(summary, lambda: output.line(_packed(summary)))


def _packed(summary: dict[str, Any]) -> str:
    what = f"{summary['records']} records and {summary['objects']} objects"
    return f"{summary['file']}: {what} of run {summary['run']}, SHA-256 {summary['sha256']}"


def _show(output: Output, lines: list[tuple[str, str]]) -> None:
    for text, style in lines:
        output.line(text, style)


def _lines(output: Output, lines: Any) -> None:
    for line in lines:
        output.line(line)
