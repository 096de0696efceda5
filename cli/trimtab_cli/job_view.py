"""A TrainingJob, its incidents and its Events in words. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

JOB_COLUMNS = ("Name", "Namespace", "Phase", "Step", "Loss", "Attempt", "Rollbacks", "Checkpoint", "Age")

Body = Mapping[str, Any]
"""An object of the API server, or a part of one."""


def section(body: Body, name: str) -> Body:
    """A part of an object; empty when it is absent."""
    found: Body | None = body.get(name)
    return found or {}


def items(body: Body, name: str) -> Sequence[Body]:
    """A list in an object; empty when it is absent."""
    found: Sequence[Body] | None = body.get(name)
    return found or ()


def condition_message(job: Body, kind: str) -> str:
    """What a condition that holds says; empty where it does not."""
    found = (one for one in items(section(job, "status"), "conditions") if one.get("type") == kind)
    return next((str(one.get("message") or "") for one in found if one.get("status") == "True"), "")


def job_summary(job: Body) -> dict[str, Any]:
    """What a list of jobs says of one."""
    status = section(job, "status")
    return {
        "name": job["metadata"]["name"],
        "namespace": job["metadata"]["namespace"],
        "uid": job["metadata"]["uid"],
        "phase": status.get("phase") or "Pending",
        "steps": section(section(job["spec"], "trainer"), "config").get("steps"),
        "step": status.get("step"),
        "loss": _number(status.get("loss")),
        **{
            name: status.get(name) for name in ("attempt", "rollbacks", "restarts", "checkpoint", "incident", "message")
        },
    }


def _number(text: str | None) -> float | str | None:
    """The number that a field of the status holds as text; one that is not finite stays text, as JSON has none."""
    number = None if text is None else float(text)
    return number if number is None or math.isfinite(number) else str(number)


def job_row(job: Body, now: float) -> tuple[str, ...]:
    """One row under `JOB_COLUMNS`."""
    summary = {**job_summary(job), "loss": section(job, "status").get("loss")}
    names = ("name", "namespace", "phase", "step", "loss", "attempt", "rollbacks", "checkpoint")
    cells = tuple("-" if summary[name] is None else str(summary[name]) for name in names)
    return (*cells, age(str(job["metadata"]["creationTimestamp"]), now))


def age(timestamp: str, now: float) -> str:
    """Time since an RFC 3339 timestamp in its largest unit, such as `7m`; `now` is seconds since the epoch."""
    seconds = max(0, int(now - datetime.fromisoformat(timestamp).timestamp()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def status_line(job: Body) -> str:
    """How a job is, in one line."""
    summary = job_summary(job)
    step = f"step {summary['step'] or 0}" + (f" of {summary['steps']}" if summary["steps"] else "")
    parts = [str(summary["phase"]), step]
    loss = section(job, "status").get("loss")
    if loss is not None:
        parts.append(f"loss {loss}")
    parts.append(f"attempt {summary['attempt'] or 0}")
    if summary["checkpoint"]:
        parts.append(f"checkpoint {summary['checkpoint']}")
    if summary["message"]:
        parts.append(str(summary["message"]))
    return ", ".join(parts)


def event_time(event: Body) -> str:
    """When an Event was first sent, to the second, such as `2026-01-01T00:00:00`; empty when it does not say."""
    return str(event.get("firstTimestamp") or event.get("eventTime") or "")[:19]


def event_order(event: Body) -> tuple[str, int]:
    """What sorts Events as they were made: their times have no parts of a second, what the API server counts has."""
    version = str(event["metadata"].get("resourceVersion") or "")
    return event_time(event), int(version) if version.isdecimal() else 0


def describe(job: Body, incidents: Sequence[Body], events: Sequence[Body]) -> Iterator[str]:
    """The story of a job: how it is, what its conditions say, its incidents, and what happened in order."""
    metadata, spec, status = section(job, "metadata"), section(job, "spec"), section(job, "status")
    trainer = section(spec, "trainer")
    yield f"{metadata['namespace']}/{metadata['name']}: {status_line(job)}"
    world = f"{trainer.get('numNodes', 1)} pod(s), world {status.get('world') or 0}"
    yield f"  {world}, {status.get('restarts') or 0} restart(s), {status.get('rollbacks') or 0} rollback(s)"
    yield f"  checkpoints every {spec['checkpoint'].get('everySteps')} steps in {spec['checkpoint']['uri']}"
    for policy in items(status, "policies"):
        yield f"  judged by {policy['kind']} {policy['name']}, generation {policy['generation']}"
    for condition in items(status, "conditions"):
        yield f"  {condition['type']} is {condition['status']} ({condition['reason']}){_tail(condition.get('message'))}"
    for incident in incidents:
        yield from _incident(incident)
    if events:
        yield "What happened"
    for event in events:
        moment = event_time(event)[11:]
        times = f" ({event['count']} times)" if int(event.get("count") or 1) > 1 else ""
        yield f"  {moment}  {event['reason']}: {event['message']}{times}"


def _incident(incident: Body) -> Iterator[str]:
    trigger, status = section(incident["spec"], "trigger"), section(incident, "status")
    yield f"Incident {incident['metadata']['name']}: {status.get('outcome') or status.get('phase') or 'open'}"
    asked, flagged = section(trigger, "request"), section(trigger, "flagged")
    if asked:
        yield f"  {asked['by']} asked for {asked['action']} at step {trigger['firedStep']}{_tail(asked.get('reason'))}"
    else:
        yield f"  rule {trigger['rule']} fired at step {trigger['firedStep']}{_tail(trigger.get('message'))}"
        yield f"  first bad step {trigger['firstBadStep']}, flagged windows {flagged['first']} to {flagged['last']}"
    if status.get("heldStep") is not None:
        yield f"  every rank held after step {status['heldStep']}"
    if status.get("finding"):
        yield f"  finding: {status['finding']}{_tail(status.get('findingReason'))}"
    failed = {one["number"]: one["reason"] for one in items(status, "failedPlans")}
    for plan in items(incident["spec"], "plans"):
        yield from plan_lines(plan, str(failed.get(plan["number"], "")))
    if status.get("phase") == "AwaitingApproval":
        yield f"  {status.get('message')}"
    skipped = section(status, "skipped")
    if skipped:
        yield f"  windows {skipped['first']} to {skipped['last']} are skipped, {skipped['bad']} of them measured as bad"
    if status.get("relapses"):
        yield f"  relapses: {status['relapses']}"


def plan_lines(plan: Body, failed: str = "") -> Iterator[str]:
    """What a plan would do, and the hash by which it is approved."""
    bound, rate = section(plan, "skipBound"), section(plan, "learningRate")
    why = f", which came to nothing: {failed}" if failed else ""
    yield f"  plan {plan['number']}: restore step {plan['target']['step']}{why}"
    if bound:
        yield f"    nothing outside windows {bound['first']} to {bound['last']} is skipped"
    if rate:
        yield f"    {rate['scale']} of the learning rate up to step {rate['untilStep']}"
    if plan.get("hash"):
        yield f"    hash {plan['hash']}"


def _tail(text: object) -> str:
    return f": {text}" if text else ""
