"""One case -> what was decided, and the verdicts that the case asks about: the same engine as a running job's.

Records reach the engine as they do in the operator: an attempt begins with the surviving records of those before it,
judgement stops at a missing record, and only records of the attempt itself decide anything. Time passes by
`secondsPerStep` and by the pauses; what is absent is judged again just before the next record comes, and at the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab_contract.metrics import MetricRecord

from trimtab_policies.decision import decide
from trimtab_policies.evaluation import Engine
from trimtab_policies.explanation import explain
from trimtab_policies.lineage import Attempt, Lineage
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.policytest.cases import AttemptPlan, Case
from trimtab_policies.policytest.playback import Playback
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Moment:
    """A record, or, where `waited`, the end of the time behind it in which nothing came."""

    attempt: int
    step: int
    waited: bool = False


@dataclass(frozen=True, slots=True)
class MadeDecision:
    """A decision where it was first made. It is known by attempt, policy, rule, action and first bad step.

    For a rollback, `not_after` is the first bad step less the policy's margin, and `target` the newest checkpoint of
    the surviving history at or before it, else the state at step 0; None where there is neither.
    """

    moment: Moment
    policy: str
    rule: str
    action: Action
    would_have: Action | None
    first_bad_step: int
    not_after: int | None
    target: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that came of a case. `stopped` says for an attempt at which missing step its judgement ended."""

    decisions: tuple[MadeDecision, ...]
    verdicts: Mapping[Moment, tuple[Verdict, ...]]
    stopped: Mapping[int, int]


def judge_case(case: Case, policies: Sequence[AcceptedPolicy]) -> Judgement:
    """Judge every record of every attempt, in order."""
    plans = {plan.attempt: plan for plan in case.attempts}
    asked = {
        Moment(verdict.attempt, step, verdict.waited)
        for _, verdict in case.verdicts
        for step in plans[verdict.attempt].steps(verdict.at, verdict.to or verdict.at)
    }
    judging = _Judging(case, policies, asked)
    for plan in case.attempts:
        judging.attempt(plan)
    return Judgement(tuple(judging.decisions.values()), judging.verdicts, judging.stopped)


class _Judging:
    """One case under way."""

    def __init__(self, case: Case, policies: Sequence[AcceptedPolicy], asked: set[Moment]) -> None:
        self._case = case
        self._policies = tuple(policies)
        self._asked = asked
        self._playbacks = {plan.attempt: Playback(plan, case.seed) for plan in case.attempts}
        self._lineage = Lineage(())
        self._now: float | None = 0.0 if case.seconds_per_step is not None else None
        self.decisions: dict[tuple[object, ...], MadeDecision] = {}
        self.verdicts: dict[Moment, tuple[Verdict, ...]] = {}
        self.stopped: dict[int, int] = {}

    def attempt(self, plan: AttemptPlan) -> None:
        """Judge one attempt's records."""
        self._lineage = self._lineage.including(Attempt(plan.attempt, plan.parent, plan.branch_step))
        engine = self._resumed(plan)
        pauses = dict(plan.pauses)
        missing = min(plan.missing, default=None)
        last: Moment | None = None
        for record in self._playbacks[plan.attempt].records(plan.branch_step + 1, None):
            if missing is not None and missing < record.step:
                self.stopped[plan.attempt] = missing
                return
            self._pass(engine, last, (self._case.seconds_per_step or 0.0) * plan.every_steps)
            engine.take(record, ordinal=record.step // plan.every_steps, now=self._now)
            last = Moment(record.attempt, record.step)
            self._judge(engine, last)
            if record.step in pauses:
                self._pass(engine, last, pauses[record.step])

    def _resumed(self, plan: AttemptPlan) -> Engine:
        """An engine that has seen the surviving records before the attempt, as far back as none is missing."""
        engine = self._engine(plan)
        for segment in self._lineage.surviving(plan.attempt):
            if segment.attempt == plan.attempt:
                continue
            earlier = self._playbacks[segment.attempt]
            for record, follows in _contiguous(earlier.records(segment.first, segment.last), plan.every_steps):
                if not follows:
                    engine = self._engine(plan)
                engine.take(record, ordinal=record.step // plan.every_steps)
        return engine

    def _engine(self, plan: AttemptPlan) -> Engine:
        return Engine(self._policies, attempt=plan.attempt, start_step=plan.branch_step)

    def _pass(self, engine: Engine, last: Moment | None, seconds: float) -> None:
        """Let time go by behind the last record."""
        if self._now is None:
            return
        self._now += seconds
        if last is not None:
            self._judge(engine, Moment(last.attempt, last.step, waited=True))

    def _judge(self, engine: Engine, moment: Moment) -> None:
        verdicts = engine.verdicts(self._policies, now=self._now)
        if moment in self._asked:
            self.verdicts[moment] = verdicts
        decision = decide(verdicts, guard_mode=self._case.mode)
        winner, action = decision.winner, decision.action
        if winner is None or action is None:
            return
        first_bad = winner.first_bad_step or winner.step
        key = (moment.attempt, winner.policy.name, winner.rule.name, action, first_bad)
        if key not in self.decisions:
            rollback = Action.ROLLBACK in (action, decision.would_have)
            bound = first_bad - winner.policy.spec.remediation.margin if rollback else None
            self.decisions[key] = MadeDecision(
                moment,
                winner.policy.name,
                winner.rule.name,
                action,
                decision.would_have,
                first_bad,
                bound,
                self._target(moment.attempt, bound) if bound is not None else None,
                explain(winner),
            )

    def _target(self, attempt: int, bound: int) -> int | None:
        """The newest checkpoint of the surviving history at or before `bound`; the state at step 0 is the last choice.

        The operator's choice among checkpoints that are all whole, at the first rollback of an incident.
        """
        first = self._case.attempts[0]
        usable = [0] if first.branch_step == 0 else []
        for plan in self._case.attempts:
            if plan.attempt > attempt:
                break
            saved = [step for step in _checkpoints(plan, self._case.checkpoint_every) if step <= bound]
            usable += [step for step in saved if self._lineage.owner(step, attempt) == plan.attempt]
        return max(usable, default=None)


def _checkpoints(plan: AttemptPlan, every: int | None) -> list[int]:
    regular = range(every * (plan.branch_step // every + 1), plan.last_step + 1, every) if every else ()
    return [*plan.checkpoints, *regular]


def _contiguous(records: Iterator[MetricRecord], cadence: int) -> Iterator[tuple[MetricRecord, bool]]:
    """Each record, and whether the record of the step before it (by `cadence`) came before it too."""
    expected: int | None = None
    for record in records:
        yield record, expected is None or record.step == expected
        expected = record.step + cadence
