"""A recorded incident decided again by today's code: the judgement of its records, and what the state machine answers.

The state is always the fold of the recorded journal, and a judgement that differs is taken as it was recorded: so each
difference is found where it arises, and nowhere else. What is written for people to read is no decision: words that
changed are counted, and fail nothing.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from recording import (
    AcceptedLine,
    AckLine,
    DecisionLine,
    EvidenceLine,
    MetricsLine,
    PolicyLine,
    Recording,
    RecordLine,
    merged,
)
from trimtab_contract.directives import Ack, CheckpointReference, Directive
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.journal import JournalRecord, Phase, plain, record_hash, verify_chain
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.commands import Append, Command, Draft, Perform
from trimtab_operator.incidents import Latch, Measurement, Plan, SkipRange, Vitals, Wishes, WithheldStep
from trimtab_operator.journal_fold import fold
from trimtab_operator.judge import Judge
from trimtab_operator.observation import Acks, Limits, Observation
from trimtab_operator.observer import probation_vitals
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import AcceptedGuard, AutomationHold, JournalAction, RunPhase, RunState
from trimtab_policies.absence import AbsenceWatch

JUDGEMENT = ("firing", "green_step", "notes", "probation", "withheld")
"""What an Observation has from the records and the policies alone."""
ELSEWHERE = ("acks", "job", "judged_step", "now", *JUDGEMENT)
"""What it has from other lines than `seen`."""

_WORDS = frozenset({"doubts", "message", "missing", "why"})
_NOT_DECIDED = frozenset({"seq", "prev", "time", "actor"})
_GIVEN = {
    JournalAction.TAKEOVER: "an operator takes the run over when it gets the Lease",
    JournalAction.RUN_ENDED: "the TrainingJob was deleted",
    JournalAction.SNAPSHOT: "the fold is kept every so many records",
}
_NOTHING = "nothing"
_ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Given:
    """A record, or a rule, that cannot be decided again from what is recorded."""

    seq: int
    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redecision:
    """What was compared, and what differs.

    `records` were the answer of the state machine, `inferred` those of them for which the trail says what was seen, and
    nobody else; `effects` the results of intents, `rests` are the times it was
    asked and had nothing to do, `judgements` the metric records that rules judged again.
    """

    name: str
    records: int
    inferred: int
    effects: int
    rests: int
    judgements: int
    reworded: int
    differences: tuple[AcceptedLine, ...]
    given: tuple[Given, ...]
    observations: tuple[Observation, ...] = field(repr=False)


def redecide(recording: Recording) -> Redecision:
    """Decide a recorded incident again; raises AssertionError where the recording is not whole."""
    report = verify_chain(recording.bodies)
    assert report.intact, f"{recording.header.name}: {report.problems}"
    again = _Again(recording)
    for act in recording.acts:
        match act:
            case PolicyLine():
                again.policy(act)
            case MetricsLine():
                again.metrics[act.attempt, act.step] = act.record()
            case AckLine():
                again.ack(act)
            case EvidenceLine():
                again.probes[act.sha256] = act.probe()
            case DecisionLine():
                again.decision(act)
            case RecordLine():
                again.record(act)
    return again.outcome()


def table(differences: Iterable[tuple[str, AcceptedLine]]) -> str:
    """Differences for people: recording, number of the journal record, field, recorded, now."""
    rows = [("recording", "record", "field", "recorded", "now")]
    rows += [(name, str(one.seq), one.field, one.recorded, one.now) for name, one in differences]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join((*(row[c].ljust(widths[c]) for c in range(4)), row[4])) for row in rows)


class _Again:
    """One operator after the other, as the recording says that they were there."""

    def __init__(self, recording: Recording) -> None:
        self.metrics: dict[tuple[int, int], MetricRecord] = {}
        self.probes: dict[str, ProbeEvidence] = {}
        self._header = recording.header
        self._texts = Judge().texts
        self._state = RunState()
        self._acks: list[tuple[str, Ack]] = []
        self._said: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._judgement: dict[str, Any] = {}
        self._begin()
        self._asked: list[Command | None] = []
        self._differences: list[AcceptedLine] = []
        self._given: list[Given] = []
        self._observations: list[Observation] = []
        self._judged: set[tuple[int, int]] = set()
        self._known: dict[str, tuple[str, str]] = {}
        self._counts = {"records": 0, "inferred": 0, "effects": 0, "rests": 0, "reworded": 0}

    def _begin(self) -> None:
        """A new operator knows the journal, and nothing else yet."""
        self._heard = Acks()
        self._judge = Judge()
        self._judge.texts = self._texts

    def policy(self, line: PolicyLine) -> None:
        """A text that the journal names."""
        policy = self._texts[line.hash] = line.policy()
        for rule in policy.spec.rules:
            if AbsenceWatch.wanted(rule):
                why = "how long its metric was absent is not recorded"
                self._given.append(Given(0, f"{line.kind}/{line.name}/{rule.name}", why))

    def ack(self, line: AckLine) -> None:
        """One more word of the trainer."""
        self._said = merged(self._said, line.said)
        self._acks.append((line.id, msgspec.convert(self._said, type=Ack)))

    def decision(self, line: DecisionLine) -> None:
        """Judge, observe, and ask the state machine."""
        self._take_in(line)
        self._judgement = merged(self._judgement, line.judgement)
        raw = {**self._seen, **self._judgement, "judged_step": line.judged, "job": self._header.job, "now": line.now}
        observation = dataclasses.replace(msgspec.convert(raw, type=Observation), acks=self._heard)
        self._observations.append(observation)
        self._compare_judgement(observation)
        command = advance(self._state, observation)
        if line.answered:
            self._asked.append(command)
            return
        self._counts["rests"] += 1
        if command is not None:
            self._differ("action", _NOTHING, _action(command))

    def record(self, line: RecordLine) -> None:
        """Compare what was decided with what is recorded, and go on from the latter."""
        record = line.record()
        if self._asked:
            self._compare(record, self._asked.pop())
        elif record.phase is Phase.RESULT:
            self._compare_effect(record)
        else:
            why = _GIVEN.get(JournalAction(record.action)) or self._infer(record)
            if why:
                self._given.append(Given(record.seq, record.action, why))
        if record.action == JournalAction.TAKEOVER:
            self._begin()
        head = record_hash(bytes(line.body))
        if record.actor.epoch < self._state.epoch:
            self._state = dataclasses.replace(self._state, seq=record.seq, head=head)
            return
        self._state = fold(self._state, record, head)

    def outcome(self) -> Redecision:
        """What was found."""
        return Redecision(
            name=self._header.name,
            **self._counts,
            judgements=len(self._judged),
            differences=tuple(dict.fromkeys(self._differences)),
            given=tuple(self._given),
            observations=tuple(self._observations),
        )

    def _infer(self, record: JournalRecord) -> str:
        """Decide a record whose question is not recorded from what its trail holds; why that cannot be."""
        after: Mapping[str, Any] = record.after or {}
        latch: Mapping[str, Any] | None = after.get("latch")
        checkpoint: Mapping[str, Any] | None = after.get("checkpoint")
        if checkpoint is not None and self._state.checkpoint(checkpoint["key"]) is None:
            return "that this checkpoint was saved is nowhere else in the trail"
        fired = int(latch["fired_step"]) if latch is not None and latch["asked"] is None else 0
        changes: dict[str, Any] = {}
        if fired:
            missing = self._missing_step(fired)
            if missing:
                return f"the record of step {missing}, with which its judgement begins, is not in the trail"
            self._judge_until(fired)
            changes = {"firing": self._judge.firing, "judged_step": fired}
        probe = next((self.probes[one.sha256] for one in record.evidence if one.sha256 in self.probes), None)
        if probe is not None:
            kind = "suspect" if self._state.phase is RunPhase.DIAGNOSING else "probe"
            changes = {kind: probe, f"{kind}_evidence": record.evidence}
        now = record.time
        limits = dataclasses.replace(_NO_LIMITS, generation=int(after.get("generation", 0)))
        if after.get("directive") is not None:
            now = datetime.fromtimestamp(after["directive"]["issued_at"], UTC).isoformat()
        observation = Observation(job=self._header.job, now=now, limits=limits, **changes)
        command = advance(self._state, observation)
        same = isinstance(command, Append) and command.draft.action == record.action
        if not same and not fired:
            return "what was seen when it was decided is not recorded"
        self._counts["inferred"] += 1
        self._compare(record, command)
        return ""

    def _missing_step(self, judged: int) -> int:
        """The first step that a judgement up to here needs and that is not recorded; 0 for none."""
        segments, first = self._judge.wanted(self._state)
        for segment in segments:
            last = judged if segment.last is None else segment.last
            for step in range(max(segment.first, first), last + 1):
                if (segment.attempt, step) not in self.metrics:
                    return step
        return 0

    def _take_in(self, line: DecisionLine) -> None:
        unknown = sorted(set(line.seen) - {one.name for one in dataclasses.fields(Observation)})
        assert not unknown, f"{self._header.name}: an Observation has no {', '.join(unknown)} any more"
        self._seen = merged(self._seen, line.seen)
        for entry, ack in self._acks:
            if _place(self._heard.cursor) < _place(entry) <= _place(line.heard):
                self._heard = self._heard.hear(entry, ack, self._state)
        self._heard = dataclasses.replace(self._heard, cursor=line.heard)
        self._judge_until(line.judged)

    def _judge_until(self, judged: int) -> None:
        """Judge the newest attempt's records up to a step."""
        judge, state = self._judge, self._state
        if not state.attempts or not state.guards:
            return
        if judge.needs_loading(state):
            judge.begin(state, self._surviving(judged))
        steps = range(judge.judged_step + 1, judged + 1)
        judge.take(tuple(self.metrics[state.attempt, step] for step in steps), state)
        first = state.attempts[-1].branch_step + 1
        self._judged.update((state.attempt, step) for step in range(first, judged + 1))

    def _surviving(self, judged: int) -> tuple[MetricRecord, ...]:
        """The history that the newest attempt continues, as far as it was known."""
        segments, first = self._judge.wanted(self._state)
        found: list[MetricRecord] = []
        for segment in segments:
            last = judged if segment.last is None else segment.last
            steps = range(max(segment.first, first), last + 1)
            found += [self.metrics[segment.attempt, step] for step in steps if (segment.attempt, step) in self.metrics]
        return tuple(found)

    def _compare_judgement(self, recorded: Observation) -> None:
        names = ("judged_step", *JUDGEMENT)
        before = {name: getattr(recorded, name) for name in names}
        found = {name: getattr(self._judge, name) for name in names if name != "probation"}
        found["probation"] = probation_vitals(self._state, self._judge, self._heard)
        recorded_leaves, found_leaves = (dict(_leaves({"judgement": plain(one)})) for one in (before, found))
        known, self._known = self._known, {}
        for name, one, other in self._unequal(recorded_leaves, found_leaves):
            self._known[name] = one, other
            if known.get(name) != (one, other):  # told once, though it stays so for many a decision
                self._differ(name, one, other)

    def _compare(self, record: JournalRecord, command: Command | None) -> None:
        self._counts["records"] += 1
        if not isinstance(command, Append):
            self._differ("action", record.action, _action(command))
            return
        if command.draft.action != record.action:
            self._differ("action", record.action, command.draft.action.value)
            return
        recorded, found = dict(_leaves(decided(record))), dict(_leaves(decided(command.draft)))
        for name, one, other in self._unequal(recorded, found):
            self._differ(name, one, other)

    def _compare_effect(self, record: JournalRecord) -> None:
        self._counts["effects"] += 1
        blank = Observation(job=self._header.job, now=record.time, limits=_NO_LIMITS)
        command = advance(self._state, blank)
        if not isinstance(command, Perform):
            self._differ("effect", record.id, _action(command))
        elif command.effect.id != record.id:
            self._differ("effect", record.id, command.effect.id)

    def _unequal(self, recorded: Mapping[str, str], found: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
        """(field, recorded, found) of every value that differs, and is no words."""
        for name in dict.fromkeys((*recorded, *found)):
            one, other = recorded.get(name, _ABSENT), found.get(name, _ABSENT)
            if one == other:
                continue
            if _is_words(name) and _ABSENT not in {one, other}:
                self._counts["reworded"] += 1
            else:
                yield name, one, other

    def _differ(self, name: str, recorded: str, now: str) -> None:
        self._differences.append(AcceptedLine(seq=self._state.seq + 1, field=name, recorded=recorded, now=now))


def decided(record: JournalRecord | Draft) -> dict[str, Any]:
    """Of a record all that the state machine decides: not its place, time and author.

    Values are as today's fold reads them: one that an older version did not write has the default that it reads there.
    """
    fields = plain(record if isinstance(record, JournalRecord) else msgspec.to_builtins(record))
    for side in ("before", "after"):
        if fields.get(side):
            fields[side] = {name: _as_read(name, value) for name, value in fields[side].items()}
    return {name: value for name, value in fields.items() if name not in _NOT_DECIDED}


def _as_read(name: str, value: Any) -> Any:
    kind = _READ.get(name)
    return plain(msgspec.convert(value, type=kind)) if kind is not None and isinstance(value, Mapping) else value


_READ: Mapping[str, type[msgspec.Struct]] = {
    "checkpoint": CheckpointReference,
    "directive": Directive,
    "guard": AcceptedGuard,
    "hold": AutomationHold,
    "latch": Latch,
    "plan": Plan,
    "restored": Measurement,
    "skip": SkipRange,
    "suspect": Measurement,
    "vitals": Vitals,
    "wishes": Wishes,
    "withheld": WithheldStep,
}
"""What the objects in a record are, by their names."""
_NO_LIMITS = Limits(
    max_rollbacks=1000,
    max_restarts=1000,
    window_seconds=0.0,
    certify_steps=0,
    generation=0,
    suspend=False,
)
"""Where the budget is not recorded, nothing is decided again that it could have forbidden."""


def _action(command: Command | None) -> str:
    if command is None:
        return _NOTHING
    return command.draft.action.value if isinstance(command, Append) else f"the effect of {command.effect.id}"


def _place(entry: str) -> tuple[int, int]:
    first, _, second = entry.partition("-")
    return int(first), int(second)


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, str]]:
    """Every plain value with the path to it; an empty object or list is one, too."""
    if isinstance(value, Mapping) and value:
        for name, inner in cast("Mapping[str, Any]", value).items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple)) and value:
        for index, inner in enumerate(cast("Sequence[Any]", value)):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, msgspec.json.encode(value).decode()


def _is_words(path: str) -> bool:
    return path.rpartition(".")[2].partition("[")[0] in _WORDS
