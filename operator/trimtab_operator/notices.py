"""What people are told at their webhook: which records are notices, and the text of one. Pure.

A notice follows from a journal record and nothing else, so an operator that takes over knows what is owed; what was
sent is a record of its own. Between the two lies a request to somebody else's server: a notice is sent at least once,
and carries an id by which a receiver can tell a repetition.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_contract.keys import RunId
from trimtab_policies.rules import Action

from trimtab_operator.run_state import JournalAction, Notice, NoticeKind, RunPhase, RunState

KEPT_NOTICES = 64
"""So many of the newest notices a run may owe; where nobody listens, older ones are forgotten."""
NEWS_SECONDS = 24 * 3600
"""What is older is no news: it is in the journal, and not sent any more."""
MAX_TEXT = 1000

DELIVERED = "Delivered"
UNDELIVERED = "Undelivered"
"""Outcomes of a notice: the webhook took it, or it was given up."""

_KINDS: Mapping[JournalAction, NoticeKind] = {
    JournalAction.NEEDS_HUMAN: NoticeKind.NEEDS_HUMAN,
    JournalAction.FAILED: NoticeKind.FAILED,
    JournalAction.AUTOMATION_HELD: NoticeKind.AUTOMATION_HELD,
}
_TITLES: Mapping[NoticeKind, str] = {
    NoticeKind.RULE_FIRED: "rule fired",
    NoticeKind.PAUSED: "paused, waiting for a person",
    NoticeKind.APPROVAL_NEEDED: "a plan waits for approval",
    NoticeKind.NEEDS_HUMAN: "needs a person",
    NoticeKind.FAILED: "failed",
    NoticeKind.AUTOMATION_HELD: "automation is held for all runs",
    NoticeKind.JOURNAL_BROKEN: "journal broken, nothing is decided",
}


_ASKED_IN: Mapping[NoticeKind, RunPhase] = {
    NoticeKind.PAUSED: RunPhase.HOLDING,
    NoticeKind.APPROVAL_NEEDED: RunPhase.AWAITING_APPROVAL,
    NoticeKind.NEEDS_HUMAN: RunPhase.NEEDS_HUMAN,
}
"""Notices that ask something, and the phase in which the answer is waited for."""


def notice_of(record: JournalRecord) -> Notice | None:
    """The notice that a record is, if people are to hear of it."""
    kind = _kind(record)
    if kind is None:
        return None
    after, reason = record.after or {}, record.reason or {}
    hold: Mapping[str, Any] = after.get("hold") or {}
    rule = after.get("rule") if record.action == JournalAction.RULE_FIRED else reason.get("rule")
    return Notice(
        kind=kind,
        id=str(hold["id"]) if kind is NoticeKind.AUTOMATION_HELD else record.id,
        time=record.time,
        message=str(reason.get("message") or record.outcome or ""),
        seq=record.seq,
        incident=record.incident,
        rule=str(rule) if rule else None,
        shared=kind is NoticeKind.AUTOMATION_HELD,
    )


def _kind(record: JournalRecord) -> NoticeKind | None:
    after = record.after or {}
    if record.phase is Phase.RESULT:
        return None
    if record.action == JournalAction.RULE_FIRED:
        return NoticeKind.RULE_FIRED if after.get("action") == Action.NOTIFY else None
    if record.action == JournalAction.HELD:
        return NoticeKind.PAUSED if after.get("paused") else None
    if after.get("phase") == RunPhase.AWAITING_APPROVAL:
        return NoticeKind.APPROVAL_NEEDED
    return _KINDS.get(JournalAction(record.action))


def still_news(state: RunState, now: str) -> tuple[Notice, ...]:
    """What the run owes people and still matters: young enough and, if it asks, not answered; `now` is RFC 3339."""
    moment = datetime.fromisoformat(now)
    return tuple(
        notice
        for notice in state.owed
        if (moment - datetime.fromisoformat(notice.time)).total_seconds() <= NEWS_SECONDS
        and not _is_answered(state, notice)
    )


def _is_answered(state: RunState, notice: Notice) -> bool:
    asked_in = _ASKED_IN.get(notice.kind)
    if asked_in is None:
        return False
    phases = state.incident.phases if state.incident is not None else ()
    return state.phase is not asked_in or bool(phases and notice.time < phases[-1].time)


def notice_key(run: RunId | None, notice: Notice) -> str:
    """What tells a notice from every other one, the same for whichever operator sends it; no run: of all runs."""
    scope = "operator" if run is None else str(run)
    return sha256_hex(f"{scope}\0{notice.id}".encode())


def message_body(run: RunId | None, notice: Notice) -> dict[str, Any]:
    """The JSON that is posted: `text` as Slack shows it, and the same in fields for everybody else."""
    title, place = _TITLES[notice.kind], "trimtab" if run is None else f"{run.namespace}/{run.name}"
    return {
        "text": f"*{escape(place)}*: {title}: {escape(notice.message)}",
        "id": notice_key(run, notice),
        "kind": notice.kind.value,
        "namespace": run.namespace if run else None,
        "job": run.name if run else None,
        "uid": run.uid if run else None,
        "incident": notice.incident,
        "rule": notice.rule,
        "message": _bounded(notice.message),
        "time": notice.time,
        "seq": notice.seq,
    }


def escape(text: str) -> str:
    """Text of a trainer as Slack shows it word for word: no links, no mentions, no mark-up, no control characters."""
    escaped = _bounded(text)
    for character, shown in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        escaped = escaped.replace(character, shown)
    # Slack knows no escape for these: a space of no width after one keeps it from opening anything.
    for character in "*_~`":
        escaped = escaped.replace(character, f"{character}\N{ZERO WIDTH SPACE}")
    return escaped


def _bounded(text: str) -> str:
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return printable if len(printable) <= MAX_TEXT else f"{printable[: MAX_TEXT - 1]}…"
