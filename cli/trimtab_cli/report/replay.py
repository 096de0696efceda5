"""A run's records again through the engine that judged them: what the rule saw, and what it compared that with. Pure.

The same policies in force, the same origins, the same resumptions as when the operator judged: where the records are
all there, the numbers are the operator's own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trimtab_contract.metrics import MetricRecord
from trimtab_operator.incidents import Latch, PolicyIdentity
from trimtab_operator.judge import policies_in_force
from trimtab_operator.run_state import RunState
from trimtab_policies.evaluation import Engine
from trimtab_policies.log_readers.points import LogPoint
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Watched:
    """A rule whose values are shown; `part_of` names the composite that looks at it, if one does."""

    policy: tuple[str, str, str]
    """Kind, namespace and name."""
    rule: str
    part_of: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A point of an attempt's own, and what the rules said of it; nothing of a policy that was not in force."""

    point: LogPoint
    verdicts: Mapping[Watched, Verdict]


def policy_name(identity: PolicyIdentity) -> tuple[str, str, str]:
    """What stays the same when a policy is edited."""
    return identity.kind, identity.namespace, identity.name


def watched_rules(latches: Iterable[Latch], texts: Mapping[str, AcceptedPolicy]) -> tuple[Watched, ...]:
    """The rules that fired, each once; a composite with the rules that it is made of."""
    found: dict[tuple[tuple[str, str, str], str], Watched] = {}
    for latch in latches:
        if latch.policy is None:
            continue
        name, text = policy_name(latch.policy), texts.get(latch.policy.hash)
        rules = {rule.name: rule for rule in text.spec.rules} if text is not None else {}
        found[name, latch.rule] = Watched(name, latch.rule)
        components = rules[latch.rule].components if latch.rule in rules else ()
        for one in components:
            found.setdefault((name, one), Watched(name, one, latch.rule))
    return tuple(found.values())


def narrowed(policy: AcceptedPolicy, watched: Iterable[Watched]) -> AcceptedPolicy:
    """The policy with the watched rules alone: each rule is judged by itself, so the others cost time for nothing."""
    names = {one.rule for one in watched if one.policy == (policy.kind, policy.namespace or "", policy.name)}
    wanted = {name for rule in policy.spec.rules if rule.name in names for name in (rule.name, *rule.components)}
    rules = tuple(rule for rule in policy.spec.rules if rule.name in wanted)
    return replace(policy, spec=policy.spec.model_copy(update={"rules": rules}))


def up_to_attempt(state: RunState, attempt: int) -> RunState:
    """The state as far as it concerned an attempt while it was the newest one."""
    return replace(
        state,
        attempts=tuple(one for one in state.attempts if one.number <= attempt),
        guards=tuple(one for one in state.guards if one.from_attempt <= attempt),
    )


def replayed(
    points: Iterable[LogPoint],
    state: RunState,
    attempt: int,
    watched: tuple[Watched, ...],
    texts: Mapping[str, AcceptedPolicy],
) -> Iterator[Seen]:
    """The attempt's own points out of its surviving history, in order, with the verdicts of the watched rules."""
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
        record = _record(point, attempt)
        # Time counts for rules that fire when no record comes; the trainer's is the only one that was kept.
        engine.take(record, now=record.time)
        if point.attempt == attempt:
            yield Seen(point, _verdicts(engine, then, record, watched, texts))


def _verdicts(
    engine: Engine,
    state: RunState,
    record: MetricRecord,
    watched: tuple[Watched, ...],
    texts: Mapping[str, AcceptedPolicy],
) -> Mapping[Watched, Verdict]:
    guard = state.guard_at(record.attempt, record.step)
    if guard is None or not texts:
        return {}
    known = [identity for identity in guard.policies if identity.hash in texts]
    verdicts = engine.verdicts([texts[identity.hash] for identity in known], now=record.time)
    by_rule = {(verdict.policy.hash, verdict.rule.name): verdict for verdict in verdicts}
    hashes = {policy_name(identity): identity.hash for identity in known}
    found = {one: by_rule.get((hashes.get(one.policy, ""), one.rule)) for one in watched}
    return {one: verdict for one, verdict in found.items() if verdict is not None}


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
