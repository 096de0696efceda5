"""Records a run while it happens: every question to the state machine, and afterwards what it had been asked about.

`DecisionTap` stands where an operator asks `remediation.advance`. When the run is over, `record` puts its questions,
journal, acks, metric records and policy texts into one Recording, and decides it again: a recording that does not lead
to the same observations and decisions at once is none.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from recording import AckLine, Act, DecisionLine, Header, MetricsLine, PolicyLine, Recording, RecordLine, changed
from redecision import ELSEWHERE, JUDGEMENT, decided, redecide, table
from trimtab_contract.directives import Ack
from trimtab_contract.journal import JournalRecord, parse_record, plain
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.commands import Append, Command
from trimtab_operator.observation import Observation
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import RunState
from trimtab_policies.lineage import Attempt, Lineage
from trimtab_policies.policy import AcceptedPolicy


@dataclass(frozen=True, slots=True)
class Question:
    """The state machine was asked, and what it said."""

    state: RunState
    observation: Observation
    answer: Command | None


class DecisionTap:
    """`remediation.advance`, which remembers what it was asked; shared by the operators of a run."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def __call__(self, state: RunState, observation: Observation) -> Command | None:
        """Ask."""
        answer = advance(state, observation)
        self.questions.append(Question(state, observation, answer))
        return answer


@dataclass(frozen=True, slots=True)
class Played:
    """What a run left behind: its journal, acks by their id, metric records, and the policies that judged."""

    bodies: Mapping[int, bytes]
    acks: tuple[tuple[str, Ack], ...]
    metrics: Mapping[tuple[int, int], MetricRecord]
    policies: tuple[AcceptedPolicy, ...]


def record(header: Header, tap: DecisionTap, played: Played) -> Recording:
    """The recording of a run; raises AssertionError where it cannot be decided again as it was."""
    draft = _Draft(played)
    for question in tap.questions:
        draft.add(question)
    draft.write_until(max(played.bodies))
    recording = Recording(header, tuple(draft.acts))
    again = redecide(recording)
    assert not again.differences, table((header.name, one) for one in again.differences)
    for found, kept in zip(again.observations, draft.kept, strict=True):
        assert found == kept, f"{header.name}: another observation: {_different(found, kept)}"
    return recording


class _Draft:
    """The acts so far."""

    def __init__(self, played: Played) -> None:
        self.acts: list[Act] = [PolicyLine.of(policy) for policy in played.policies]
        self.kept: list[Observation] = []
        self._played = played
        self._written = 0
        self._acks = iter(played.acks)
        self._ack = next(self._acks, None)
        self._known: set[tuple[int, int]] = set()
        self._said: dict[str, Any] = {}
        self._seen: dict[str, Any] = dict(_UNSAID)

    def add(self, question: Question) -> None:
        """A question, unless its answer was never written, or nothing but the time had changed since the last one."""
        state, answer = question.state, question.answer
        if state.seq < self._written or (answer is not None and not isinstance(answer, Append)):
            return
        written = parse_record(self._played.bodies[state.seq + 1]) if isinstance(answer, Append) else None
        if isinstance(answer, Append) and decided(answer.draft) != decided(_read(written)):
            return
        if answer is None and self.kept and self._written == state.seq:
            last = dataclasses.replace(self.kept[-1], now=question.observation.now)
            if last == question.observation:
                return
        self.write_until(state.seq)
        self._take_in(question)
        if written is not None:
            self.write_until(written.seq)

    def write_until(self, seq: int) -> None:
        """The journal up to a record."""
        for number in range(self._written + 1, seq + 1):
            self.acts.append(RecordLine(body=msgspec.Raw(self._played.bodies[number])))
        self._written = max(self._written, seq)

    def _take_in(self, question: Question) -> None:
        observation = question.observation
        cursor = observation.acks.cursor
        while self._ack is not None and _place(self._ack[0]) <= _place(cursor):
            said = plain(self._ack[1])
            self.acts.append(AckLine(id=self._ack[0], said=changed(self._said, said)))
            self._said = said
            self._ack = next(self._acks, None)
        for place in _surviving(question.state, observation.judged_step):
            if place not in self._known and place in self._played.metrics:
                self._known.add(place)
                self.acts.append(MetricsLine.of(self._played.metrics[place]))
        now = _values(observation)
        fresh = changed(self._seen, now)
        self._seen = now
        self.kept.append(observation)
        self.acts.append(
            DecisionLine(
                answered=question.answer is not None,
                heard=cursor,
                judged=observation.judged_step,
                now=observation.now,
                seen={name: value for name, value in fresh.items() if name not in ELSEWHERE},
                judgement={name: value for name, value in fresh.items() if name in JUDGEMENT},
            )
        )


def _read(written: JournalRecord | None) -> JournalRecord:
    assert written is not None
    return written


def _values(observation: Observation) -> dict[str, Any]:
    """Every field as plain JSON."""
    return plain({one.name: getattr(observation, one.name) for one in dataclasses.fields(Observation)})


_UNSAID: Mapping[str, Any] = {
    one.name: None if one.default is dataclasses.MISSING else plain(one.default)
    for one in dataclasses.fields(Observation)
}
"""What a field says before anything was seen."""


def _surviving(state: RunState, judged: int) -> Iterable[tuple[int, int]]:
    """(attempt, step) of every record that an operator in this state may have judged."""
    if not state.attempts:
        return
    lineage = Lineage(Attempt(one.number, one.parent, one.branch_step) for one in state.attempts)
    for segment in lineage.surviving(state.attempt):
        last = judged if segment.last is None else segment.last
        yield from ((segment.attempt, step) for step in range(segment.first, last + 1))


def _place(entry: str) -> tuple[int, int]:
    first, _, second = entry.partition("-")
    return int(first), int(second)


def _different(found: Observation, kept: Observation) -> str:
    fields = (one.name for one in dataclasses.fields(Observation))
    return "; ".join(
        f"{name}: {getattr(found, name)} for {getattr(kept, name)}"
        for name in fields
        if getattr(found, name) != getattr(kept, name)
    )
