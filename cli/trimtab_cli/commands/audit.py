"""`trimtab audit`: the trail of a run, and its proof."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.journal import record_hash
from trimtab_contract.keys import RunId

from trimtab_cli.access import Access, Bodies
from trimtab_cli.access_options import with_checkpoints, with_trail
from trimtab_cli.adapters.object_store import ObjectStore
from trimtab_cli.errors import CliError, NotFound
from trimtab_cli.job_view import section
from trimtab_cli.narrative import incident_story, record_line, record_row
from trimtab_cli.options import (
    OutputOption,
    RunArgument,
)
from trimtab_cli.output import Format, Output
from trimtab_cli.trail import NamedEvidence, TrailReport, examine, named_evidence, read_trail, readable_records

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
    job: RunArgument,
    form: OutputOption = Format.TEXT,
    without_checkpoints: Annotated[
        bool, typer.Option("--without-checkpoints", help="Do not fetch what lies in the checkpoint bucket.")
    ] = False,
) -> None:
    """Prove the trail: hash chain, legal changes of phase, evidence.

    Exit code 1 on any problem, and when something the trail names cannot be looked at: that is not proved.
    """
    output = Output(form)
    run = access.run(job)
    with output.busy("reading the trail"):
        bodies = access.journal(run)
    verified = verify_run(output, access, run, bodies, checkpoints=not without_checkpoints)
    output.result(as_json(run, verified), lambda: _show_report(output, run, verified))
    raise typer.Exit(1 if verified.problems else 0)


class Verified:
    """A trail's report together with what its evidence turned out to be."""

    def __init__(self, report: TrailReport, evidence_problems: list[str], fetched: int, unchecked: int) -> None:
        self.report = report
        self.problems = (*report.problems, *evidence_problems)
        self.fetched = fetched
        self.unchecked = unchecked


def verify_run(
    output: Output,
    access: Access,
    run: RunId,
    bodies: Bodies,
    *,
    checkpoints: bool = True,
    store: ObjectStore | None = None,
) -> Verified:
    """Verify a journal and fetch and hash every object it names; `store` is the checkpoint bucket, where known."""
    report = examine(bodies, _vouched(access, run))
    items = named_evidence(readable_records(bodies))
    wanted = [item for item in items if checkpoints or item.evidence.store == "audit"]
    getters: dict[str, Callable[[str], bytes]] = {"audit": access.audit.get}
    problems: list[str] = []
    if any(item.evidence.store == "checkpoint" for item in wanted):
        try:
            getters["checkpoint"] = (store or access.checkpoints(access.job_of(run))[0]).get
        except CliError as error:
            wanted = [item for item in wanted if item.evidence.store != "checkpoint"]
            unproved = f"{len(items) - len(wanted)} objects in the checkpoint bucket are not proved"
            way_out = "Give --without-checkpoints to prove the trail and the audit bucket alone"
            problems.append(f"{unproved}, for where it is cannot be told now: {error} {way_out}")
    for item in output.each(wanted, "fetching evidence"):
        problem = _check(item, getters)
        if problem:
            problems.append(problem)
    return Verified(report, problems, len(wanted), len(items) - len(wanted))


def as_json(run: RunId, verified: Verified) -> dict[str, Any]:
    """The answer of `audit verify`."""
    report = verified.report
    return {
        "run": str(run),
        "verified": not verified.problems,
        "records": report.records,
        "headSeq": report.head_seq,
        "headHash": report.head_hash,
        "intactUntil": report.intact_until,
        "vouchedUntil": report.vouched_until,
        "phase": report.phase,
        "fencedRecords": report.ignored,
        "evidenceFetched": verified.fetched,
        "evidenceUnchecked": verified.unchecked,
        "problems": verified.problems,
    }


def _check(item: NamedEvidence, getters: dict[str, Callable[[str], bytes]]) -> str:
    evidence = item.evidence
    if evidence.store not in getters:
        return f"record {item.seq}: its evidence {evidence.key} lies in an unknown store, {evidence.store}"
    try:
        found = sha256_hex(getters[evidence.store](evidence.key))
    except NotFound:
        return f"record {item.seq}: its evidence {evidence.key} is gone"
    return "" if found == evidence.sha256 else f"record {item.seq}: its evidence {evidence.key} has another hash"


def _vouched(access: Access, run: RunId) -> tuple[int, str] | None:
    """What the TrainingJob's status knows of the trail: it lies in the cluster, not in the bucket."""
    try:
        job = access.job_of(run)
    except CliError:
        return None
    head = section(section(job, "status"), "journal")
    if not head:
        return None
    return int(head["seq"]), str(head["hash"])


def _show_report(output: Output, run: RunId, verified: Verified) -> None:
    report = verified.report
    output.line(f"run {run}: {report.records} records, phase {report.phase}")
    if report.ignored:
        listed = ", ".join(map(str, report.ignored))
        output.line(f"records of an operator that had been replaced, which count for nothing: {listed}")
    for problem in verified.problems:
        output.line(problem, "red")
    output.line(f"the chain is intact from record 1 to {report.intact_until} of {report.head_seq}")
    if report.vouched_until:
        output.line(f"record {report.vouched_until} is vouched for by the TrainingJob's status, and so all before it")
    else:
        output.line(
            f"nothing outside the bucket vouches for the end: proved up to record {max(0, report.head_seq - 1)}"
        )
    unchecked = f", {verified.unchecked} not fetched" if verified.unchecked else ""
    output.line(f"evidence: {verified.fetched} objects fetched and hashed{unchecked}")
    if verified.problems:
        output.line(f"NOT verified: {len(verified.problems)} problem(s)", "bold red")
    else:
        output.line("verified", "bold green")


def _lines(output: Output, lines: Any) -> None:
    for line in lines:
        output.line(line)
