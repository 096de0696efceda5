"""Steps and attempts that a case speaks of, against those that it has."""

from collections.abc import Iterator, Mapping, Sequence

from trimtab_policies.errors import FieldError
from trimtab_policies.policytest.cases import AttemptPlan, Case


def lineage_errors(plan: AttemptPlan, before: Sequence[AttemptPlan | None], path: str) -> Iterator[FieldError]:
    """Whether a later attempt continues one before it, at a step which that one has seen."""
    known = {one.attempt: one for one in before if one is not None}
    first = known.get(1)
    if first is None or len(known) < len(before):
        return
    if plan.attempt <= max(known):
        yield FieldError(f"{path}.attempt", f"must be greater than {max(known)}; it is {plan.attempt}")
    parent = known.get(plan.parent or 0)
    if parent is None:
        listed = ", ".join(map(str, known))
        yield FieldError(f"{path}.from", f"must be an attempt before this one, one of {listed}; it is {plan.parent}")
    elif not first.branch_step <= plan.branch_step <= parent.last_step:
        message = f"must lie between {first.branch_step} and {parent.last_step}, the last step of attempt"
        yield FieldError(f"{path}.branchStep", f"{message} {parent.attempt}; it is {plan.branch_step}")


def place_errors(case: Case) -> Iterator[FieldError]:
    """Steps at which there is no record, and what cannot be judged for want of time or of checkpoints."""
    plans = {plan.attempt: plan for plan in case.attempts}
    timed = case.seconds_per_step is not None
    yield from _verdict_errors(case, plans, timed=timed)
    saves = case.checkpoint_every is not None or any(plan.checkpoints for plan in case.attempts)
    for path, decision in case.decisions:
        yield from _step_errors(plans, decision.attempt, decision.step, path, "step")
        if decision.target is not None and not saves:
            yield FieldError(f"{path}.target", "needs checkpoints or checkpointEvery to choose from; add one of them")
    for index, plan in enumerate(case.attempts):
        here = case.path if index == 0 else f"{case.path}.attempts[{index - 1}]"
        if plan.pauses and not timed:
            yield FieldError(f"{here}.pauses", "needs secondsPerStep, without which no time passes; add it")
        for place, (step, _) in enumerate(plan.pauses):
            yield from _step_errors(plans, plan.attempt, step, f"{here}.pauses[{place}]", "afterStep")
        for place, step in enumerate(plan.missing):
            yield from _step_errors(plans, plan.attempt, step, here, f"missingSteps[{place}]")


def _verdict_errors(case: Case, plans: Mapping[int, AttemptPlan], *, timed: bool) -> Iterator[FieldError]:
    for path, verdict in case.verdicts:
        yield from _step_errors(plans, verdict.attempt, verdict.at, path, "at")
        if verdict.to is not None and verdict.to < verdict.at:
            yield FieldError(f"{path}.to", f"must be at least at, which is {verdict.at}; it is {verdict.to}")
        elif verdict.to is not None and verdict.attempt in plans:
            yield from _step_errors(plans, verdict.attempt, verdict.to, path, "to")
        if verdict.waited and not timed:
            yield FieldError(f"{path}.waited", "needs secondsPerStep, without which no time passes; add it")


def _step_errors(
    plans: Mapping[int, AttemptPlan], attempt: int, step: int, path: str, field: str
) -> Iterator[FieldError]:
    plan = plans.get(attempt)
    if plan is None:
        yield FieldError(f"{path}.attempt", f"must be one of {', '.join(map(str, plans))}; it is {attempt}")
    elif plan.index(step) is None:
        every = f", every {plan.every_steps}" if plan.every_steps > 1 else ""
        message = f"must be a step of attempt {attempt}, which has steps {plan.step(0)} to {plan.last_step}{every}"
        yield FieldError(f"{path}.{field}", f"{message}; it is {step}")
