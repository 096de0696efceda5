"""An incident in one sentence and in a table of facts. Pure."""

import json
from collections.abc import Iterator
from datetime import datetime

from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.run_state import RunState

from trimtab_cli.report.chapters import Chapters, PlanStory
from trimtab_cli.report.views import Fact

OPEN = "open"


def outcome_of(incident: Incident) -> str:
    """How the incident ended, in one word."""
    return incident.outcome or OPEN


def headline(chapters: Chapters, incident: Incident, state: RunState) -> str:
    """What fired on which numbers, what was done, and how it ended: one sentence."""
    latch = chapters.firings[0].latch if chapters.firings else incident.latch
    if latch.policy is None:
        began = f"A person asked at step {latch.fired_step} ({latch.message})"
    else:
        began = f"Rule {latch.rule} of policy {latch.policy.name} fired at step {latch.fired_step} ({latch.message})"
    return f"{began}; {', '.join([*_deeds(chapters, incident), _ending(chapters, incident, state)])}."


def _deeds(chapters: Chapters, incident: Incident) -> Iterator[str]:
    if chapters.holds:
        last = chapters.holds[0]
        yield "the pods were lost before they held" if last.lost else f"every rank held after step {last.step}"
    if incident.relapses:
        times = "once" if incident.relapses == 1 else f"{incident.relapses} times"
        yield f"the run relapsed {times}"
    if not chapters.plans:
        return
    plan = chapters.plans[-1]
    before = f"after {len(chapters.plans) - 1} plan(s) that did not help " if len(chapters.plans) > 1 else ""
    verb = "was restored" if plan.restored else "was chosen"
    yield f"{before}step {plan.plan.target.step} {verb}"
    if plan.skip is not None:
        yield f"windows {plan.skip.first} to {plan.skip.last} were skipped ({plan.skip.bad} measured as bad)"
    if plan.learning_rate is not None:
        rate = plan.learning_rate
        yield f"the learning rate was scaled by {rate.scale:g} up to step {rate.until_step}"


def _ending(chapters: Chapters, incident: Incident, state: RunState) -> str:
    if incident.outcome:
        why = f" ({chapters.closing})" if chapters.closing else ""
        return f"and the incident closed as {incident.outcome}{why}"
    question = f": {chapters.questions[-1]}" if chapters.questions and state.question else ""
    return f"and the incident is open in phase {state.phase.value}{question}"


def facts(chapters: Chapters, incident: Incident) -> tuple[Fact, ...]:
    """The incident's numbers, one row each."""
    latch = chapters.firings[0].latch if chapters.firings else incident.latch
    rows = [
        ("Outcome", outcome_of(incident)),
        *_trigger(latch),
        *_holds(chapters),
        *(("Finding", f"{finding}: {why}" if why else finding) for finding, why in chapters.findings),
        ("Relapses", str(incident.relapses) if incident.relapses else ""),
        *_plan_rows(chapters.plans[-1] if chapters.plans else None, chapters),
        *(("Asked a person", question) for question in chapters.questions),
        ("Opened", moment(chapters.opened_at)),
        ("Closed", _closed(chapters, incident)),
    ]
    return tuple(Fact(name, value) for name, value in rows if value)


def _trigger(latch: Latch) -> Iterator[tuple[str, str]]:
    policy = latch.policy
    if policy is None:
        yield "Asked for", f"{latch.message}, at step {latch.fired_step} of attempt {latch.attempt}"
        return
    where = f"{policy.namespace}/" if policy.namespace else ""
    yield "Rule", f"{latch.rule} on {latch.metric}, action {latch.action}"
    yield "Rule as it was", json.dumps(latch.rule_text, sort_keys=True) if latch.rule_text else ""
    yield "Policy", f"{policy.kind} {where}{policy.name}, generation {policy.generation}, SHA-256 {policy.hash}"
    yield "Observed", plain_number(latch.observed)
    yield "Threshold", plain_number(latch.threshold)
    yield "First bad step", f"{latch.first_bad_step} of attempt {latch.attempt}"
    yield "Fired at step", str(latch.fired_step)
    if latch.flagged is not None:
        yield "Flagged windows", f"{latch.flagged[0]} to {latch.flagged[1]}"


def _holds(chapters: Chapters) -> Iterator[tuple[str, str]]:
    for hold in chapters.holds:
        if hold.lost:
            yield "Held", "the pods were lost before they held"
            continue
        replicas = {True: "replicas agree", False: "replicas disagree", None: "replicas not compared"}
        yield "Held", f"after step {hold.step}; {replicas[hold.replicas_agree]}"


def _plan_rows(plan: PlanStory | None, chapters: Chapters) -> Iterator[tuple[str, str]]:
    if plan is None:
        return
    step = plan.plan.target.step
    yield "Restored", f"step {step} as attempt {plan.attempt}" if plan.restored else f"step {step} was chosen"
    held = [hold.step for hold in chapters.holds if not hold.lost]
    if plan.restored and held:
        yield "Trained again", f"{max(0, held[-1] - step)} steps, {step + 1} to {held[-1]}, were given up"
    if plan.skip is not None:
        count = plan.skip.last - plan.skip.first + 1
        yield "Skipped", f"windows {plan.skip.first} to {plan.skip.last} ({count}), {plan.skip.bad} measured as bad"
    rate = plan.learning_rate
    if plan.resumed_at:
        yield "Learning rate", f"scaled by {rate.scale:g} up to step {rate.until_step}" if rate else "as scheduled"


def _closed(chapters: Chapters, incident: Incident) -> str:
    if not incident.closed_at:
        return ""
    took = since(chapters.opened_at, incident.closed_at)
    return f"{moment(incident.closed_at)}" + (f", {took.removeprefix('+')} after it opened" if took else "")


def plain_number(value: float | str | None) -> str:
    """A number as the journal has it, in which one that is not finite is a text."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def moment(time: str) -> str:
    """A timestamp to the second, without the letter in its middle."""
    return f"{time[:19].replace('T', ' ')} UTC" if time else ""


def since(start: str, time: str) -> str:
    """How long after `start` a timestamp is, such as `+12.4 s` or `-3 min`; empty where one of them is none."""
    try:
        seconds = (datetime.fromisoformat(time) - datetime.fromisoformat(start)).total_seconds()
    except (TypeError, ValueError):
        return ""
    size = abs(seconds)
    if size < 100:
        return f"{seconds:+.1f} s"
    return f"{seconds / 60:+.1f} min" if size < 6000 else f"{seconds / 3600:+.1f} h"
