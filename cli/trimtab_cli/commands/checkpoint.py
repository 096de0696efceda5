"""`trimtab checkpoint`: which checkpoints a run has, how far each can be trusted, and whether it is whole."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_checkpoints
from trimtab_cli.checkpoint_verification import Verification, verify_checkpoint
from trimtab_cli.checkpoint_view import CHECKPOINT_COLUMNS, CheckpointRow, checkpoint_rows, table_row
from trimtab_cli.errors import NotFound
from trimtab_cli.options import (
    JobArgument,
    OutputOption,
)
from trimtab_cli.output import Format, Output
from trimtab_cli.trail import read_trail

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.command("list")
@with_checkpoints
def list_checkpoints(
    access: Access,
    job: JobArgument,
    form: OutputOption = Format.TEXT,
) -> None:
    """List the checkpoints with state, evidence, size, age, and why one was not chosen for a rollback."""
    output = Output(form)
    body = access.job(job)
    with output.busy("reading the trail and the bucket"):
        trail = read_trail(access.journal(access.run(job)))
        store, _ = access.checkpoints(body)
        rows = checkpoint_rows(trail, lambda prefix: sum(store.sizes(prefix).values()))

    def show() -> None:
        if rows:
            output.table(CHECKPOINT_COLUMNS, [table_row(row, time.time()) for row in rows])
        else:
            output.line(f"job {job} has no checkpoint yet")

    output.result(rows, show)


@app.command()
@with_checkpoints
def verify(
    access: Access,
    job: JobArgument,
    step: Annotated[int | None, typer.Argument(metavar="[STEP]", help="Only checkpoints of this step.")] = None,
    form: OutputOption = Format.TEXT,
) -> None:
    """Read checkpoints whole and hash them against the journal; without STEP all but the quarantined ones."""
    output = Output(form)
    body = access.job(job)
    with output.busy("reading the trail"):
        trail = read_trail(access.journal(access.run(job)))
    rows = [row for row in checkpoint_rows(trail, lambda _prefix: 0) if _wanted(row, step)]
    if not rows:
        raise NotFound(f"Job {job} has no checkpoint" + (f" of step {step}." if step is not None else " to verify."))
    store, _ = access.checkpoints(body)
    found = [verify_checkpoint(store, row.key, row.sha256) for row in output.each(rows, "hashing checkpoints")]

    def show() -> None:
        for row, verification in zip(rows, found, strict=True):
            _show(output, row, verification)

    output.result([_json(row, one) for row, one in zip(rows, found, strict=True)], show)
    raise typer.Exit(1 if any(one.problems for one in found) else 0)


def _wanted(row: CheckpointRow, step: int | None) -> bool:
    return row.step == step if step is not None else row.state != "Quarantined"


def _show(output: Output, row: CheckpointRow, verification: Verification) -> None:
    name = f"step {row.step} of attempt {row.attempt}"
    for problem in verification.problems:
        output.line(f"{name}: {problem}", "red")
    if not verification.problems:
        size = f"{verification.size / 1e6:.1f} MB"
        output.line(f"{name}: {verification.objects} objects, {size}, every hash agrees with the journal", "green")


def _json(row: CheckpointRow, verification: Verification) -> Mapping[str, Any]:
    return {
        "step": row.step,
        "attempt": row.attempt,
        "key": row.key,
        "verified": not verification.problems,
        "objects": verification.objects,
        "size": verification.size,
        "problems": verification.problems,
    }
