"""The plans of an incident, and what the probation behind them was judged by. Pure."""

from collections.abc import Mapping

from trimtab_operator.incidents import Incident, Vitals

from trimtab_cli.report.episodes import Chapters, PlanStory, ProbationStory
from trimtab_cli.report.views import Block, Fact, Table
from trimtab_cli.report.words import moment, rate_words, wish_words


def plan_views(chapters: Chapters) -> tuple[Block, ...]:
    """Every plan with its target, its skip, its learning rate, its approval, and the numbers they rest on."""
    return tuple(_plan_view(one) for one in chapters.plans)


def _plan_view(story: PlanStory) -> Block:
    plan, skip, failed = story.plan, story.skip, story.failed or story.relapsed
    target, bound = plan.target, plan.bound
    rows = [
        ("Target", story.why),
        ("Chosen", moment(story.time)),
        ("Asked for", wish_words(story.wishes)),
        ("Checkpoint", f"step {target.step}, manifest {target.key}, SHA-256 {target.sha256}"),
        ("Skips at most", f"windows {bound[0]} to {bound[1]}" if bound else "nothing" if plan.hash else ""),
        ("Learning rate planned", rate_words(plan.learning_rate)),
        ("Plan hash", plan.hash),
        ("Approval", _approval(story)),
        ("Restored", f"as attempt {story.attempt}: {story.restored}" if story.restored else ""),
        ("Failed", story.failed),
        ("Extent", story.extent),
        ("Control", _control(story.numbers or {})),
        ("Skip", _skip(story) if skip else ""),
        ("Learning rate", rate_words(story.learning_rate)),
        ("Resumed", moment(story.resumed_at)),
        ("Relapsed", story.relapsed),
    ]
    shown = tuple(Fact(name, value) for name, value in rows if value)
    return Block(f"Plan {plan.number}: back to step {target.step}", shown, failed=bool(failed))


def _approval(story: PlanStory) -> str:
    if not story.deadline:
        return ""
    return f"needed by {moment(story.deadline)}: {story.answer or 'waited for'}"


def _control(numbers: Mapping[str, float]) -> str:
    names = {"control_mean": "mean", "control_std": "std", "threshold": "threshold"}
    return ", ".join(f"{said} {numbers[name]:.6g}" for name, said in names.items() if name in numbers)


def _skip(story: PlanStory) -> str:
    skip = story.skip
    if skip is None:
        return ""
    measured = f", {skip.bad} of them measured as bad" if story.measured else ""
    return f"windows {skip.first} to {skip.last}{measured}"


def probation_view(chapters: Chapters, incident: Incident) -> Block:
    """The healthy records before the incident beside those that each probation was judged by."""
    if not chapters.plans:
        return Block("Probation", ())
    judged = chapters.probations
    columns = ("", "Before the incident", *(_column(one) for one in judged))
    stretches = (incident.baseline, *(one.vitals for one in judged))
    rows = [(name, *(say(one) if one else "" for one in stretches)) for name, say in _FIGURES.items()]
    known = tuple(row for row in rows if any(row[1:])) if any(stretches) else ()
    doubts = tuple(Fact(_when(one), doubt) for one in judged for doubt in one.doubts)
    until = f"step {incident.probation_until}" if incident.held_step is not None else ""
    ends = (Fact("Lasts until", until),) if until and chapters.plans[-1].resumed_at else ()
    return Block("Probation", (*ends, *doubts), (Table("", columns, known),))


def _column(one: ProbationStory) -> str:
    return "At its end" if one.until is None else f"When extended to step {one.until}"


def _when(one: ProbationStory) -> str:
    return "Not as before, at the end" if one.until is None else f"Extended to step {one.until}"


def _loss(one: Vitals) -> str:
    if one.loss_mean is None:
        return "no finite loss"
    return f"{one.loss_mean:.6g}, std {one.loss_std or 0.0:.3g}, over {one.records} records"


def _clips(one: Vitals) -> str:
    return "" if one.clip_rate is None else f"{one.clip_rate:.1%} of {one.clip_records}"


def _speed(one: Vitals) -> str:
    return "" if one.tokens_per_second is None else f"{one.tokens_per_second:.6g} over {one.speed_records}"


_FIGURES = {"Mean loss": _loss, "Clipped gradients": _clips, "Median tokens per second": _speed}
