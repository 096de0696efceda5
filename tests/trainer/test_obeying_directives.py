"""Which directive counts and what it means: the pure part, in milliseconds."""

from typing import Any

import pytest
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action, CheckpointReference, Directive, Reason, encode
from trimtab_trainer.directives import Inbox, Instruction, Reception, Refusal, Standing, instruct

TARGET = CheckpointReference(key="checkpoint/manifest.json", sha256="0" * 64, step=10)


def directive(action: Action = Action.RUN, **rest: Any) -> Directive:
    return Directive(**{"epoch": 1, "seq": 1, "world": 1, "attempt": 1, "action": action, **rest})


def standing(**rest: Any) -> Standing:
    settled = {"attempt": 1, "ready": True, "tried": frozenset(), "step": 20, "steps": 100, "self_held": False}
    return Standing(**{**settled, "ledger": SkipLedger(), **rest})


FRESH = {"ready": False, "step": 0}


def test_only_a_higher_order_replaces_the_directive_in_force() -> None:
    inbox = Inbox(1)
    assert inbox.offer(encode(directive(seq=5))) is Reception.ACCEPTED
    assert inbox.offer(encode(directive(seq=5))) is Reception.KNOWN
    assert inbox.offer(encode(directive(Action.HOLD, seq=5))) is Reception.STALE
    assert inbox.offer(encode(directive(seq=9, epoch=0))) is Reception.STALE
    assert inbox.letter.count == 1
    assert inbox.offer(encode(directive(seq=1, epoch=2))) is Reception.ACCEPTED
    assert inbox.letter.count == 2


def test_a_predecessors_word_is_ignored_and_a_successors_ends_the_world() -> None:
    inbox = Inbox(2)
    assert inbox.offer(None) is Reception.ABSENT
    assert inbox.offer(encode(directive(world=1, epoch=9))) is Reception.FOREIGN
    assert not inbox.superseded
    assert inbox.offer(encode(directive(world=3))) is Reception.SUPERSEDED
    assert inbox.superseded
    assert inbox.letter.count == 0


def test_bytes_that_are_no_directive_change_nothing() -> None:
    inbox = Inbox(1)
    assert inbox.offer(b"{") is Reception.UNREADABLE
    assert inbox.letter.count == 0


def test_a_fresh_world_without_restore_begins_from_the_seed_only_when_it_may_run() -> None:
    assert instruct(standing(**FRESH), directive()) == Instruction(Action.RUN, initialise=True)
    assert instruct(standing(**FRESH), directive(Action.HOLD)) == Instruction(Action.HOLD)


def test_run_is_refused_until_the_restore_of_its_attempt_was_acknowledged() -> None:
    for situation, attempt in ((standing(**FRESH), 1), (standing(), 2)):
        answer = instruct(situation, directive(attempt=attempt, restore=TARGET))
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.RESTORE_REQUIRED


def test_a_new_attempt_without_restore_is_refused() -> None:
    answer = instruct(standing(), directive(Action.HOLD, attempt=2))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.RESTORE_REQUIRED


def test_a_restore_is_executed_once_per_attempt() -> None:
    hold = directive(Action.HOLD, attempt=2, restore=TARGET)
    assert instruct(standing(), hold) == Instruction(Action.HOLD, restore=TARGET)
    assert instruct(standing(attempt=2), hold) == Instruction(Action.HOLD)
    failed = standing(attempt=2, ready=False, tried=frozenset({2}))
    assert instruct(failed, hold) == Instruction(Action.HOLD)
    again = directive(Action.HOLD, attempt=3, restore=TARGET)
    assert instruct(failed, again) == Instruction(Action.HOLD, restore=TARGET)


def test_an_attempt_that_is_over_cannot_be_resumed() -> None:
    answer = instruct(standing(attempt=3), directive(attempt=2, restore=TARGET))
    assert isinstance(answer, Refusal)
    assert "attempt 2 is over" in answer.detail


@pytest.mark.parametrize(("skip", "legal"), [((20, 22), True), ((19, 22), False), ((5, 5), False), ((90, 200), True)])
def test_only_windows_not_drawn_yet_can_be_skipped(skip: tuple[int, int], legal: bool) -> None:
    answer = instruct(standing(), directive(skip=(skip,)))
    assert isinstance(answer, Instruction) is legal
    if isinstance(answer, Refusal):
        assert answer.reason is Reason.RANGE_ALREADY_TRAINED


def test_a_self_held_world_is_released_only_by_the_step_it_holds_at() -> None:
    held = standing(self_held=True)
    assert instruct(held, directive()) == Instruction(Action.HOLD)
    assert instruct(held, directive(release=19)) == Instruction(Action.HOLD)
    assert instruct(held, directive(release=20)) == Instruction(Action.RUN)


def test_finish_ends_only_a_finished_run_and_stop_ends_any() -> None:
    assert isinstance(instruct(standing(), directive(Action.FINISH)), Refusal)
    assert instruct(standing(step=100), directive(Action.FINISH)) == Instruction(Action.FINISH)
    assert instruct(standing(**FRESH), directive(Action.STOP, attempt=7)) == Instruction(Action.STOP)
