"""An incident in one sentence. Pure."""

from collections.abc import Iterator

from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.run_state import RunState

from trimtab_cli.report.episodes import Chapters, PlanStory
from trimtab_cli.report.words import rate_words


def headline(chapters: Chapters, incident: Incident, state: RunState) -> str:
    """What fired on which numbers, or who asked; what was done; and how it ended."""
    latch = chapters.latches[0] if chapters.firings else incident.latch
    return f"{_began(latch)}; {', '.join([*_deeds(chapters, incident), _ending(chapters, incident, state)])}."


def _began(latch: Latch) -> str:
    if latch.asked is not None:
        asked = latch.asked
        return f"No rule fired: {asked.by} asked for {asked.action} at step {latch.fired_step} ({asked.reason})"
    policy = f" of policy {latch.policy.name}" if latch.policy else ""
    return f"Rule {latch.rule}{policy} fired at step {latch.fired_step} ({latch.message})"


def _deeds(chapters: Chapters, incident: Incident) -> Iterator[str]:
    if chapters.holds:
        first = chapters.holds[0]
        yield "the pods were lost before they held" if first.lost else f"every rank held after step {first.step}"
    if incident.relapses:
        yield f"the run relapsed {'once' if incident.relapses == 1 else f'{incident.relapses} times'}"
    if chapters.plans:
        yield from _last_plan(chapters.plans)


def _last_plan(plans: tuple[PlanStory, ...]) -> Iterator[str]:
    *earlier, plan = plans
    useless = [str(one.plan.number) for one in earlier if one.failed or one.relapsed]
    if useless:
        yield f"plan{'s' if len(useless) > 1 else ''} {' and '.join(useless)} did not help"
    step = plan.plan.target.step
    if not plan.restored:
        yield f"plan {plan.plan.number}, back to step {step}: {plan.answer or 'chosen'}"
        return
    yield f"step {step} was restored"
    if plan.skip is not None:
        measured = f" ({plan.skip.bad} measured as bad)" if plan.measured else ""
        yield f"windows {plan.skip.first} to {plan.skip.last} were skipped{measured}"
    if plan.learning_rate is not None:
        yield f"the learning rate was {rate_words(plan.learning_rate)}"


def _ending(chapters: Chapters, incident: Incident, state: RunState) -> str:
    if incident.outcome:
        why = f" ({chapters.closing})" if chapters.closing else ""
        return f"and the incident closed as {incident.outcome}{why}"
    question = f": {chapters.questions[-1]}" if chapters.questions and state.question else ""
    return f"and the incident is open in phase {state.phase.value}{question}"
