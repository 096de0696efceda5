"""The file of a recorded incident: what an operator took in, in order, and what it decided. JSON Lines, one act a line.

    header     what it is, and the version of the decisions it was last compared with
    policy     the text of a policy that judged
    metrics    one record of the trainer
    ack        one acknowledgement
    evidence   what a world measured, byte for byte
    decision   the state machine was asked: with what it saw (changes only), and whether a record was the answer
    record     the journal record as it was stored, byte for byte
    accepted   what later versions decide otherwise, and somebody agreed to

An incident that was recorded from its trail alone has no decisions and no acks: there, what was seen is inferred where
the trail holds it.

A record that a decision answered with follows right behind it. What is taken in stands before the first decision that
knew it; how much of it a decision knew is said there, for an operator that takes over begins anew with all of it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.evidence import ProbeEvidence, decode_probe
from trimtab_contract.journal import JournalRecord, parse_record
from trimtab_contract.metrics import MetricRecord, Vector
from trimtab_policies.policy import AcceptedPolicy, parse_policy


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="line"):
    """`source` says what the parts were that played it."""

    name: str
    title: str
    source: str
    run: str
    job: str
    decision_version: int


class PolicyLine(msgspec.Struct, frozen=True, kw_only=True, tag="policy", tag_field="line"):
    """A policy with the identity under which the journal names it."""

    kind: str
    namespace: str | None
    name: str
    uid: str
    generation: int
    hash: str
    spec: dict[str, Any]

    @classmethod
    def of(cls, policy: AcceptedPolicy) -> "PolicyLine":
        """The line of a policy."""
        spec = policy.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        identity = {name: getattr(policy, name) for name in ("kind", "namespace", "name", "uid", "generation", "hash")}
        return cls(**identity, spec=spec)

    def policy(self) -> AcceptedPolicy:
        """The policy, under the hash it had: a text may be read otherwise by now."""
        return AcceptedPolicy(
            self.kind, self.namespace, self.name, self.uid, self.generation, self.hash, parse_policy(self.spec)
        )


class MetricsLine(msgspec.Struct, frozen=True, kw_only=True, tag="metrics", tag_field="line", omit_defaults=True):
    """A metric record; values that are not finite are words."""

    attempt: int
    step: int
    window: int
    samples_seen: int
    tokens_seen: int
    time: float
    scalars: dict[str, float | str]
    vectors: dict[str, tuple[tuple[int, ...], tuple[float | str, ...]]] = {}

    @classmethod
    def of(cls, record: MetricRecord) -> "MetricsLine":
        """The line of a record."""
        return cls(
            attempt=record.attempt,
            step=record.step,
            window=record.window,
            samples_seen=record.samples_seen,
            tokens_seen=record.tokens_seen,
            time=record.time,
            scalars={name: _word(value) for name, value in record.scalars.items()},
            vectors={
                name: (vector.shape, tuple(map(_word, vector.values()))) for name, vector in record.vectors.items()
            },
        )

    def record(self) -> MetricRecord:
        """The record."""
        return MetricRecord(
            attempt=self.attempt,
            step=self.step,
            window=self.window,
            samples_seen=self.samples_seen,
            tokens_seen=self.tokens_seen,
            time=self.time,
            scalars={name: float(value) for name, value in self.scalars.items()},
            vectors={name: Vector.pack(shape, map(float, values)) for name, (shape, values) in self.vectors.items()},
        )


class AckLine(msgspec.Struct, frozen=True, kw_only=True, tag="ack", tag_field="line"):
    """An acknowledgement under its id in the stream; `said` are the fields that changed since the one before it."""

    id: str
    said: dict[str, Any]


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True, tag="decision", tag_field="line"):
    """The state machine was asked.

    `heard` is the id of the last ack, `judged` the last step of the newest attempt that the operator knew. `seen` are
    the fields of the Observation that changed since the last decision, `judgement` those that follow from the records;
    of an object that was there before, what changed in it (`changed`).
    """

    answered: bool
    heard: str
    judged: int
    now: str
    seen: dict[str, Any]
    judgement: dict[str, Any]


class EvidenceLine(msgspec.Struct, frozen=True, kw_only=True, tag="evidence", tag_field="line"):
    """An object with losses that a world measured, under the hash by which journal records name it."""

    sha256: str
    body: msgspec.Raw

    def probe(self) -> ProbeEvidence:
        """The losses; raises AssertionError where they are not those of the hash."""
        assert sha256_hex(bytes(self.body)) == self.sha256, f"evidence {self.sha256} was altered"
        return decode_probe(bytes(self.body))


class RecordLine(msgspec.Struct, frozen=True, kw_only=True, tag="record", tag_field="line"):
    """A journal record as it was stored."""

    body: msgspec.Raw

    def record(self) -> JournalRecord:
        """The record."""
        return parse_record(bytes(self.body))


class AcceptedLine(msgspec.Struct, frozen=True, kw_only=True, order=True, tag="accepted", tag_field="line"):
    """What the version in the header decides otherwise than was recorded."""

    seq: int
    field: str
    recorded: str
    now: str


Act = PolicyLine | MetricsLine | AckLine | EvidenceLine | DecisionLine | RecordLine
_Line = Header | PolicyLine | MetricsLine | AckLine | EvidenceLine | DecisionLine | RecordLine | AcceptedLine


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded incident: its acts in order, and the differences that were accepted since."""

    header: Header
    acts: tuple[Act, ...]
    accepted: tuple[AcceptedLine, ...] = ()

    @property
    def bodies(self) -> tuple[tuple[int, bytes], ...]:
        """The journal, as the bucket held it."""
        found = [bytes(act.body) for act in self.acts if isinstance(act, RecordLine)]
        return tuple(enumerate(found, 1))

    def agreed(self, version: int, accepted: Iterable[AcceptedLine]) -> "Recording":
        """The same, as a later version of the decisions is known to decide it."""
        header = msgspec.structs.replace(self.header, decision_version=version)
        return replace(self, header=header, accepted=tuple(sorted(accepted)))


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not as before; of an object that was one before, too, the fields of it."""
    found: dict[str, Any] = {}
    for name, value in after.items():
        known = before.get(name)
        if name in before and known == value:
            continue
        if isinstance(value, dict) and isinstance(known, dict):
            one, other = cast("dict[str, Any]", known), cast("dict[str, Any]", value)
            assert one.keys() == other.keys(), f"{name} has other fields than before"
            found[name] = {inner: kept for inner, kept in other.items() if kept != one[inner]}
        else:
            found[name] = value
    return found


def merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What `changed` was made of."""
    after = dict(before)
    for name, value in changes.items():
        known = after.get(name)
        both = isinstance(value, dict) and isinstance(known, dict)
        after[name] = {**cast("dict[str, Any]", known), **value} if both else value
    return after


def write_recording(path: Path, recording: Recording) -> None:
    """Write the file; equal recordings give equal bytes."""
    lines = (recording.header, *recording.acts, *recording.accepted)
    path.write_bytes(b"".join(msgspec.json.encode(line, order="deterministic") + b"\n" for line in lines))


def read_recording(path: Path) -> Recording:
    """Read the file; raises msgspec.MsgspecError where a line is none of these."""
    lines = [msgspec.json.decode(line, type=_Line) for line in path.read_bytes().splitlines()]
    header, *rest = lines
    assert isinstance(header, Header), f"{path.name} does not begin with its header"
    acts: list[Act] = []
    accepted: list[AcceptedLine] = []
    for line in rest:
        if isinstance(line, AcceptedLine):
            accepted.append(line)
        else:
            assert not isinstance(line, Header), f"{path.name} has a second header"
            acts.append(line)
    return Recording(header, tuple(acts), tuple(accepted))


def _word(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
