"""`trimtab job`: how training jobs are, what happened to one, and how one goes on."""

import json
import time
from typing import Annotated, Any

import typer

from trimtab_cli.access import Access
from trimtab_cli.access_options import with_cluster
from trimtab_cli.cluster_choice import KubernetesObject
from trimtab_cli.commands import job_requests
from trimtab_cli.following import changes
from trimtab_cli.job_view import JOB_COLUMNS, describe, items, job_row, job_summary, section, status_line
from trimtab_cli.options import EveryNamespaceOption, JobArgument, OutputOption
from trimtab_cli.output import Format, Output

app = typer.Typer(no_args_is_help=True, help=__doc__)
for request in (
    job_requests.hold,
    job_requests.resume,
    job_requests.rollback,
    job_requests.skip,
    job_requests.stop,
    job_requests.approve,
    job_requests.reject,
):
    app.command()(request)


@app.command("list")
@with_cluster
def list_jobs(
    access: Access,
    form: OutputOption = Format.TEXT,
    everywhere: EveryNamespaceOption = False,
) -> None:
    """List the training jobs."""
    output = Output(form)
    jobs = access.cluster.resources("trainingjobs", everywhere=everywhere)

    def show() -> None:
        if jobs:
            output.table(JOB_COLUMNS, [job_row(job, time.time()) for job in jobs])
        else:
            where = "any namespace" if everywhere else f"namespace {access.cluster.namespace}"
            output.line(f"no training jobs in {where}")

    output.result([job_summary(job) for job in jobs], show)


@app.command("describe")
@with_cluster
def describe_job(
    access: Access,
    name: JobArgument,
    form: OutputOption = Format.TEXT,
) -> None:
    """Tell how a job is, what happened to it and why."""
    output = Output(form)
    job = access.job(name)
    incidents = incidents_of(access, job)
    events = access.cluster.events(name, job["metadata"]["uid"])

    def show() -> None:
        for line in describe(job, incidents, events):
            output.line(line)

    answer: dict[str, Any] = {
        "job": job_summary(job),
        "conditions": items(section(job, "status"), "conditions"),
        "incidents": [{"name": one["metadata"]["name"], **_spec_and_status(one)} for one in incidents],
        "events": [_event(one) for one in events],
    }
    output.result(answer, show)


@app.command()
@with_cluster
def watch(
    access: Access,
    name: JobArgument,
    form: OutputOption = Format.TEXT,
    seconds: Annotated[float | None, typer.Option("--timeout", help="Give up after this many seconds.")] = None,
) -> None:
    """Print every change until the job ends; exit code 0 when it completed. JSON is one object a line."""
    output = Output(form)
    phase = ""
    for change in changes(access, name, seconds=seconds):
        if not isinstance(change, str):
            phase = str(section(change, "status").get("phase") or "Pending")
        if output.json:
            print(_json_line({"event": change} if isinstance(change, str) else job_summary(change)), flush=True)
        else:
            output.line(change if isinstance(change, str) else status_line(change))
    raise typer.Exit(0 if phase == "Completed" else 1)


def incidents_of(access: Access, job: KubernetesObject) -> list[KubernetesObject]:
    """The GuardIncidents of one run, oldest first."""
    uid = job["metadata"]["uid"]
    found = [one for one in access.cluster.resources("guardincidents") if one["spec"]["job"]["uid"] == uid]
    return sorted(found, key=lambda one: str(one["metadata"].get("creationTimestamp")))


def _json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spec_and_status(incident: KubernetesObject) -> dict[str, Any]:
    return {"spec": incident["spec"], "status": incident.get("status") or {}}


def _event(event: KubernetesObject) -> dict[str, Any]:
    return {
        "time": event.get("firstTimestamp") or event.get("eventTime"),
        "type": event.get("type"),
        "reason": event.get("reason"),
        "message": event.get("message"),
        "count": event.get("count") or 1,
    }
