"""`trimtab demo`: a damaged training run on a real cluster is seen, rolled back, skipped past, resumed and audited."""

import json
import math
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from trimtab_contract.data_position import SkipLedger

from trimtab_cli.access import Access
from trimtab_cli.batch_logs import read_batch_logs, read_surviving_records
from trimtab_cli.cluster_choice import ClusterChoice, KubernetesObject
from trimtab_cli.commands.audit import as_json, read_stored, verify_run
from trimtab_cli.commands.sandbox import bring_up
from trimtab_cli.demo.display import display
from trimtab_cli.demo.findings import Finding, damage_incident, judge_run
from trimtab_cli.demo.stage import (
    DAMAGED_WINDOWS,
    JOB,
    NAMESPACE,
    Stage,
    apply_example,
    prepare_data,
    remove_old_job,
)
from trimtab_cli.errors import CliError
from trimtab_cli.exactness import skipped_since, trained_windows
from trimtab_cli.following import FINAL_PHASES, changes
from trimtab_cli.installation import SANDBOX_VALUES, install_chart
from trimtab_cli.job_view import job_summary
from trimtab_cli.json_values import json_value
from trimtab_cli.narrative import incident_story
from trimtab_cli.options import OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.sandbox_link import repository
from trimtab_cli.trail import read_trail

SUMMARY = Path("build/demo/summary.json")


def demo(
    form: OutputOption = Format.TEXT,
    summary: Annotated[Path | None, typer.Option("--summary", help="Where the summary goes.")] = None,
    seconds: Annotated[
        float, typer.Option("--timeout", help="Give up when the job shows nothing new for this many seconds.")
    ] = 300.0,
    operator: Annotated[
        bool, typer.Option("--operator/--no-operator", help="Install or upgrade the operator first.")
    ] = True,
) -> None:
    """Run the whole loop on this machine and tell what happened; exit code 0 only when all of it holds."""
    output = Output(form)
    begun = time.monotonic()
    info = bring_up(output)
    stage = Stage(info.home, info.environment)
    access = Access(
        ClusterChoice(info.kubeconfig, None, NAMESPACE),
        audit_endpoint=info.environment["TRIMTAB_S3_ENDPOINT"],
        audit_bucket=info.environment["TRIMTAB_AUDIT_BUCKET"],
        checkpoint_endpoint=info.environment["TRIMTAB_S3_ENDPOINT"],
        environment=info.environment,
    )
    if operator:
        install_chart(output, access.choice, values=repository() / SANDBOX_VALUES, environment=info.environment)
    remove_old_job(output, access)
    prepare_data(output, stage)
    apply_example(output, stage)
    job = _follow(output, access, seconds)
    answer = _examine(output, access, job)
    answer["seconds"] = round(time.monotonic() - begun, 1)
    path = summary or repository() / SUMMARY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    output.result(answer, lambda: _tell(output, answer, path))
    raise typer.Exit(0 if answer["holds"] else 1)


def _follow(output: Output, access: Access, seconds: float) -> KubernetesObject:
    """Show the job live until it ends; raises CliError when it does not complete."""
    job: KubernetesObject = access.job(JOB)
    output.say(f"the job {JOB} trains; a stretch of its data is noise, and nobody was told", style="bold")
    with display(output) as shown:
        for change in changes(access, JOB, idle_seconds=seconds, final=FINAL_PHASES | {"NeedsHuman"}):
            if isinstance(change, str):
                shown.event(change)
            else:
                job = change
                shown.job(job)
    summary = job_summary(job)
    if summary["phase"] != "Completed":
        said = f": {summary['message']}" if summary["message"] else ""
        if summary["phase"] not in FINAL_PHASES | {"NeedsHuman"}:
            raise CliError(
                f"The job {JOB} showed nothing new for {seconds:g} s and is {summary['phase']} at step "
                f"{summary['step'] or 0}{said}. It may still go on: follow it with `trimtab job watch {JOB}`, or give "
                "the demo a longer --timeout."
            )
        raise CliError(
            f"The job {JOB} is {summary['phase']} at step {summary['step'] or 0} instead of Completed{said}. "
            f"`trimtab job describe {JOB}` and the logs of its pods say more."
        )
    return job


def _examine(output: Output, access: Access, job: KubernetesObject) -> dict[str, Any]:
    """Read the trail, the batch logs and the records, and hold them against what the demo promises."""
    run = access.run(JOB)
    stored = read_stored(access, run)
    trail = read_trail(stored.bodies)
    verified = verify_run(output, access, run, stored)
    store, root = access.checkpoints(job)
    config = job["spec"]["trainer"]["config"]
    ledger = SkipLedger(trail.state.directive.skip if trail.state.directive else ())
    with output.busy("comparing what was trained on with what should have been"):
        exactness = trained_windows(
            read_batch_logs(store, root, run),
            trail.state.attempts,
            ledger,
            int(config["steps"]),
            skipped_since(trail.counted),
            ranks=job["spec"]["trainer"]["numNodes"] * job["spec"]["trainer"]["numProcPerNode"],
        )
        records = read_surviving_records(store, root, run, trail.state.attempts)
    losses = {step: one.scalars.get("loss", math.nan) for step, one in records.items()}
    storage = verified.storage.says if verified.storage is not None else "no problem found"
    findings = judge_run(trail.state, DAMAGED_WINDOWS, exactness, losses, verified.problems, storage)
    incident = damage_incident(trail.state, DAMAGED_WINDOWS)
    return {
        "job": f"{NAMESPACE}/{JOB}",
        "run": str(run),
        "holds": all(one.holds for one in findings),
        "findings": json_value(findings),
        "story": list(incident_story(trail.counted, incident)) if incident else [],
        "incident": json_value(incident),
        "exactness": json_value(exactness),
        "finalLoss": losses.get(int(config["steps"])),
        "audit": as_json(run, verified),
    }


def _tell(output: Output, answer: dict[str, Any], path: Path) -> None:
    output.line()
    output.line("What happened", "bold")
    for sentence in answer["story"]:
        output.line(f"  {sentence}")
    output.line(f"  The run finished with a loss of {answer['finalLoss']:.3f}." if answer["finalLoss"] else "")
    output.line()
    output.line("What was checked", "bold")
    for one in (msgspec.convert(finding, Finding) for finding in answer["findings"]):
        mark, style = ("yes", "green") if one.holds else ("NO ", "bold red")
        output.line(f"  {mark}  {one.name}: {one.detail}", style)
    audit = answer["audit"]
    output.line(
        f"  The trail has {audit['records']} records, intact up to {audit['intactUntil']}; "
        f"{audit['evidenceFetched']} pieces of evidence were fetched and hashed."
    )
    output.line()
    output.line(
        f"It took {answer['seconds']:.0f} s; the summary is in {path}. The sandbox stays up. Look around:", "bold"
    )
    for hint in hints():
        output.line(f"  {hint}")


def hints() -> tuple[str, ...]:
    """What to type in a shell to look around."""
    setup = () if shutil.which("trimtab") else (f'export PATH="{repository()}/.venv/bin:$PATH"',)
    return (
        *setup,
        'eval "$(trimtab sandbox env)"',
        "kubectl get tj,gp,gi",
        f"kubectl describe tj {JOB}",
        f"trimtab job describe {JOB}",
        f"trimtab audit show {JOB}",
        f"trimtab audit show {JOB} --incident last",
        f"trimtab audit verify {JOB}",
        f"trimtab checkpoint list {JOB}",
        "make clean",
    )
