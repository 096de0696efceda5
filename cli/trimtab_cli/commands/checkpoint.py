"""`trimtab checkpoint`: which checkpoints a run has, how far each can be trusted, and whether it is whole."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from trimtab_contract.config_record import OLDER_MANIFEST
from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources import parse_training_job_spec
from trimtab_operator.retention import Fate
from trimtab_operator.run_state import RESTORABLE, RunState

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_checkpoints
from trimtab_cli.checkpoint_export import CONFIG, WEIGHTS, Exported, choose, export_checkpoint
from trimtab_cli.checkpoint_verification import Verification, verify_checkpoint
from trimtab_cli.checkpoint_view import (
    CHECKPOINT_COLUMNS,
    CheckpointRow,
    checkpoint_rows,
    continued_by,
    retention_fates,
    table_row,
)
from trimtab_cli.cluster_choice import KubernetesObject
from trimtab_cli.errors import CliError, NotAllowed, NotFound, UsageError
from trimtab_cli.job_view import section
from trimtab_cli.options import (
    JobArgument,
    OutputOption,
)
from trimtab_cli.output import Format, Output
from trimtab_cli.run_records import policy_of
from trimtab_cli.trail import read_trail

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.command("list")
@with_checkpoints
def list_checkpoints(
    access: Access,
    job: JobArgument,
    form: OutputOption = Format.TEXT,
) -> None:
    """List the checkpoints: state, evidence, size, age, why one was not chosen for a rollback, and why it is kept."""
    output = Output(form)
    body = access.job(job)
    with output.busy("reading the trail and the bucket"):
        run = access.run(job)
        trail = read_trail(access.journal(run))
        store, _ = access.checkpoints(body)
        fates = _fates(access, str(run), body, trail.state)
        rows = checkpoint_rows(trail, lambda prefix: sum(store.sizes(prefix).values()), fates)

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
    """Read checkpoints whole and hash them against the journal; without STEP those that may be restored.

    Also says which fields of the job's configuration keep it from going on from them.
    """
    output = Output(form)
    body = access.job(job)
    with output.busy("reading the trail"):
        trail = read_trail(access.journal(access.run(job)))
    rows = [row for row in checkpoint_rows(trail, lambda _prefix: 0) if _wanted(row, step)]
    if not rows:
        raise NotFound(f"Job {job} has no checkpoint" + (f" of step {step}." if step is not None else " to verify."))
    store, _ = access.checkpoints(body)
    trainer = section(body["spec"], "trainer")
    found = [verify_checkpoint(store, row.key, row.sha256, trainer) for row in output.each(rows, "hashing checkpoints")]

    def show() -> None:
        for row, verification in zip(rows, found, strict=True):
            _show(output, row, verification)

    output.result([_json(row, one) for row, one in zip(rows, found, strict=True)], show)
    raise typer.Exit(1 if any(one.problems for one in found) else 0)


@app.command()
@with_checkpoints
def export(
    access: Access,
    job: JobArgument,
    step: Annotated[int, typer.Argument(metavar="STEP", help="The step of the checkpoint.")],
    target: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="A new folder; else JOB-STEP here.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Where several attempts saved this step.")
    ] = None,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Also when it must not be restored.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Write a checkpoint's weights as model.safetensors and config.json, for any program that reads them.

    Every object is hashed against the journal first, and nothing of torch is needed. The folder appears whole or not
    at all.
    """
    if target is not None and str(target) in {one.value for one in Format}:
        raise UsageError(f"-o names the folder here; `{target}` is none. --json prints a summary as JSON.")
    output = Output(Format.JSON if as_json else Format.TEXT)
    body = access.job(job)
    run = access.run(job)
    with output.busy("reading the trail"):
        rows = checkpoint_rows(read_trail(access.journal(run)), lambda _prefix: 0)
    row = choose(rows, job, step, attempt, quarantined=quarantined)
    store, _ = access.checkpoints(body)
    folder = target or Path(f"{job}-{step}")
    found = export_checkpoint(output, store, row, section(body["spec"], "trainer"), str(run), folder)
    output.result(found, lambda: _show_exported(output, found))


def _show_exported(output: Output, found: Exported) -> None:
    size = f"{found.size / 1e6:.1f} MB"
    output.line(f"{found.folder}: {found.tensors} tensors, {size}, SHA-256 of {WEIGHTS} {found.sha256}", "green")
    if found.changes:
        edited = "; ".join(found.changes)
        output.line(f"spec.trainer.config was edited since, {CONFIG} has what was saved: {edited}", "yellow")
    elif not found.config_unchanged and not found.config_recorded:
        output.line(
            f"spec.trainer.config was edited since: what the tensors do not show in {CONFIG} (heads, sequence, "
            "rotaryBase, normEpsilon) is as the job says it now",
            "yellow",
        )


def _fates(access: Access, run: str, body: Mapping[str, Any], state: RunState) -> tuple[Fate, ...]:
    """Why each checkpoint is kept; nothing where the texts of the policies in force, which say so, cannot be read."""
    step = int(section(body, "status").get("step") or max((one.reference.step for one in state.checkpoints), default=0))
    try:
        spec = parse_training_job_spec(body["spec"])
        # What is over needs no policy, and any version can say so.
        identities = state.guards[-1].policies if state.guards and not state.ended else ()
        policies = [policy_of(access.audit, identity).spec for identity in identities]
    except (CliError, InvalidResource):
        return ()
    return retention_fates(state, spec, policies, step, continued_by(state, run, _jobs(access)))


def _jobs(access: Access) -> list[KubernetesObject]:
    """All training jobs, as far as this user may see them."""
    try:
        return access.cluster.resources("trainingjobs", everywhere=True)
    except NotAllowed:
        return access.cluster.resources("trainingjobs")


def _wanted(row: CheckpointRow, step: int | None) -> bool:
    return row.step == step if step is not None else row.state in RESTORABLE and row.surviving


def _show(output: Output, row: CheckpointRow, verification: Verification) -> None:
    name = f"step {row.step} of attempt {row.attempt}"
    for problem in verification.problems:
        output.line(f"{name}: {problem}", "red")
    if not verification.problems:
        size = f"{verification.size / 1e6:.1f} MB"
        output.line(f"{name}: {verification.objects} objects, {size}, every hash agrees with the journal", "green")
    if verification.misfits:
        misfits = "; ".join(verification.misfits)
        output.line(f"{name}: spec.trainer.config is not what it was saved under: {misfits}", "yellow")
    if not verification.config_recorded:
        output.line(f"{name}: {OLDER_MANIFEST}")


def _json(row: CheckpointRow, verification: Verification) -> Mapping[str, Any]:
    return {
        "step": row.step,
        "attempt": row.attempt,
        "key": row.key,
        "verified": not verification.problems,
        "objects": verification.objects,
        "size": verification.size,
        "problems": verification.problems,
        "misfits": verification.misfits,
    }
