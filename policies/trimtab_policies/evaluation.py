"""The surviving records in order -> a Verdict of every rule of every policy on each.

An Engine is fed each record of one attempt's surviving history once, oldest first, and keeps no records: only what its
rules remember. After a rollback, a restart or an edit, make a new one and feed it the surviving records again, at least
the last `reach.retention` of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from trimtab_contract.metrics import MetricRecord

from trimtab_policies.absence import AbsenceWatch
from trimtab_policies.errors import EmptyHistory
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.reach import reach
from trimtab_policies.replay import Arming, CompositeReplay, Resumption, Succession, ValueReplay, alike
from trimtab_policies.verdicts import Finding, Place, State, Verdict


class Engine:
    """Judges one attempt's surviving history by any number of policies."""

    def __init__(
        self,
        policies: Iterable[AcceptedPolicy],
        *,
        attempt: int,
        start_step: int = 0,
        resumed: Collection[int] = (),
        in_force: Mapping[str, int] | None = None,
    ) -> None:
        """`start_step` is the step after which `attempt` trains, `resumed` those after which it went on from a hold.

        `in_force` gives, by hash, the first step of the attempt for which a policy is in force; by default all are from
        the start. Policies with equal hashes are judged once.
        """
        since = in_force or {}
        self._watches = {
            policy.hash: _PolicyWatch(policy, Resumption(attempt, start_step, resumed, since.get(policy.hash, 0)))
            for policy in policies
        }
        self._last: MetricRecord | None = None

    @property
    def hashes(self) -> frozenset[str]:
        """The hashes of the policies that judge."""
        return frozenset(self._watches)

    @property
    def watches_time(self) -> bool:
        """Whether some rule may fire although no record comes."""
        return any(watch.watches_time for watch in self._watches.values())

    def take(self, record: MetricRecord, *, ordinal: int | None = None, now: float | None = None) -> None:
        """Feed the next record, which came at `now` on the caller's clock.

        `ordinal` numbers the records of the history from 1, one by one; by default it is the step, as it is where every
        step has a record.
        """
        self._last = record
        number = record.step if ordinal is None else ordinal
        for watch in self._watches.values():
            watch.take(record, number, now)

    def verdicts(self, policies: Sequence[AcceptedPolicy], *, now: float | None = None) -> tuple[Verdict, ...]:
        """The verdicts on the last record as of `now`, in the order of policies and rules; raises EmptyHistory.

        Only policies the engine was made with can be asked for.
        """
        if self._last is None:
            message = "no record has arrived yet"
            raise EmptyHistory(message)
        found: list[Verdict] = []
        for policy in policies:
            found += self._watches[policy.hash].verdicts(policy, self._last, now)
        return tuple(found)

    def judge(
        self,
        record: MetricRecord,
        policies: Sequence[AcceptedPolicy],
        *,
        ordinal: int | None = None,
        now: float | None = None,
    ) -> tuple[Verdict, ...]:
        """Feed the next record and return the verdicts on it."""
        self.take(record, ordinal=ordinal, now=now)
        return self.verdicts(policies, now=now)


class _PolicyWatch:
    """One policy's rules as they follow the records."""

    def __init__(self, policy: AcceptedPolicy, resumption: Resumption) -> None:
        self._policy = policy
        self._rules = {rule.name: rule for rule in policy.spec.rules}
        self._place = Place(0, 0)
        groups = alike(rule for rule in self._rules.values() if rule.stale is None and not rule.components)
        self._values = [
            Succession[None, list[Finding]](reach(rules[0]), lambda rules=rules: ValueReplay(rules, resumption))
            for rules in groups
        ]
        self._composites = [
            (
                rule,
                Succession[tuple[Verdict, ...], Finding](
                    reach(rule), lambda rule=rule: CompositeReplay(rule, resumption)
                ),
            )
            for rule in self._rules.values()
            if rule.components
        ]
        # Findings come group by group and then those of the composites; a `stale` rule has none.
        of_values = [rule.name for rules in groups for rule in rules]
        self._findings: list[Finding] = []
        self._index = {
            name: index for index, name in enumerate((*of_values, *(one.name for one, _ in self._composites)))
        }
        self._order = [(rule, self._index.get(name, -1)) for name, rule in self._rules.items()]
        self._absences = {
            name: (AbsenceWatch(rule), Arming(rule, resumption))
            for name, rule in self._rules.items()
            if AbsenceWatch.wanted(rule)
        }

    @property
    def watches_time(self) -> bool:
        return bool(self._absences)

    def take(self, record: MetricRecord, ordinal: int, now: float | None) -> None:
        self._place = Place(record.step, record.window)
        for absence, _ in self._absences.values():
            absence.take(record, now)
        self._findings = [found for group in self._values for found in group.step(ordinal, record, None)]
        for rule, succession in self._composites:
            components = tuple(
                Verdict(self._policy, self._rules[name], record.attempt, self._place, self._finding(name, record, now))
                for name in rule.components
            )
            self._findings.append(succession.step(ordinal, record, components))

    def verdicts(self, policy: AcceptedPolicy, record: MetricRecord, now: float | None) -> list[Verdict]:
        attempt, place, findings = record.attempt, self._place, self._findings
        if not self._absences:  # so there is no `stale` rule, the only kind without a finding of its own
            return [Verdict(policy, rule, attempt, place, findings[index]) for rule, index in self._order]
        return [
            Verdict(policy, rule, attempt, place, self._finding(name, record, now))
            for name, rule in self._rules.items()
        ]

    def _finding(self, name: str, record: MetricRecord, now: float | None) -> Finding:
        """What a rule finds as of `now`, `record` being the last one."""
        if name not in self._absences:
            return self._findings[self._index[name]]
        absence, arming = self._absences[name]
        pending = arming.held_back(record)
        if self._rules[name].stale is not None:
            finding = absence.finding(now, self._place)
            if pending is not None and finding.state is State.FIRING:
                return Finding(State.PENDING, pending, note=finding.note)
            return finding
        finding = self._findings[self._index[name]]
        if pending is None and finding.state is not State.FIRING:
            return absence.overdue(now, self._place) or finding
        return finding
