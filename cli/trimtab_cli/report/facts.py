"""An incident's numbers, one row each. Pure."""

import json
from collections.abc import Iterator

from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.run_state import RunState

from trimtab_cli.report.episodes import Chapters, Hold, PlanStory
from trimtab_cli.report.views import Fact
from trimtab_cli.report.words import duration, moment, outcome_of, plain_number, rate_words, seconds_between, since

_AGREEMENT = {True: "replicas agree", False: "replicas disagree", None: "replicas not compared"}


def facts(chapters: Chapters, incident: Incident, state: RunState) -> tuple[Fact, ...]:
    """The facts table."""
    latch = chapters.latches[0] if chapters.firings else incident.latch
    rows = [
        ("Outcome", _outcome(incident, state)),
        *_trigger(latch),
        *(("Fired again", _again(one.latch)) for one in chapters.firings[1:]),
        *_holds(chapters.holds),
        *_findings(chapters),
        *(("Waited for other runs", _waited(one.since, one.until, one.why)) for one in chapters.waits),
        ("Relapses", str(incident.relapses) if incident.relapses else ""),
        ("Plans", str(len(chapters.plans)) if len(chapters.plans) > 1 else ""),
        *_plan_rows(chapters.plans[-1] if chapters.plans else None, chapters),
        *(("Asked a person", question) for question in chapters.questions),
        *(("Not as before", doubt) for doubt in incident.doubts),
        ("Opened", moment(chapters.opened_at)),
        ("Closed", _closed(chapters, incident)),
    ]
    return tuple(Fact(name, value) for name, value in rows if value)


def _outcome(incident: Incident, state: RunState) -> str:
    return outcome_of(incident) if incident.outcome else f"{outcome_of(incident)}, phase {state.phase.value}"


def _trigger(latch: Latch) -> Iterator[tuple[str, str]]:
    asked, policy = latch.asked, latch.policy
    if asked is not None:
        yield "Asked for", f"{asked.action} by {asked.by}: {asked.reason}"
        yield "Request", f"RunRequest {asked.request}, uid {asked.uid}"
        yield "Judged up to", f"step {latch.fired_step} of attempt {latch.attempt}"
        return
    yield "Rule", f"{latch.rule} on {latch.metric or 'other rules'}, action {latch.action}"
    yield "Rule as it was", json.dumps(latch.rule_text, sort_keys=True) if latch.rule_text else ""
    if policy is not None:
        where = f"{policy.namespace}/" if policy.namespace else ""
        yield "Policy", f"{policy.kind} {where}{policy.name}, generation {policy.generation}, SHA-256 {policy.hash}"
    yield "What it says", latch.message
    yield "Observed", plain_number(latch.observed)
    yield "Threshold", plain_number(latch.threshold)
    yield "First bad step", f"{latch.first_bad_step} of attempt {latch.attempt}"
    yield "Fired at step", str(latch.fired_step)
    if latch.flagged is not None:
        yield "Flagged windows", f"{latch.flagged[0]} to {latch.flagged[1]}"


def _again(latch: Latch) -> str:
    place = f"at step {latch.fired_step} of attempt {latch.attempt}"
    return f"{latch.message}, {place}" if latch.asked else f"{latch.rule} {place}: {latch.message}"


def _holds(holds: tuple[Hold, ...]) -> Iterator[tuple[str, str]]:
    for index, hold in enumerate(holds, 1):
        for name, value in _held(hold):
            yield (f"{name}, {index} of {len(holds)}" if len(holds) > 1 else name), value


def _held(hold: Hold) -> Iterator[tuple[str, str]]:
    if hold.lost:
        yield "Held", "the pods were lost before they held"
        return
    finite = "; weights and optimizer state are finite" if hold.nonfinite == () else ""
    finite = f"; not finite: {', '.join(hold.nonfinite)}" if hold.nonfinite else finite
    yield "Held", f"after step {hold.step}; {_AGREEMENT[hold.replicas_agree]}{finite}"
    if hold.withheld is not None:
        loss = "a finite loss" if hold.withheld.loss_finite else "no finite loss"
        yield "Withheld", f"the update of step {hold.withheld.step}, window {hold.withheld.window}, with {loss}"


def _findings(chapters: Chapters) -> Iterator[tuple[str, str]]:
    """The newest finding behind each hold; the ones before it led to it."""
    if chapters.findings:
        last = chapters.findings[-1]
        yield "Finding", f"{last.finding}: {last.why}" if last.why else last.finding
        for lacks in last.missing:
            yield "Missing evidence", lacks


def _waited(start: str, until: str, why: str) -> str:
    seconds = seconds_between(start, until)
    return f"{f'for {duration(seconds)}' if seconds is not None else 'still'}: {why}"


def _plan_rows(plan: PlanStory | None, chapters: Chapters) -> Iterator[tuple[str, str]]:
    if plan is None:
        return
    step = plan.plan.target.step
    if plan.restored:
        yield "Restored", f"step {step} as attempt {plan.attempt}"
    else:
        yield "Chosen", f"step {step}"
    yield "Plan hash", plan.plan.hash
    yield "Plan answered", plan.answer
    held = [hold.step for hold in chapters.holds if not hold.lost]
    if plan.restored and held:
        given_up = max(0, held[-1] - step)
        yield "Trained again", f"{given_up} steps, {step + 1} to {held[-1]}, were given up" if given_up else ""
    if plan.skip is not None:
        count = plan.skip.last - plan.skip.first + 1
        measured = f", {plan.skip.bad} measured as bad" if plan.measured else ""
        yield "Skipped", f"windows {plan.skip.first} to {plan.skip.last} ({count}){measured}"
    if plan.resumed_at:
        yield "Learning rate", rate_words(plan.learning_rate) or "as scheduled"


def _closed(chapters: Chapters, incident: Incident) -> str:
    if not incident.closed_at:
        return ""
    took = since(chapters.opened_at, incident.closed_at)
    return f"{moment(incident.closed_at)}" + (f", {took.removeprefix('+')} after it opened" if took else "")
