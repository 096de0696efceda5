"""The checkpoints of a run as its journal knows them. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from trimtab_contract.journal import JournalRecord
from trimtab_contract.keys import MANIFEST_NAME
from trimtab_operator.incidents import Candidate
from trimtab_operator.resources import TrainingJobSpec
from trimtab_operator.retention import Fate, retention_settings, review
from trimtab_operator.run_state import Checkpoint, CheckpointState, JournalAction, RunPhase, RunState
from trimtab_policies.policy import GuardPolicySpec

from trimtab_cli.job_view import age, section
from trimtab_cli.trail import Trail

CHECKPOINT_COLUMNS = ("Step", "Attempt", "State", "Size", "Age", "Evidence", "In the last rollback", "Kept")

_OVER = frozenset({RunPhase.COMPLETED, RunPhase.STOPPED})
_STATES = frozenset(
    {JournalAction.COMMITTED, JournalAction.VERIFIED, JournalAction.CERTIFIED, JournalAction.QUARANTINED}
)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint. `size` is in bytes, `known_since` the time of its first record, `evidence` why it has its state.

    `run` is the run that it belongs to where that is another one, which this one continues; `attempt` is 0 then.
    `chosen` says whether the newest rollback went to it, `why` the reason; None and empty when it was not considered.
    `kept` is why it is not deleted, `kept_until` what would end that; `may_be_deleted` is None where that is not known.
    """

    step: int
    attempt: int
    run: str
    state: str
    key: str
    sha256: str
    size: int
    known_since: str
    surviving: bool
    evidence: str
    chosen: bool | None
    why: str
    kept: str
    kept_until: str
    may_be_deleted: bool | None


def checkpoint_rows(
    trail: Trail, size_of: Callable[[str], int], fates: Iterable[Fate] = ()
) -> tuple[CheckpointRow, ...]:
    """Every checkpoint, oldest step first; `size_of` gives the bytes under a checkpoint's prefix, `fates` are what is
    known of why each is kept."""
    by_key = {fate.checkpoint.reference.key: fate for fate in fates}
    since = _known_since(trail.counted)
    read_back = _read_back(trail.counted)
    considered = _considered(trail.counted)
    rows: list[CheckpointRow] = []
    source = trail.state.source
    for one in trail.state.checkpoints:
        candidate = considered.get((one.reference.step, one.attempt))
        fate = by_key.get(one.reference.key)
        rows.append(
            CheckpointRow(
                step=one.reference.step,
                attempt=one.attempt,
                run=source.run if one.of_source and source is not None else "",
                state=one.state.value,
                key=one.reference.key,
                sha256=one.reference.sha256,
                size=size_of(one.reference.key.removesuffix(MANIFEST_NAME)),
                known_since=since[one.reference.key],
                surviving=trail.state.surviving(one),
                evidence=_evidence(one, read_back.get(one.reference.key, "")),
                chosen=candidate.chosen if candidate else None,
                why=candidate.why if candidate else "",
                kept=fate.kept if fate else "",
                kept_until=fate.until if fate else "",
                may_be_deleted=one.state is CheckpointState.DELETING or (not fate.kept if fate else None),
            )
        )
    return tuple(rows)


def table_row(row: CheckpointRow, now: float) -> tuple[str, ...]:
    """One row under `CHECKPOINT_COLUMNS`."""
    verdict = "" if row.chosen is None else f"chosen: {row.why}" if row.chosen else row.why
    abandoned = "" if row.surviving else " (abandoned)"
    return (
        str(row.step),
        f"of run {row.run}" if row.run else f"{row.attempt}{abandoned}",
        row.state,
        f"{row.size / 1e6:.1f} MB",
        age(row.known_since, now),
        row.evidence,
        verdict,
        _kept(row),
    )


def retention_fates(
    state: RunState,
    spec: TrainingJobSpec,
    policies: Iterable[GuardPolicySpec],
    step: int,
    continued: Mapping[str, str],
) -> tuple[Fate, ...]:
    """Why each checkpoint is kept at a step, as the operator decides it; nothing where it deletes nothing any more.

    `continued` says which run goes on from a checkpoint, by the manifest's key.
    """
    if state.ended:
        over = "the run is over, and nothing more is deleted", "somebody deletes it by hand"
        return tuple(Fate(one, *over) for one in state.checkpoints if one.state is not CheckpointState.DELETING)
    storage = spec.checkpoint
    settings = retention_settings(
        keep_last=storage.keep_last,
        keep_every=storage.keep_every,
        certify_steps=storage.certify_steps,
        max_rollbacks=spec.budget.max_rollbacks,
        policies=policies,
    )
    return review(state, settings, step, continued)


def continued_by(state: RunState, run: str, jobs: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Which of `jobs`, bodies of TrainingJobs, goes on from which checkpoint and is not over, by the manifest's key."""
    found: dict[str, str] = {}
    for job in jobs:
        asked, status = section(section(job, "spec"), "resumeFrom"), section(job, "status")
        if asked.get("run") != run or status.get("phase") in _OVER or not status.get("attempt"):
            continue
        metadata = job["metadata"]
        for one in state.checkpoints:
            named = asked.get("manifestSHA256") in {None, one.reference.sha256}
            if one.reference.step == asked.get("step") and named and state.surviving(one):
                found[one.reference.key] = f"{metadata['namespace']}/{metadata['name']}/{metadata['uid']}"
    return found


def _kept(row: CheckpointRow) -> str:
    if row.state == CheckpointState.DELETING:
        return "no: its data are going"
    if row.kept:
        return f"{row.kept}, until {row.kept_until}"
    return "no: it may be deleted" if row.may_be_deleted else ""


def _read_back(records: tuple[JournalRecord, ...]) -> dict[str, str]:
    """Who has read each checkpoint back, by its manifest's key."""
    verified = (record.after or {} for record in records if record.action == JournalAction.VERIFIED)
    return {str(after["checkpoint"]["key"]): str(after.get("why", "")) for after in verified}


def _evidence(checkpoint: Checkpoint, read_back: str) -> str:
    """Why a checkpoint has its state; what is certified was read back before, and that is a part of it."""
    return "; ".join(filter(None, (checkpoint.why, read_back if checkpoint.state is CheckpointState.CERTIFIED else "")))


def _known_since(records: tuple[JournalRecord, ...]) -> dict[str, str]:
    since: dict[str, str] = {}
    for record in records:
        after = record.after or {}
        known = after.get("source") if record.action == JournalAction.START_WORLD else after
        if known and (record.action in _STATES or known is not after):
            since.setdefault(str(known["checkpoint"]["key"]), record.time)
    return since


def _considered(records: tuple[JournalRecord, ...]) -> dict[tuple[int, int], Candidate]:
    """What the newest selection thought of each checkpoint, by step and attempt."""
    for record in reversed(records):
        if record.action == JournalAction.TARGET_SELECTED and record.reason:
            candidates = msgspec.convert(record.reason.get("candidates") or (), type=tuple[Candidate, ...])
            return {(one.step, one.attempt): one for one in candidates}
    return {}
