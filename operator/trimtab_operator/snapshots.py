"""Snapshots of the fold, so that taking over a run with a long journal reads its end only.

A snapshot is an object beside the journal that holds the state after record N; a `Snapshot` record behind N names it by
its SHA-256. It is a shortcut and never a source: it is used only where a JournalAnchor vouches for a record behind it,
where the same code wrote it, and where every check below holds. Else the journal is folded from its first record.
"""

import ast
import importlib
import inspect
import sys
from functools import cache

import msgspec
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.errors import UNREADABLE
from trimtab_contract.journal import Evidence, JournalRecord
from trimtab_contract.keys import RunId, audit_evidence

from trimtab_operator.commands import Draft
from trimtab_operator.run_state import JournalAction, RunState

SNAPSHOT_EVERY = 1000
"""Records between two snapshots."""

_FOLD = "trimtab_operator.journal_fold"


class UnusableSnapshot(Exception):
    """Why the journal is folded from its first record instead."""


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    schema: str
    state: RunState


@cache
def fold_schema() -> str:
    """A name for how journals are folded: the hash of the code that does it, so that no change can be forgotten."""
    sources = fold_sources()
    return sha256_hex("\0".join(f"{name}\n{sources[name]}" for name in sorted(sources)).encode())


def fold_sources() -> dict[str, str]:
    """The source of every module of ours that the fold is made of, by its name."""
    found: dict[str, str] = {}
    waiting = [_FOLD]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = inspect.getsource(importlib.import_module(name))
            waiting += _imported(found[name])
    return found


def _imported(source: str) -> list[str]:
    """Our modules that a module imports from, and those among what it imports that are modules themselves."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trimtab_"):
            members = (f"{node.module}.{name.name}" for name in node.names)
            found += [node.module, *(member for member in members if member in sys.modules)]
    return found


def snapshot_due(state: RunState) -> bool:
    """Whether the next record should be a Snapshot: the first one in each thousand."""
    return (state.seq + 1) // SNAPSHOT_EVERY > state.snapshot // SNAPSHOT_EVERY


def encode_snapshot(run: RunId, state: RunState) -> bytes:
    """The snapshot of a state, always the same bytes; raises UnusableSnapshot where it would not read back the same."""
    body = msgspec.json.encode(_Snapshot(run=str(run), schema=fold_schema(), state=state), order="deterministic")
    try:
        same = msgspec.json.decode(body, type=_Snapshot).state == state
    except UNREADABLE:
        same = False
    if not same:
        raise UnusableSnapshot("it does not read back as the state it was made of")
    return body


def snapshot_draft(run: RunId, state: RunState, body: bytes) -> Draft:
    """The record that names the snapshot of a state."""
    digest = sha256_hex(body)
    return Draft(
        action=JournalAction.SNAPSHOT,
        id=f"run/{JournalAction.SNAPSHOT}/{state.seq + 1}",
        reason={"message": f"the state after record {state.seq} is kept, so that reading may begin here"},
        evidence=(Evidence(key=audit_evidence(run, digest), sha256=digest),),
        after={"state_seq": state.seq, "schema": fold_schema()},
    )


def named_snapshot(record: JournalRecord) -> Evidence:
    """The object that a Snapshot record names; raises UnusableSnapshot where this version cannot read it."""
    schema = (record.after or {}).get("schema")
    if schema != fold_schema():
        raise UnusableSnapshot("another version of the operator wrote it")
    if len(record.evidence) != 1:
        raise UnusableSnapshot("its record names no object")
    return record.evidence[0]


def read_snapshot(run: RunId, record: JournalRecord, body: bytes) -> RunState:
    """The state before a Snapshot record; raises UnusableSnapshot unless it is the one that the record continues."""
    if sha256_hex(body) != named_snapshot(record).sha256:
        raise UnusableSnapshot("its bytes are not those whose hash the record holds")
    try:
        snapshot = msgspec.json.decode(body, type=_Snapshot)
    except UNREADABLE as error:
        raise UnusableSnapshot(f"it cannot be decoded: {error}") from error
    state = snapshot.state
    if snapshot.run != str(run) or snapshot.schema != fold_schema():
        raise UnusableSnapshot("it is that of another run or version")
    if (state.seq + 1, state.head) != (record.seq, record.prev) or record.actor.epoch < state.epoch:
        raise UnusableSnapshot("it is not the state that its record continues")
    return state
