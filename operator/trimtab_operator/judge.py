"""Judges one run's records as they come: the policies' engine over the surviving history, and what follows from it.

Every record is judged by the policies that the journal says were in force for it, so a new operator that judges the
same records again comes to the same verdicts. The first enforced firing of an attempt is kept until the attempt
changes, or a person lets the run go on behind it: what is flagged never depends on how late the operator got to act.
"""

import json
import math
from collections.abc import Container, Mapping, Sequence
from statistics import fmean, pstdev

import msgspec
from trimtab_contract.directives import LearningRateOverride
from trimtab_contract.journal import plain
from trimtab_contract.metrics import MetricRecord
from trimtab_policies.decision import allowed_action, decide
from trimtab_policies.evaluation import Engine
from trimtab_policies.explanation import explain
from trimtab_policies.lineage import Appended, Attempt, History, Lineage, Segment
from trimtab_policies.policy import AcceptedPolicy, Mode, Remediation
from trimtab_policies.reach import retention
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import State, Verdict

from trimtab_operator.extent import LARGEST_LOSS
from trimtab_operator.incidents import Latch, PolicyIdentity, RemediationSettings, Vitals, WithheldStep
from trimtab_operator.observation import FiringRule
from trimtab_operator.probation import BASELINE_RECORDS, COMPARED_RECORDS, vitals
from trimtab_operator.run_state import RunState

EVIDENCE_RECORDS = 128
"""How many records before the first bad one are frozen as evidence."""
HEALTHY_RECORDS = 100
KEPT_RECORDS = 384
"""How many of the newest records stay at hand: the evidence, and room for what was trained until a rule fired."""
DEFAULT_SIGMA = 4.0
_ACTING = frozenset({Action.PAUSE, Action.ROLLBACK, Action.STOP})


class Judge:
    """One run's judgement; owns the history, keeps no verdict that the records do not give again."""

    def __init__(self) -> None:
        self.texts: dict[str, AcceptedPolicy] = {}
        self.firing: Latch | None = None
        self.notes: tuple[FiringRule, ...] = ()
        self.last: MetricRecord | None = None
        self.metrics: frozenset[str] = frozenset()
        """The names of every scalar and vector that any record carried."""
        self._history: History | None = None
        self._healthy: dict[tuple[str, str], int] = {}
        self._engine: Engine | None = None
        self._in_force: Mapping[str, int] = {}
        self._resumed: frozenset[int] = frozenset()
        self._now = 0.0

    @property
    def judged_step(self) -> int:
        """The last step of the current attempt that was judged without a gap."""
        return self._history.next_step - 1 if self._history is not None else 0

    @property
    def green_step(self) -> int:
        """The last step by which every rule that acts found its metric healthy; 0 where one never did, or none acts."""
        return min(self._healthy.values(), default=0)

    @property
    def withheld(self) -> WithheldStep | None:
        """The last judged step of the current attempt, where its update was withheld as non-finite."""
        last, history = self.last, self._history
        if last is None or history is None or last.attempt != history.attempt or not last.scalars.get("skipped_update"):
            return None
        loss = last.scalars.get("loss", math.nan)
        return WithheldStep(step=last.step, window=last.window, loss_finite=math.isfinite(loss))

    @property
    def missing_step(self) -> int | None:
        """The first step that is missing while later ones have arrived."""
        return self._history.missing_step if self._history is not None else None

    def furthest_step(self, attempt: int) -> int:
        """The highest step that any record of the surviving history of `attempt` has; 0 while none was read."""
        return self._history.furthest_step if self._history and self._history.attempt == attempt else 0

    def needs_loading(self, state: RunState) -> bool:
        """Whether the records must be judged from the start: a new attempt, a hold that ended, or an unknown policy."""
        return bool(state.attempts) and (
            self._history is None
            or self._history.attempt != state.attempt
            or self._resumed != state.resumed(state.attempt)
            or self._engine is None
            or self._in_force != policies_in_force(state, self.texts)
        )

    def wanted(self, state: RunState) -> tuple[tuple[Segment, ...], int]:
        """The segments of the current attempt's surviving history, and the first step the rules need of it."""
        segments = _lineage(state).surviving(state.attempt)
        first = state.attempts[-1].branch_step - retention(self._judging(state)) + 1
        return segments, max(segments[0].first, first)

    def begin(self, state: RunState, records: tuple[MetricRecord, ...]) -> None:
        """Start over for the current attempt with its surviving records.

        Where older ones are lost the history begins behind the loss: the baselines fill again, nothing waits for ever.
        """
        start = state.attempts[-1].branch_step
        first = start + 1
        for record in reversed([one for one in records if one.step <= start]):
            if record.step != first - 1:
                break
            first = record.step
        self._history = History(_lineage(state), state.attempt, kept=KEPT_RECORDS, first_step=first)
        self._resumed = state.resumed(state.attempt)
        self._in_force = policies_in_force(state, self.texts)
        self._engine = Engine(
            self._judging(state),
            attempt=state.attempt,
            start_step=start,
            resumed=self._resumed,
            in_force=self._in_force,
        )
        self.firing, self.notes, self.last = None, (), None
        self._healthy = {}
        self.take(tuple(record for record in records if record.step >= first), state)

    def take(self, records: tuple[MetricRecord, ...], state: RunState) -> None:
        """Judge records in order; stops at a gap, ignores what is there already or belongs to no surviving history."""
        history, engine = self._history, self._engine
        if history is None or engine is None:
            return
        for record in records:
            if history.append(record) is not Appended.ACCEPTED:
                continue
            engine.take(record, now=self._now)
            self.last = record
            self.metrics |= record.scalars.keys() | record.vectors.keys()
            if record.attempt == history.attempt:
                self._judge(history, engine, state, record)

    def listen(self, now: float, state: RunState) -> None:
        """Time passes; `now` counts the seconds in which a record could have come (`progress.TrainingClock`)."""
        self._now = now
        history, engine, last = self._history, self._engine, self.last
        if history is None or engine is None or last is None or last.attempt != history.attempt:
            return
        if engine.watches_time:
            self._judge(history, engine, state, last)

    def vitals(self, after: int, until: int) -> Vitals | None:
        """The last records behind step `after`, up to step `until`, for a probation to be judged by."""
        if self._history is None:
            return None
        kept = [record.scalars for record in self._history.records if after < record.step <= until]
        return vitals(kept[-COMPARED_RECORDS:])

    def evidence(self) -> bytes:
        """The records around the first firing, one JSON object a line, vectors in base64."""
        if self._history is None:
            return b""
        first = (self.firing.first_bad_step if self.firing else self.judged_step) - EVIDENCE_RECORDS
        kept = [record for record in self._history.records if record.step >= first]
        return b"".join(json.dumps(plain(record), sort_keys=True).encode() + b"\n" for record in kept)

    def suspect_records(self) -> tuple[MetricRecord, ...]:
        """The records that fired or came after, and the last one before them."""
        if self._history is None:
            return ()
        first = (self.firing.first_bad_step if self.firing else self.judged_step) - 1
        return tuple(record for record in self._history.records if record.step >= first)

    def _judging(self, state: RunState) -> list[AcceptedPolicy]:
        """The policies that judge records of the current attempt: those in force when it began, and since."""
        return [self.texts[hashed] for hashed in policies_in_force(state, self.texts)]

    def _judge(self, history: History, engine: Engine, state: RunState, record: MetricRecord) -> None:
        guard = state.guard_at(record.attempt, record.step)
        if guard is None:
            return
        policies = [self.texts[identity.hash] for identity in guard.policies if identity.hash in engine.hashes]
        identities = {identity.hash: identity for identity in guard.policies}
        verdicts = engine.verdicts(policies, now=self._now)
        mode = Mode(guard.mode)
        self._note_health(verdicts, mode)
        decision = decide(verdicts, guard_mode=mode)
        winner, action = decision.winner, decision.action
        settled = max(self._resumed, default=0)
        if winner is not None and action is not None and action in _ACTING and winner.step > settled:
            latch = _latch(winner, identities, action, healthy=_measure(history, state, winner), last=record)
            stronger = self.firing is None or action.severity > Action(self.firing.action).severity
            self.firing = latch if stronger else self.firing
        asked_for = [
            seconds
            for one in verdicts
            if one.state is State.FIRING and one.step > settled and (seconds := _approval(one, mode)) is not None
        ]
        if self.firing is not None and asked_for:
            self.firing = _with_approval(self.firing, min(asked_for))
        fresh = [_note(verdict, mode) for verdict in verdicts if verdict.state is State.FIRING]
        known = {(note.policy, note.rule, note.attempt, note.step) for note in self.notes}
        self.notes = (
            *self.notes,
            *(note for note in fresh if note and (note.policy, note.rule, note.attempt, note.step) not in known),
        )

    def _note_health(self, verdicts: tuple[Verdict, ...], mode: Mode) -> None:
        acting = {(one.policy.hash, one.rule.name): one for one in verdicts if allowed_action(one, mode) in _ACTING}
        self._healthy = {
            key: one.step if one.state is State.HEALTHY else self._healthy.get(key, 0) for key, one in acting.items()
        }


def policies_in_force(state: RunState, texts: Container[str]) -> Mapping[str, int]:
    """By hash of a policy in `texts`, the first step of the newest attempt for which it is in force as it is now.

    A text that returns after another, or may act after it could only observe, is in force anew: its rules do not
    hold old records against the run.
    """
    first = state.attempts[-1].branch_step + 1
    begun = state.guard_at(state.attempt, first)
    since = [guard for guard in state.guards if guard.from_attempt == state.attempt and guard.from_step > first]
    accepted: dict[str, int] = {}
    before: set[tuple[str, str]] = set()
    for guard in [begun, *since] if begun is not None else since:
        step = first if guard is begun else guard.from_step
        now = {(identity.hash, guard.mode) for identity in guard.policies if identity.hash in texts}
        accepted.update({hashed: step for hashed, _ in now - before})
        before = now
    return accepted


def _lineage(state: RunState) -> Lineage:
    return Lineage(Attempt(one.number, one.parent, one.branch_step) for one in state.attempts)


def _note(verdict: Verdict, mode: Mode) -> FiringRule | None:
    """A firing rule that may only be written down."""
    action = allowed_action(verdict, mode)
    if action in _ACTING:
        return None
    asked = verdict.action
    return FiringRule(
        policy=verdict.policy.name,
        rule=verdict.rule.name,
        action=action.value,
        would_have=asked.value if asked is not action else "",
        attempt=verdict.attempt,
        step=verdict.first_bad_step or verdict.step,
        observed=_number(verdict.observed),
        threshold=_optional_number(verdict.threshold),
        message=explain(verdict),
        policy_hash=verdict.policy.hash,
    )


def _measure(history: History, state: RunState, verdict: Verdict) -> tuple[MetricRecord, ...]:
    """The records that say how the run was before the first bad one, oldest first.

    Not those of windows that an earlier incident flagged and somebody let stand: they may be damage themselves.
    """
    first_bad, doubtful = _first_bad(verdict), state.doubtful
    return tuple(one for one in history.records if one.step < first_bad and one.window not in doubtful)


def _first_bad(verdict: Verdict) -> int:
    return verdict.first_bad_step or verdict.step


def _latch(
    verdict: Verdict,
    identities: Mapping[str, PolicyIdentity],
    action: Action,
    *,
    healthy: Sequence[MetricRecord],
    last: MetricRecord,
) -> Latch:
    policy, rule = verdict.policy, verdict.rule
    sigma = verdict.sigma
    first_bad = _first_bad(verdict)
    return Latch(
        policy=identities[policy.hash],
        rule=rule.name,
        metric=verdict.metric or "",
        action=action.value,
        observed=_number(verdict.observed),
        threshold=_optional_number(verdict.threshold),
        sigma=sigma,
        control_limit=_control_limit(verdict, healthy, sigma),
        message=explain(verdict),
        attempt=verdict.attempt,
        first_bad_step=first_bad,
        fired_step=verdict.step,
        flagged=verdict.flagged_windows or (last.window, last.window),
        remediation=remediation_settings(policy.spec.remediation),
        rule_text=rule.model_dump(mode="json", by_alias=True, exclude_none=True),
        healthy=vitals([one.scalars for one in healthy[-BASELINE_RECORDS:]]),
    )


def remediation_settings(remediation: Remediation) -> RemediationSettings:
    """A policy's remediation in the engine's units."""
    rate, throughput = remediation.learning_rate, remediation.min_throughput
    return RemediationSettings(
        margin=remediation.margin,
        before=remediation.skip_batches.before,
        after=remediation.skip_batches.after,
        probe=remediation.skip_batches.probe,
        probation_steps=remediation.probation_steps,
        margin_factor=remediation.escalate.margin_factor,
        learning_rate=LearningRateOverride(scale=rate.scale, until_step=rate.for_steps) if rate else None,
        approval_seconds=remediation.approval_seconds,
        **({"min_throughput": throughput} if throughput is not None else {}),
    )


def _approval(verdict: Verdict, mode: Mode) -> int | None:
    """How long the policy of a firing rule lets a plan wait for its approval; None where it asks for none."""
    enforced = mode is Mode.ENFORCE and verdict.policy.mode is Mode.ENFORCE
    return verdict.policy.spec.remediation.approval_seconds if enforced else None


def _with_approval(latch: Latch, seconds: int) -> Latch:
    """Any firing policy may ask for an approval; the deadline is the winner's own, where it has one."""
    if latch.remediation.approval_seconds is not None:
        return latch
    settings = msgspec.structs.replace(latch.remediation, approval_seconds=seconds)
    return msgspec.structs.replace(latch, remediation=settings)


def _control_limit(verdict: Verdict, before: Sequence[MetricRecord], sigma: float | None) -> float | None:
    """The loss above which a control window is bad: the rule's own threshold, or one made of the healthy records."""
    threshold = verdict.threshold
    if verdict.metric == "loss" and threshold is not None and math.isfinite(threshold):
        return threshold
    healthy = [loss for record in before if abs(loss := record.scalars.get("loss", math.nan)) <= LARGEST_LOSS][
        -HEALTHY_RECORDS:
    ]
    if len(healthy) < 2:
        return None
    return fmean(healthy) + (sigma if sigma is not None else DEFAULT_SIGMA) * pstdev(healthy)


def _number(value: float | None) -> float | str:
    """A number as the journal writes it: non-finite ones, and none at all, are words."""
    if value is None:
        return "none"
    return value if math.isfinite(value) else str(plain(value))


def _optional_number(value: float | None) -> float | str | None:
    return None if value is None else _number(value)
