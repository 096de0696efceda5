"""JournalRecord: the write-ahead log of a run, its hash chain, and which records count.

The journal is audit trail and state at once: the operator acts only from its fold, so the trail cannot disagree with
what happened. A record carries the hash of its predecessor's bytes; the first one carries `GENESIS`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from trimtab_contract.errors import UNREADABLE, MalformedJournal

GENESIS = "0" * 64
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Phase(StrEnum):
    """An effect is journaled twice: before it and after it. Records without effect carry no phase."""

    INTENT = "Intent"
    RESULT = "Result"


class Actor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who wrote the record. `epoch` rises with every takeover and fences older operators."""

    service_account: str
    pod: str
    pod_uid: str
    image: str
    epoch: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object a reviewer can fetch and hash; `store` says in which bucket it lies."""

    key: str
    sha256: str
    store: str = "audit"


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. `id` names the act, not the entry: intent and result of one effect share it.

    A record with a field that is not here was written by somebody else or by a newer version: it is not read at all,
    for what cannot be understood must not be acted upon.

    `reason`, `before` and `after` are plain JSON values; non-finite numbers are written as strings (see `plain`).
    """

    seq: int
    prev: str
    id: str
    time: str
    actor: Actor
    action: str
    phase: Phase | None = None
    incident: str | None = None
    on_behalf_of: str | None = None
    reason: dict[str, Any] | None = None
    evidence: tuple[Evidence, ...] = ()
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    policy_hash: str | None = None
    outcome: str | None = None
    error: str | None = None


def plain(value: Any) -> Any:
    """A JSON value in which NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""
    built = msgspec.to_builtins(value, str_keys=True)
    return _plain(built)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def canonical_bytes(record: JournalRecord) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8, no NaN."""
    built = msgspec.to_builtins(record, str_keys=True)
    try:
        text = _CANONICAL.encode(built)
    except ValueError:  # a number that JSON does not know: so rare that nothing is looked through for it before
        text = _CANONICAL.encode(_plain(built))
    return text.encode()


def record_hash(body: bytes) -> str:
    """The SHA-256 of a record's stored bytes, which the next record carries as `prev`."""
    return hashlib.sha256(body).hexdigest()


def parse_record(body: bytes) -> JournalRecord:
    """Read a stored record; raises MalformedJournal."""
    try:
        return msgspec.json.decode(body, type=JournalRecord)
    except UNREADABLE as error:
        message = f"journal record cannot be decoded: {error}"
        raise MalformedJournal(message) from error


def effective(records: Iterable[JournalRecord]) -> tuple[JournalRecord, ...]:
    """The records that count: one whose epoch is below an earlier record's is ignored."""
    highest = 0
    counted: list[JournalRecord] = []
    for record in records:
        if record.actor.epoch >= highest:
            highest = record.actor.epoch
            counted.append(record)
    return tuple(counted)


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What verification found: the head that the chain proves, problems, and records of fenced operators."""

    records: int
    head_seq: int
    head_hash: str
    problems: tuple[str, ...]
    ignored: tuple[int, ...]

    @property
    def intact(self) -> bool:
        """Whether nothing is missing, altered or out of order."""
        return not self.problems


def verify_chain(bodies: Sequence[tuple[int, bytes]]) -> ChainReport:
    """Check stored records, given as (sequence number in the key, bytes) in key order.

    Reports gaps, altered bytes (the successor's `prev` no longer matches), bodies that are not canonical, sequence
    numbers that differ from their key, and results without an earlier intent; names records of fenced operators. Of
    two records that do not fit together the one is named that no other record knows.
    """
    problems: list[str] = []
    ignored: list[int] = []
    previous_hash, expected_seq, highest_epoch = GENESIS, 1, 0
    intents: set[str] = set()
    for position, (key_seq, body) in enumerate(bodies):
        if key_seq != expected_seq:
            problems.append(f"record {expected_seq} is missing; the next one found is {key_seq}")
        try:
            record = parse_record(body)
        except MalformedJournal as error:
            problems.append(f"record {key_seq}: {error}")
            previous_hash, expected_seq = record_hash(body), key_seq + 1
            continue
        if record.prev != previous_hash:
            problems.append(_misfit(bodies, position, expected_seq))
        problems += [f"record {key_seq}: {text}" for text in _problems(record, body, key_seq)]
        if record.actor.epoch < highest_epoch:
            ignored.append(key_seq)
        else:
            highest_epoch = record.actor.epoch
            if record.phase is Phase.INTENT:
                intents.add(record.id)
            elif record.phase is Phase.RESULT and record.id not in intents:
                problems.append(f"record {key_seq}: result of {record.action} without an earlier intent")
        previous_hash, expected_seq = record_hash(body), key_seq + 1
    return ChainReport(len(bodies), expected_seq - 1, previous_hash, tuple(problems), tuple(ignored))


def _misfit(bodies: Sequence[tuple[int, bytes]], position: int, expected_seq: int) -> str:
    """Which of a record and the one before it is wrong: what the next record continues is as it was written."""
    key_seq, body = bodies[position]
    whole = key_seq == expected_seq and position > 0
    if whole and position + 1 < len(bodies) and _continues(bodies[position + 1][1], body):
        return f"record {key_seq - 1}: it was altered: its hash is not the one that record {key_seq} continues"
    return f"record {key_seq}: it does not continue the hash of the record before it"


def _continues(following: bytes, body: bytes) -> bool:
    try:
        return parse_record(following).prev == record_hash(body)
    except MalformedJournal:
        return False


def _problems(record: JournalRecord, body: bytes, key_seq: int) -> list[str]:
    found: list[str] = []
    if record.seq != key_seq:
        found.append(f"its content says sequence number {record.seq}")
    if canonical_bytes(record) != body:
        found.append("its bytes are not the canonical form of its content")
    return found
