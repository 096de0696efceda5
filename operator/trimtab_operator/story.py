"""What people are told: each journal record that matters, as the reason and message of a Kubernetes Event. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from trimtab_contract.journal import JournalRecord, Phase
from trimtab_policies.policy import Mode

from trimtab_operator.adapters.ports import EventType
from trimtab_operator.notices import DELIVERED
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import JournalAction, RequestState, RunPhase
from trimtab_operator.worlds import EDITED, RUN_FAILED, SUSPENDED

After = Mapping[str, Any]

_EVENTS: dict[JournalAction, tuple[EventType, Reason]] = {
    JournalAction.POLICY_ACCEPTED: (EventType.NORMAL, Reason.POLICY_ACCEPTED),
    JournalAction.START_WORLD: (EventType.NORMAL, Reason.WORLD_STARTED),
    JournalAction.WORLD_LOST: (EventType.WARNING, Reason.WORLD_LOST),
    JournalAction.END_WORLD: (EventType.WARNING, Reason.WORLD_HUNG),
    JournalAction.QUARANTINED: (EventType.WARNING, Reason.CHECKPOINT_QUARANTINED),
    JournalAction.DIRECTIVE_REFUSED: (EventType.WARNING, Reason.DIRECTIVE_REFUSED),
    JournalAction.METRIC_MISSING: (EventType.WARNING, Reason.METRIC_MISSING),
    JournalAction.RULE_FIRED: (EventType.WARNING, Reason.RULE_OBSERVED),
    JournalAction.INCIDENT_OPENED: (EventType.WARNING, Reason.INCIDENT_OPENED),
    JournalAction.RELAPSED: (EventType.WARNING, Reason.RELAPSED),
    JournalAction.HELD: (EventType.NORMAL, Reason.HELD),
    JournalAction.DIAGNOSED: (EventType.NORMAL, Reason.DIAGNOSED),
    JournalAction.TARGET_SELECTED: (EventType.NORMAL, Reason.TARGET_SELECTED),
    JournalAction.RESTORED: (EventType.NORMAL, Reason.RESTORED),
    JournalAction.RESTORE_FAILED: (EventType.WARNING, Reason.RESTORE_FAILED),
    JournalAction.EXTENT_FOUND: (EventType.NORMAL, Reason.EXTENT_FOUND),
    JournalAction.SKIPPED: (EventType.NORMAL, Reason.BATCHES_SKIPPED),
    JournalAction.PROBATION_EXTENDED: (EventType.WARNING, Reason.PROBATION_EXTENDED),
    JournalAction.INCIDENT_CLOSED: (EventType.NORMAL, Reason.INCIDENT_CLOSED),
    JournalAction.NEEDS_HUMAN: (EventType.WARNING, Reason.NEEDS_HUMAN),
    JournalAction.COMPLETED: (EventType.NORMAL, Reason.COMPLETED),
    JournalAction.STOPPED: (EventType.WARNING, Reason.STOPPED_BY_RULE),
    JournalAction.FAILED: (EventType.WARNING, Reason.FAILED),
    JournalAction.RUN_REQUESTED: (EventType.NORMAL, Reason.REQUEST_ACCEPTED),
    JournalAction.DELETING: (EventType.WARNING, Reason.CHECKPOINT_LEFT),
    JournalAction.READ_BACK: (EventType.WARNING, Reason.NOT_READ_BACK),
    JournalAction.AUTOMATION_HELD: (EventType.WARNING, Reason.BREAKER_TRIPPED),
    JournalAction.AUTOMATION_RELEASED: (EventType.NORMAL, Reason.BREAKER_RELEASED),
    JournalAction.NOTICE_SENT: (EventType.WARNING, Reason.NOTICE_FAILED),
}


_ENDS: dict[str, tuple[EventType, Reason]] = {
    SUSPENDED: (EventType.NORMAL, Reason.SUSPENDED),
    EDITED: (EventType.NORMAL, Reason.WORLD_REPLACED),
    RUN_FAILED: (EventType.NORMAL, Reason.FAILED),
}
"""Why a world is told to end, unless it hangs."""


def event_of(record: JournalRecord) -> tuple[EventType, str, str] | None:
    """(type, reason, message) for a record people should hear of; results of effects are not repeated."""
    described = _EVENTS.get(JournalAction(record.action))
    if described is None or not _is_news(record):
        return None
    kind, reason = described
    if record.action == JournalAction.END_WORLD:
        kind, reason = _ENDS.get(str((record.after or {}).get("why", "")), described)
    if record.action == JournalAction.RUN_REQUESTED and record.outcome == RequestState.REFUSED:
        kind, reason = EventType.WARNING, Reason.REQUEST_REFUSED
    if record.action == JournalAction.HELD and (record.after or {}).get("paused"):
        kind, reason = EventType.WARNING, Reason.PAUSED
    if (record.after or {}).get("phase") == RunPhase.AWAITING_APPROVAL:
        kind, reason = EventType.WARNING, Reason.APPROVAL_REQUIRED
    if record.action == JournalAction.INCIDENT_CLOSED and (record.after or {}).get("doubts"):
        kind = EventType.WARNING
    if record.action == JournalAction.STOPPED and record.on_behalf_of:
        kind, reason = EventType.NORMAL, Reason.STOPPED_BY_REQUEST
    return kind, reason, printable(sentence(record))


def _is_news(record: JournalRecord) -> bool:
    if record.action in {JournalAction.DELETING, JournalAction.READ_BACK}:
        return record.error is not None  # what nothing needs may go without a word, and so may what is as it should be
    told_already = record.action == JournalAction.NOTICE_SENT and record.outcome == DELIVERED
    return record.phase is not Phase.RESULT and not told_already


def sentence(record: JournalRecord) -> str:
    """One record in plain words."""
    after, reason = record.after or {}, record.reason or {}
    told = str(reason.get("message") or record.outcome or "")
    if record.phase is Phase.RESULT:
        return told or f"{record.action} is done"
    if record.action == JournalAction.RUN_REQUESTED:
        return _requested(record)
    tell = _SENTENCES.get(JournalAction(record.action))
    return tell(after, told) if tell is not None else told or record.action


def _took_over(after: After, _told: str) -> str:
    return f"an operator leads the run under epoch {after.get('epoch')}"


def _trains(after: After, _told: str) -> str:
    return f"world {after.get('world')} trains"


def _ends(after: After, told: str) -> str:
    return f"world {after.get('world')} is told to end: {told}"


def _lost(after: After, told: str) -> str:
    reason = str(after.get("reason"))
    why = told.removeprefix(reason).removeprefix(": ")
    return f"world {after.get('world')} has ended ({reason})" + (f": {why}" if why else "")


def _held(after: After, told: str) -> str:
    asked = f"; {told}" if after.get("paused") else ""
    if after.get("lost"):
        return f"the pods were lost before they held{asked}"
    agree = after.get("replicas_agree")
    replicas = "replicas disagree" if agree is False else "replicas agree" if agree else "replicas not compared"
    finiteness = _finiteness(after.get("nonfinite_state"))
    return f"every rank holds after step {after.get('step')}; {replicas}{finiteness}{asked}"


def _finiteness(nonfinite: list[str] | None) -> str:
    if nonfinite is None:
        return ""
    return f"; not finite: {'; '.join(nonfinite)}" if nonfinite else "; weights and optimizer state are finite"


def _diagnosed(after: After, _told: str) -> str:
    lacks = f"; missing: {'; '.join(after['missing'])}" if after.get("missing") else ""
    return f"{after.get('finding')}: {after.get('why')}{lacks}"


def _notice(after: After, told: str) -> str:
    return f"notice of {after.get('kind')}: {told}"


def _extent(after: After, told: str) -> str:
    skip: dict[str, Any] = after.get("skip") or {}
    if "plan" in after:
        return f"the damage reaches beyond what was approved: {told}"
    return f"skip windows {skip.get('first')} to {skip.get('last')}: {told}"


def _restored(after: After, told: str) -> str:
    restored = f"step {after['checkpoint']['step']} is restored as attempt {after['attempt']}"
    return f"{restored}: {told}" if told else restored


def _checkpoint(after: After, _told: str) -> str:
    return f"checkpoint of step {after['checkpoint']['step']}: {after.get('why')}"


def _accepted(after: After, _told: str) -> str:
    guard = after["guard"]
    names = ", ".join(
        f"{one['name']} generation {one['generation']} ({_effective(one, guard['mode'])})" for one in guard["policies"]
    )
    since = f"from step {guard['from_step']} of attempt {guard['from_attempt']} on"
    return f"{names or 'no policy'} judges {since}"


def _effective(policy: After, guard_mode: str) -> str:
    """Observe, of the policy or of the job's guard, wins."""
    return guard_mode if guard_mode == Mode.OBSERVE else policy.get("mode") or guard_mode


def _fired(after: After, told: str) -> str:
    return f"{after['rule']}: {told}" + (f" (would have: {after['would_have']})" if after.get("would_have") else "")


def _requested(record: JournalRecord) -> str:
    request, reason = (record.after or {})["request"], record.reason or {}
    asks = f"{request['by']} asks for {request['action']} ({reason.get('asked')})"
    return f"{asks}, which is {str(record.outcome).lower()}: {reason.get('message')}"


_SENTENCES: dict[JournalAction, Callable[[After, str], str]] = {
    JournalAction.TAKEOVER: _took_over,
    JournalAction.POLICY_ACCEPTED: _accepted,
    JournalAction.WORLD_RUNNING: _trains,
    JournalAction.END_WORLD: _ends,
    JournalAction.WORLD_LOST: _lost,
    JournalAction.WORLD_RESTORED: _restored,
    JournalAction.COMMITTED: _checkpoint,
    JournalAction.VERIFIED: _checkpoint,
    JournalAction.CERTIFIED: _checkpoint,
    JournalAction.QUARANTINED: _checkpoint,
    JournalAction.DELETING: _checkpoint,
    JournalAction.RULE_FIRED: _fired,
    JournalAction.HELD: _held,
    JournalAction.DIAGNOSED: _diagnosed,
    JournalAction.RESTORED: _restored,
    JournalAction.EXTENT_FOUND: _extent,
    JournalAction.NOTICE_SENT: _notice,
}


def printable(text: str, limit: int = 900) -> str:
    """Text of a trainer made safe for terminals and Events: no control characters, bounded length."""
    safe = "".join(character if character.isprintable() else "�" for character in text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
