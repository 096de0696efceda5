"""Which checkpoints a Job reads back, when one is started, and what is written of what it found."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from run_states import ack, attempts, checkpoint, incident, latch, reference, run_state
from trimtab_contract.directives import VERIFIED_BY_SELF, AckState
from trimtab_contract.journal import Actor, JournalRecord, Phase, plain
from trimtab_contract.read_back import ReadBack, ReadBackAnswer
from trimtab_operator.commands import Append, Draft
from trimtab_operator.journal_fold import fold
from trimtab_operator.observation import Acks, Limits, Observation, PodPlace, Pods, PodsState, ReadBackOutcome
from trimtab_operator.read_back import PAUSE_SECONDS, RETRY_SECONDS, TRIES, next_intent
from trimtab_operator.remediation import advance
from trimtab_operator.run_state import Checkpoint, JournalAction, ReadBackOrder, RunPhase, RunState, World
from trimtab_operator.story import event_of, sentence

NOW = 1_767_225_600.0
LIMITS = Limits(
    max_rollbacks=3,
    max_restarts=3,
    window_seconds=60,
    certify_steps=40,
    generation=1,
    suspend=False,
    read_back_jobs=True,
)
ALONE, PAIR = ("a",), ("a", "b")
COMMITTED = tuple(checkpoint(step, state="Committed") for step in (10, 20, 30, 40, 50, 60))
ORDER = ReadBackOrder(
    id="run/ReadBack/31",
    number=31,
    checkpoints=(reference(60), reference(50)),
    seconds=1800,
    avoid=("n1",),
    since=NOW,
)


def sized(*checkpoints: Checkpoint, size: int | None = 1024) -> tuple[Checkpoint, ...]:
    return tuple(
        msgspec.structs.replace(one, size=size, reference=msgspec.structs.replace(one.reference, sha256=sha(one)))
        for one in checkpoints
    )


def sha(one: Checkpoint) -> str:
    return f"{one.reference.step:064x}"


def seen(*hosts: str, **changes: Any) -> Observation:
    acks = Acks().fold("1-0", ack(AckState.RUNNING, hosts=hosts, ranks=len(hosts))) if hosts else Acks()
    places = (PodPlace(0, "demo-1-0-x", "n1", ""),)
    base: dict[str, Any] = {
        "job": "demo",
        "now": "2026-01-01T00:00:00+00:00",
        "limits": LIMITS,
        "acks": acks,
        "pods": Pods(world=1, state=PodsState.LIVE, places=places),
    }
    return Observation(**{**base, **changes})


def ordered(state: RunState, observation: Observation) -> list[int]:
    """The steps of the checkpoints that a Job is to read back, in its order; none where none is started."""
    command = next_intent(state, observation)
    if command is None:
        return []
    assert isinstance(command, Append)
    return [one.step for one in (command.draft.after or {})["checkpoints"]]


def standing(**changes: Any) -> RunState:
    return run_state(checkpoints=COMMITTED, **changes)


def test_the_newest_four_that_nobody_has_read_back_are_read_newest_first() -> None:
    assert ordered(standing(), seen(*ALONE)) == [60, 50, 40, 30]
    mixed = (*COMMITTED[:3], checkpoint(40), checkpoint(50, state="Certified"), checkpoint(60, state="Committed"))
    assert ordered(run_state(checkpoints=mixed), seen(*ALONE)) == [60, 30]


SUSPENDED = replace(LIMITS, suspend=True)
GONE = World(number=1, live=False)


@pytest.mark.parametrize(
    ("state", "observation", "starts"),
    [
        pytest.param(standing(), seen(*ALONE), True, id="a world of one node trains"),
        pytest.param(standing(), seen("a", "a"), True, id="with two ranks on it"),
        pytest.param(standing(), seen(*PAIR), False, id="the hosts of a world read each other's"),
        pytest.param(standing(), seen(), False, id="nothing is known of its hosts yet"),
        pytest.param(standing(phase=RunPhase.COMPLETED), seen(*PAIR), True, id="completed"),
        pytest.param(standing(phase=RunPhase.STOPPED), seen(*PAIR), True, id="stopped"),
        pytest.param(standing(phase=RunPhase.FAILED), seen(*PAIR), True, id="failed"),
        pytest.param(standing(world=GONE), seen(*PAIR, limits=SUSPENDED), True, id="suspended"),
        pytest.param(standing(), seen(*PAIR, limits=SUSPENDED), False, id="suspended, and its pods still save"),
        pytest.param(standing(world=GONE), seen(*PAIR), False, id="the next world verifies as it restores"),
        pytest.param(standing(), seen(*ALONE, firing=latch()), False, id="a rule fires"),
        pytest.param(standing(incident=incident()), seen(*ALONE), False, id="an incident is open"),
        pytest.param(standing(phase=RunPhase.PROBATION), seen(*ALONE), False, id="probation"),
        pytest.param(standing(), seen(*ALONE, blocked=("no Secret",)), False, id="its Secret is missing"),
        pytest.param(standing(read_back=ORDER), seen(*ALONE), False, id="one reads already"),
        pytest.param(standing(), seen(*ALONE, may_read_back=False), False, id="so many of other runs read already"),
        pytest.param(
            standing(), seen(*ALONE, limits=replace(LIMITS, read_back_jobs=False)), False, id="where no Job may"
        ),
        pytest.param(run_state(checkpoints=(checkpoint(60),)), seen(*ALONE), False, id="all is verified"),
        pytest.param(
            run_state(checkpoints=(checkpoint(60, attempt=9, state="Committed"),)),
            seen(*ALONE),
            False,
            id="of an abandoned attempt",
        ),
    ],
)
def test_a_job_is_started_where_no_other_host_can_read_and_nothing_is_amiss(
    state: RunState, observation: Observation, starts: bool
) -> None:
    assert bool(ordered(state, observation)) is starts


def test_what_a_world_of_several_nodes_has_passed_over_is_read_by_a_job() -> None:
    """It reads each checkpoint once: what the store did not hand out then would stay unread, and never be certified."""
    passed = run_state(
        checkpoints=(checkpoint(30, state="Committed"), checkpoint(40), checkpoint(50, state="Certified"))
    )
    assert ordered(passed, seen(*PAIR)) == [30]
    command = next_intent(passed, seen(*PAIR))
    assert isinstance(command, Append)
    assert "its world has gone on to newer ones" in str(command.draft.reason)
    still = run_state(
        checkpoints=(checkpoint(30, state="Committed"), checkpoint(40), checkpoint(50, state="Committed"))
    )
    assert ordered(still, seen(*PAIR)) == []
    abandoned = replace(passed, attempts=attempts((None, 0), (1, 35)))
    assert ordered(abandoned, seen(*PAIR)) == []


def test_a_world_that_trains_gets_a_job_now_and_then_and_one_that_has_finished_none_too_late() -> None:
    state = standing(read_back_over=NOW - PAUSE_SECONDS + 1)
    assert ordered(state, seen(*ALONE)) == []
    assert ordered(replace(state, read_back_over=NOW - PAUSE_SECONDS), seen(*ALONE)) != []
    finished = Acks().fold("1-0", ack(AckState.FINISHED, hosts=ALONE, ranks=1, step=60))
    assert ordered(state, seen(acks=finished)) != []
    assert ordered(replace(state, phase=RunPhase.COMPLETED), seen()) != []


def test_what_could_not_be_read_is_tried_again_later_and_not_for_ever() -> None:
    keys = [one.reference.key for one in COMMITTED[2:]]
    state = standing(phase=RunPhase.COMPLETED, unread=tuple(keys), read_back_over=NOW - RETRY_SECONDS + 1)
    assert ordered(state, seen()) == []
    assert ordered(replace(state, unread=tuple(keys[:2])), seen()) == [60, 50]
    state = replace(state, read_back_over=NOW - RETRY_SECONDS)
    assert ordered(state, seen()) == [60, 50, 40, 30]
    assert ordered(replace(state, unread=tuple(keys) * TRIES), seen()) == []


def test_a_clock_that_was_a_day_ahead_keeps_no_checkpoint_from_being_read_back_for_a_day() -> None:
    state = standing(read_back_over=NOW + 24 * 3600)
    assert ordered(state, seen(*ALONE)) == [60, 50, 40, 30]
    keys = [one.reference.key for one in COMMITTED]
    assert ordered(replace(state, unread=tuple(keys)), seen(*ALONE)) == [60, 50, 40, 30]


def test_the_intent_gives_the_job_time_by_the_size_and_names_the_node_to_avoid() -> None:
    small, large, unknown = (
        next_intent(run_state(checkpoints=sized(COMMITTED[0], size=size)), seen(*ALONE)) for size in (0, 1024**4, None)
    )
    for command in (small, large, unknown):
        assert isinstance(command, Append)
        assert (command.draft.after or {})["avoid"] == ["n1"]
    seconds = [(one.draft.after or {})["seconds"] for one in (small, large, unknown) if isinstance(one, Append)]
    assert seconds == [1200, 1200 + 65536, 1200 + 6 * 3600]


def record_of(draft: Draft, seq: int, time: str = "2026-01-01T00:00:00+00:00") -> JournalRecord:
    actor = Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1)
    fields = {name: getattr(draft, name) for name in ("action", "phase", "id", "incident", "outcome", "error")}
    values = {"after": plain(draft.after), "reason": plain(draft.reason)}
    return JournalRecord(seq=seq, prev="0" * 64, time=time, actor=actor, **values, **fields)


def told(state: RunState, observation: Observation) -> tuple[RunState, list[Draft]]:
    """The state when nothing more is to be done, and what was written on the way."""
    written: list[Draft] = []
    while isinstance(command := advance(state, observation), Append):
        written.append(command.draft)
        state = fold(state, record_of(command.draft, state.seq + 1))
    return state, written


def found(**answers: ReadBack) -> ReadBackOutcome:
    """What the Job says of the checkpoints of steps 50 and 60."""
    said = tuple(
        ReadBackAnswer(sha256=f"{int(step[1:]):064x}", found=one, detail="" if one is ReadBack.VERIFIED else "why not")
        for step, one in answers.items()
    )
    return ReadBackOutcome(number=31, job="demo-verify-u-r31", answers=said, node="n2")


def reading(*states: str, **changes: Any) -> RunState:
    """A job of one node whose checkpoints of steps 50 and 60 are read back."""
    checkpoints = sized(*(checkpoint(step, state=state) for step, state in zip((50, 60), states, strict=True)))
    order = msgspec.structs.replace(ORDER, checkpoints=tuple(one.reference for one in reversed(checkpoints)))
    return run_state(checkpoints=checkpoints, read_back=order, **changes)


def states(state: RunState) -> list[tuple[int, str, str]]:
    return [(one.reference.step, one.state.value, one.why) for one in state.checkpoints]


def test_what_the_job_read_is_verified_by_it_and_what_is_damaged_is_quarantined() -> None:
    outcome = found(s60=ReadBack.DAMAGED, s50=ReadBack.VERIFIED)
    state, written = told(reading("Committed", "Committed"), seen(*ALONE, read_back=outcome))
    assert states(state) == [
        (50, "Verified", "read back and hashed whole by Job demo-verify-u-r31 on node n2"),
        (60, "Quarantined", "why not (Job demo-verify-u-r31 on node n2)"),
    ]
    assert [one.action for one in written] == ["Quarantined", "Verified", "ReadBack"]
    assert (written[-1].phase, written[-1].id, written[-1].outcome) == (Phase.RESULT, ORDER.id, "Read")
    assert state.read_back is None
    assert state.read_back_over == NOW


def test_the_job_says_nothing_of_what_it_was_not_asked_and_nothing_of_another_order() -> None:
    outcome = found(s60=ReadBack.VERIFIED, s50=ReadBack.VERIFIED, s70=ReadBack.DAMAGED)
    asked = reading("Committed", "Committed")
    stranger = sized(checkpoint(70, state="Committed"))
    asked = replace(asked, checkpoints=(*asked.checkpoints, *stranger))
    state, _ = told(asked, seen(*PAIR, read_back=outcome))
    assert [one[1] for one in states(state)] == ["Verified", "Verified", "Committed"]
    other = replace(outcome, number=30)
    state, written = told(asked, seen(*PAIR, read_back=other))
    assert (written, state.read_back) == ([], asked.read_back)


def test_an_answer_that_comes_late_changes_only_what_it_still_may() -> None:
    outcome = found(s60=ReadBack.VERIFIED, s50=ReadBack.DAMAGED)
    state, _ = told(reading("Certified", "Quarantined"), seen(*ALONE, read_back=outcome))
    assert [one[1] for one in states(state)] == ["Quarantined", "Quarantined"]
    state, _ = told(reading("Deleting", "Certified"), seen(*ALONE, read_back=outcome))
    assert [one[1] for one in states(state)] == ["Deleting", "Certified"]


def test_a_job_that_says_nothing_is_over_and_its_checkpoints_stay_as_they_are() -> None:
    outcome = ReadBackOutcome(number=31, job="demo-verify-u-r31", error="Job demo-verify-u-r31 has said nothing")
    state, written = told(reading("Committed", "Committed"), seen(*PAIR, read_back=outcome))
    assert [one[1] for one in states(state)] == ["Committed", "Committed"]
    assert state.unread == (reference(60).key, reference(50).key)
    assert [(one.action, one.outcome, one.error) for one in written] == [("ReadBack", "Unread", outcome.error)]


def test_whoever_takes_over_between_two_records_of_an_answer_writes_the_rest_and_nothing_twice() -> None:
    observation = seen(*ALONE, read_back=found(s60=ReadBack.VERIFIED, s50=ReadBack.DAMAGED))
    begun = reading("Committed", "Committed")
    whole, written = told(begun, observation)
    for length in range(len(written)):
        state = begun
        for draft in written[:length]:
            state = fold(state, record_of(draft, state.seq + 1))
        after, rest = told(state, observation)
        assert after == whole
        assert rest == written[length:]


def self_word(state: RunState, *hosts: str, **changes: Any) -> str | None:
    """What becomes of the newest checkpoint when its own world says that it has read it back."""
    newest = state.checkpoints[-1].reference
    acks = Acks().fold("1-0", ack(AckState.RUNNING, hosts=hosts, ranks=len(hosts)))
    acks = acks.fold("2-0", ack(AckState.VERIFIED, hosts=hosts, ranks=1, checkpoint=newest, by=VERIFIED_BY_SELF))
    command = advance(state, seen(acks=acks, **changes))
    verified = isinstance(command, Append) and command.draft.action is JournalAction.VERIFIED
    return (command.draft.after or {})["why"] if verified and isinstance(command, Append) else None


def test_the_word_of_a_node_about_itself_counts_where_no_job_will_read() -> None:
    state = standing(read_back=ORDER)
    own = "read back and hashed whole by self, the one node there is"
    assert self_word(state, *ALONE) is None
    assert self_word(replace(state, unread=(COMMITTED[-1].reference.key,)), *ALONE) == own
    assert self_word(state, *ALONE, limits=replace(LIMITS, read_back_jobs=False)) == own
    assert self_word(state, *ALONE, final_check_over=True) == own, "the end of a run waits no longer than it ever did"


def test_the_last_checkpoint_of_a_run_that_is_complete_is_certified_as_final_when_a_job_has_read_it() -> None:
    finished = Acks().fold("1-0", ack(AckState.FINISHED, hosts=PAIR, step=60))
    outcome = found(s60=ReadBack.VERIFIED, s50=ReadBack.VERIFIED)
    begun = reading("Certified", "Committed", phase=RunPhase.COMPLETED)
    observation = seen(acks=finished, read_back=outcome, judged_step=60, green_step=60, last_step=60)
    state, written = told(begun, observation)
    assert [one.action for one in written] == ["Verified", "ReadBack", "Certified"]
    assert states(state)[-1][2].startswith("final: ")
    _, written = told(begun, replace(observation, green_step=0))
    assert [one.action for one in written] == ["Verified", "ReadBack"], "no rule has ever found its metric healthy"


def test_intent_and_result_are_told_in_words_and_only_a_failure_is_an_event() -> None:
    command = next_intent(standing(), seen(*ALONE))
    assert isinstance(command, Append)
    intent = record_of(command.draft, 31)
    steps = "the checkpoints of steps 30, 40, 50 and 60 are read back by a Job"
    assert sentence(intent) == f"{steps}, for its world has one node"
    assert event_of(intent) is None
    outcome = ReadBackOutcome(number=31, job="demo-verify-u-r31", error="Job demo-verify-u-r31 has said nothing")
    _, (draft,) = told(reading("Committed", "Committed"), seen(*PAIR, read_back=outcome))
    said = event_of(record_of(draft, 32))
    steps = "the checkpoints of steps 50 and 60 are not read back"
    assert said == ("Warning", "NotReadBack", f"{steps}: Job demo-verify-u-r31 has said nothing")
    _, drafts = told(reading("Committed", "Verified"), seen(*PAIR, read_back=found(s50=ReadBack.VERIFIED)))
    over = record_of(drafts[-1], 33)
    assert event_of(over) is not None, "of one of the two nothing is known"


def test_a_store_that_did_not_answer_is_named() -> None:
    away = ReadBackAnswer(sha256=f"{60:064x}", found=ReadBack.UNKNOWN, detail="GetObject training/x: no answer")
    outcome = replace(found(s50=ReadBack.VERIFIED), answers=(*found(s50=ReadBack.VERIFIED).answers, away))
    _, written = told(reading("Committed", "Committed"), seen(*PAIR, read_back=outcome))
    assert (written[-1].outcome, written[-1].error) == ("Unread", away.detail)
    assert (written[-1].reason or {})["message"] == f"the checkpoint of step 60 is not read back: {away.detail}"
