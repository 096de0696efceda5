"""A run's records again through the engine that judged them: what the rule saw, and what it compared that with. Pure.

The same policies in force, the same origins, the same resumptions as when the operator judged: where the records are
all there, the numbers are the operator's own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trimtab_contract.metrics import MetricRecord
from trimtab_operator.incidents import Latch
from trimtab_operator.judge import policies_in_force
from trimtab_operator.run_state import RunState
from trimtab_policies.evaluation import Engine
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Seen:
    """A point of an attempt's own, and what the rule said of it; None where the policy was not in force."""

    point: LogPoint
    verdict: Verdict | None


def up_to_attempt(state: RunState, attempt: int) -> RunState:
    """The state as far as it concerned an attempt while it was the newest one."""
    return replace(
        state,
        attempts=tuple(one for one in state.attempts if one.number <= attempt),
        guards=tuple(one for one in state.guards if one.from_attempt <= attempt),
    )


def replayed(
    points: Iterable[LogPoint], state: RunState, attempt: int, latch: Latch, texts: Mapping[str, AcceptedPolicy]
) -> Iterator[Seen]:
    """The attempt's own points out of its surviving history, in order, with the verdicts of the rule that fired."""
    then = up_to_attempt(state, attempt)
    engine = Engine(
        texts.values(),
        attempt=attempt,
        start_step=then.attempts[-1].branch_step,
        resumed=then.resumed(attempt),
        in_force=policies_in_force(then, texts),
    )
    last_step = 0
    for point in points:
        # The archive may hold a record twice: a stretch is written again when nobody heard that it was.
        if point.step <= last_step:
            continue
        last_step = point.step
        engine.take(_record(point, attempt))
        if point.attempt == attempt:
            yield Seen(point, _verdict(engine, then, point, latch, texts))


def _verdict(
    engine: Engine, state: RunState, point: LogPoint, latch: Latch, texts: Mapping[str, AcceptedPolicy]
) -> Verdict | None:
    guard, policy = state.guard_at(point.attempt or 0, point.step), latch.policy
    if guard is None or policy is None:
        return None
    name = (policy.kind, policy.namespace, policy.name)
    for identity in guard.policies:
        if (identity.kind, identity.namespace, identity.name) == name and identity.hash in texts:
            verdicts = engine.verdicts((texts[identity.hash],))
            return next((one for one in verdicts if one.rule.name == latch.rule), None)
    return None


def _record(point: LogPoint, attempt: int) -> MetricRecord:
    return MetricRecord(
        attempt=point.attempt if point.attempt is not None else attempt,
        step=point.step,
        window=point.window if point.window is not None else max(0, point.step - 1),
        samples_seen=0,
        tokens_seen=0,
        time=point.time or 0.0,
        scalars=dict(point.scalars),
        vectors=dict(point.vectors),
    )
