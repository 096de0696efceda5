"""One step of a run, judged again as the operator judged it. Pure.

The same origins, the same policies since the same steps, and streaks that begin anew where a person let the run go on:
where the archive has every record, the verdicts are the operator's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trimtab_contract.metrics import MetricRecord
from trimtab_operator.judge import policies_in_force
from trimtab_operator.run_state import RunState
from trimtab_policies.backtest.inspection import Inspected, Inspection
from trimtab_policies.evaluation import Engine
from trimtab_policies.policy import AcceptedPolicy, enforced


def judge_step(
    policies: Sequence[AcceptedPolicy], records: Iterable[MetricRecord], state: RunState, attempt: int, step: int
) -> Inspection:
    """What the policies, as if in mode Enforce, say of a step of an attempt.

    `records` are those of the attempt's surviving history up to the step, in order. Behind a record that is lost the
    history begins anew, as it does for the operator. Policies that the journal does not name have always been in force.
    """
    history: list[MetricRecord] = []
    for record in records:
        if history and record.step > history[-1].step + 1:
            history.clear()
        # The archive may hold a record twice: a stretch is written again when nobody heard that it was.
        if not history or record.step > history[-1].step:
            history.append(record)
    last = history[-1] if history else None
    if last is None or last.step != step:
        return Inspection(None, (), None if last is None else last.step, None)
    if last.attempt != attempt:
        return Inspection(None, (last.attempt,), None, None)
    then = _as_of(state, attempt, step)
    since = policies_in_force(then, {policy.hash for policy in policies})
    acting = {policy.hash: enforced(policy) for policy in policies}
    engine = Engine(
        acting.values(),
        attempt=attempt,
        start_step=then.attempts[-1].branch_step,
        resumed=then.resumed(attempt),
        in_force={acting[hashed].hash: first for hashed, first in since.items()},
    )
    for record in history:
        engine.take(record, now=record.time)
    verdicts = engine.verdicts(tuple(acting[policy.hash] for policy in policies), now=last.time)
    return Inspection(Inspected(step, attempt, step, verdicts), (attempt,), None, None)


def _as_of(state: RunState, attempt: int, step: int) -> RunState:
    """The state as far as it mattered when the step was judged: the attempts and the accepted policies up to then."""
    return replace(
        state,
        attempts=tuple(one for one in state.attempts if one.number <= attempt),
        guards=tuple(one for one in state.guards if (one.from_attempt, one.from_step) <= (attempt, step)),
    )
