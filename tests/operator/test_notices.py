"""Which records people are told of, and that no text of a trainer plays tricks with the channel it is shown in."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from run_fates import DAMAGED, records
from run_states import incident
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.journal import Actor, JournalRecord, Phase
from trimtab_contract.keys import RunId
from trimtab_operator.incidents import PhaseTime
from trimtab_operator.journal_fold import fold
from trimtab_operator.notices import KEPT_NOTICES, escape, message_body, notice_key, notice_of, still_news
from trimtab_operator.observation import NoticeOutcome
from trimtab_operator.run_state import JournalAction, NoticeKind, RunPhase, RunState

RUN = RunId("lab", "demo", "uid")
TIME = "2026-01-01T00:00:00+00:00"


def fact(action: JournalAction, seq: int = 1, **fields: Any) -> JournalRecord:
    actor = Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1)
    return JournalRecord(
        **{"seq": seq, "prev": "0", "id": f"x{seq}", "time": TIME, "actor": actor, "action": action.value, **fields}
    )


def fired(action: str, seq: int = 1, **fields: Any) -> JournalRecord:
    after = {"rule": "guard/clip", "attempt": 1, "step": seq, "action": action, "would_have": ""}
    return fact(JournalAction.RULE_FIRED, seq, after=after, reason={"message": "too high"}, **fields)


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (fired("Notify"), NoticeKind.RULE_FIRED),
        (fired("Record"), None),
        (fact(JournalAction.HELD, after={"paused": True}), NoticeKind.PAUSED),
        (fact(JournalAction.HELD, after={"paused": False}), None),
        (fact(JournalAction.NEEDS_HUMAN), NoticeKind.NEEDS_HUMAN),
        (fact(JournalAction.TARGET_SELECTED, after={"phase": "AwaitingApproval"}), NoticeKind.APPROVAL_NEEDED),
        (fact(JournalAction.TARGET_SELECTED, after={"phase": "Restoring"}), None),
        (fact(JournalAction.FAILED), NoticeKind.FAILED),
        (fact(JournalAction.AUTOMATION_HELD, after={"hold": {"id": "breaker-1"}}), NoticeKind.AUTOMATION_HELD),
        (fact(JournalAction.DIRECTIVE, phase=Phase.RESULT), None),
        (fact(JournalAction.COMPLETED, phase=Phase.INTENT), None),
    ],
)
def test_people_hear_of_what_asks_for_them(record: JournalRecord, kind: NoticeKind | None) -> None:
    notice = notice_of(record)
    assert (notice.kind if notice else None) is kind


def test_a_rule_that_notifies_names_itself() -> None:
    notice = notice_of(fired("Notify"))
    assert notice is not None
    assert (notice.rule, notice.message) == ("guard/clip", "too high")


def test_what_was_sent_is_journaled_and_owed_no_more_by_whoever_leads_next() -> None:
    def answer(run: ScriptedRun) -> None:
        run.notices = tuple(NoticeOutcome(id=one.id, delivered=True, message="ok") for one in run.state.owed)

    run = play(DAMAGED.__class__(steps=40, damaged=frozenset(range(14, 400))), on_tick=answer, at_least=60)
    (needs,) = records(run, "NeedsHuman")
    (sent,) = records(run, "NoticeSent")
    assert (sent.after or {})["notice"] == needs.id
    assert sent.outcome == "Delivered"
    assert not run.state.owed


def test_without_a_listener_only_the_newest_are_owed() -> None:
    state = RunState()
    for seq in range(1, KEPT_NOTICES + 4):
        state = fold(state, fired("Notify", seq))
    assert [notice.seq for notice in state.owed] == list(range(4, KEPT_NOTICES + 4))


def test_what_is_older_than_a_day_is_no_news() -> None:
    state = fold(RunState(), fired("Notify"))
    assert still_news(state, "2026-01-02T00:00:00+00:00") == state.owed
    assert still_news(state, "2026-01-02T00:00:01+00:00") == ()


def test_a_question_that_is_answered_is_no_news() -> None:
    waits = fact(JournalAction.TARGET_SELECTED, after={"phase": "AwaitingApproval"})
    notice = notice_of(waits)
    assert notice is not None
    asked = replace(RunState(), phase=RunPhase.AWAITING_APPROVAL, owed=(notice,))
    assert still_news(asked, notice.time) == (notice,)
    assert still_news(replace(asked, phase=RunPhase.RESTORING), notice.time) == ()
    later = PhaseTime(phase="AwaitingApproval", time="2026-01-01T00:00:01.000000+00:00")
    next_plan = replace(asked, incident=msgspec.structs.replace(incident(), phases=(later,)))
    assert still_news(next_plan, notice.time) == ()


def test_the_key_depends_on_run_and_notice_and_on_nothing_else() -> None:
    one, other = notice_of(fired("Notify", 1)), notice_of(fired("Notify", 2))
    assert one is not None
    assert other is not None
    keys = {notice_key(run, notice) for run in (RUN, RunId("lab", "demo", "uid2"), None) for notice in (one, other)}
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<!channel> hi", "&lt;!channel&gt; hi"),
        ("<https://evil.example|click>", "&lt;https://evil.example|click&gt;"),
        ("a & b", "a &amp; b"),
        ("*bold*", "*\u200bbold*\u200b"),
        ("`code`", "`\u200bcode`\u200b"),
        ("a\x1b[2J\nb", "a\ufffd[2J\ufffdb"),
    ],
)
def test_text_of_a_trainer_is_shown_and_obeyed_by_nobody(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_a_long_text_is_cut() -> None:
    notice = notice_of(fact(JournalAction.FAILED, reason={"message": "<" * 100_000}))
    assert notice is not None
    body = message_body(RUN, notice)
    assert len(body["message"]) == 1000
    assert len(body["text"]) < 5000
