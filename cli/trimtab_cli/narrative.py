"""A trail in plain words: one line a record, and an incident as a story. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.incidents import Incident, Latch
from trimtab_operator.run_state import JournalAction, RunPhase
from trimtab_operator.story import sentence

from trimtab_cli.json_values import renamed


def record_line(record: JournalRecord) -> str:
    """One record: number, time of day, what it is and what it says."""
    phase = f" {record.phase.lower()}" if record.phase else ""
    return f"{record.seq:>5}  {record.time[:19].replace('T', ' ')}  {record.action + phase:<22}  {words(record)}"


def record_row(record: JournalRecord, record_hash: str) -> dict[str, Any]:
    """One record as `-o json` prints it: everything it holds, the hash of its bytes, and what it says in words."""
    return {**renamed(msgspec.to_builtins(record)), "hash": record_hash, "says": words(record)}


def words(record: JournalRecord) -> str:
    """What one record says."""
    if record.phase is Phase.RESULT:
        return f"done: {record.outcome}" if not record.error else f"failed: {record.error}"
    after = record.after or {}
    action = JournalAction(record.action) if record.action in set(JournalAction) else None
    if action is JournalAction.TAKEOVER:
        return f"operator {record.actor.pod} leads this run as epoch {record.actor.epoch}"
    told = sentence(record) if action is not None else record.action
    if action is JournalAction.INCIDENT_CLOSED and record.outcome:
        return f"{record.outcome}: {told}"
    directive: Mapping[str, Any] | None = after.get("directive")
    if directive is None:
        return told
    order = _directive_words(directive)
    return order if told == record.action else f"{told} ({order})"


def _directive_words(directive: Mapping[str, Any]) -> str:
    parts = [f"{directive['action']}, attempt {directive['attempt']} of world {directive['world']}"]
    if directive.get("restore"):
        parts.append(f"from step {directive['restore']['step']}")
    if directive.get("skip"):
        parts.append("skipping " + ", ".join(f"{first}-{last}" for first, last in directive["skip"]))
    if directive.get("lr"):
        lr = directive["lr"]
        parts.append(f"learning rate times {lr['scale']:g} up to step {lr['until_step']}")
    if directive.get("diagnose"):
        first, last = directive["diagnose"]["windows"]
        parts.append(f"measuring windows {first} to {last}")
    return "; ".join(parts)


def incident_story(records: Iterable[JournalRecord], incident: Incident) -> tuple[str, ...]:
    """An incident from the rule that fired to its outcome, one sentence each."""
    lines: list[str] = []
    own = [one for one in records if one.incident == incident.name and one.phase is not Phase.RESULT]
    if not any("latch" in (record.after or {}) for record in own):
        lines += _beginning(incident.latch)
    for record in own:
        # Each firing as it was then: a relapse is latched anew, and the incident itself knows the last one only.
        if "latch" in (record.after or {}):
            latch = msgspec.convert((record.after or {})["latch"], type=Latch)
            lines += _beginning(latch, relapsed=record.action == JournalAction.RELAPSED)
        lines += _told(record)
    return (*lines, *_what_was_done(incident))


def _beginning(latch: Latch, *, relapsed: bool = False) -> Iterator[str]:
    if latch.asked is not None:
        yield f"No rule fired: {latch.message} at step {latch.fired_step}."
    if latch.policy is not None and latch.flagged is not None:
        first, last = latch.flagged
        policy = f"{latch.policy.name} generation {latch.policy.generation}"
        rule = f"The run relapsed: rule {latch.rule}" if relapsed else f"Rule {latch.rule}"
        yield f"{rule} of policy {policy} fired at step {latch.fired_step}: {latch.message}."
        yield f"The first bad step was {latch.first_bad_step}; windows {first} to {last} were flagged."


def _what_was_done(incident: Incident) -> Iterator[str]:
    """Of a closed incident that had a plan: a plan may have been rejected, or overtaken by the end of the run."""
    if not incident.outcome or not incident.plans:
        return
    plan, skipped = incident.carried_out, incident.skipped
    restored = f"step {plan.target.step} was restored" if plan else "nothing was restored"
    without = f"windows {skipped.first} to {skipped.last} were skipped" if skipped else "no window was skipped"
    yield f"What was done: {restored}, and {without}; the incident ended as {incident.outcome}."


def _told(record: JournalRecord) -> list[str]:
    reason = record.reason or {}
    if (record.after or {}).get("phase") == RunPhase.AWAITING_APPROVAL:
        return [_sentence(words(record)), *_passed_over(reason.get("candidates") or ())]
    match record.action:
        case JournalAction.HELD:
            return [f"{_sentence(words(record))}"]
        case JournalAction.DIAGNOSED:
            return [f"Finding: {words(record)}."]
        case JournalAction.TARGET_SELECTED:
            return [f"Checkpoint chosen: {reason.get('message')}.", *_passed_over(reason.get("candidates") or ())]
        case (
            JournalAction.RESTORED
            | JournalAction.RESTORE_FAILED
            | JournalAction.PROBATION_EXTENDED
            | JournalAction.NEEDS_HUMAN
        ):
            return [_sentence(words(record))]
        case JournalAction.RUN_REQUESTED:
            # It begins with a person's name, which is written as it is.
            return [f"{words(record)}."]
        case JournalAction.EXTENT_FOUND:
            skip: Mapping[str, Any] = (record.after or {}).get("skip") or {}
            measured = (
                f"; {skip.get('bad')} of them were measured as bad"
                if skip.get("bad") or "control_mean" in reason
                else ""
            )
            skipped = f"windows {skip.get('first')} to {skip.get('last')} are skipped{measured}"
            return [_sentence(f"{skipped}: {reason.get('message')}")]
        case JournalAction.DIRECTIVE if (record.after or {}).get("phase") == RunPhase.PROBATION and reason.get(
            "message"
        ):
            return [_sentence(str(reason["message"]))]
        case JournalAction.INCIDENT_CLOSED:
            return [f"The incident closed as {record.outcome}: {reason.get('message')}."]
        case _:
            return []


def _passed_over(candidates: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why the newer ones were not chosen; the older ones need no reason."""
    newer: list[str] = []
    for candidate in candidates:
        if candidate["chosen"]:
            break
        newer.append(f"step {candidate['step']} ({candidate['state']}): {candidate['why']}")
    return [f"Passed over: {'; '.join(newer)}."] if newer else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
