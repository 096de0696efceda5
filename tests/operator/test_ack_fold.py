"""The fold of the acknowledgement stream: late words of the past change nothing, claims are never lost."""

from typing import Any

import msgspec
import pytest
from run_states import ack, attempts, reference, run_state
from trimtab_contract.directives import Ack, AckState, Action, Directive
from trimtab_operator.observation import KEPT_CLAIMS, Acks
from trimtab_operator.run_state import World

RESTORING = run_state(
    attempts=(attempts((None, 0))[0], msgspec.structs.replace(attempts((None, 0), (1, 80))[1], order=(2, 30))),
    world=World(number=1),
    directive=Directive(epoch=3, seq=40, world=1, attempt=2, action=Action.HOLD, restore=reference(80)),
)
"""Attempt 2 was begun at (2, 30) and its directive repeated at (3, 40)."""


def folded(*acks: Ack) -> Acks:
    state = Acks()
    for number, one in enumerate(acks, 1):
        state = state.fold(f"{number}-0", one)
    return state


def test_the_newest_state_is_kept_and_the_cursor_follows() -> None:
    state = folded(ack(AckState.WAITING), ack(AckState.RUNNING))
    assert state.latest is not None
    assert state.latest.state is AckState.RUNNING
    assert state.cursor == "2-0"


def test_a_late_word_of_an_older_world_or_attempt_is_not_the_newest_state() -> None:
    new = ack(AckState.RUNNING, world=2, attempt=3)
    for old in (
        ack(AckState.FINISHED, world=1, attempt=1),
        ack(AckState.FAILED, world=1, attempt=2),
        ack(AckState.RESTORED, world=2, attempt=2),
        ack(AckState.TERMINATED, world=1, attempt=2),
    ):
        state = folded(new, old)
        assert state.latest == new
        assert (state.finished, state.failed, state.restored, state.terminated) == (None, None, None, None)


def test_a_late_claim_of_an_older_world_still_counts() -> None:
    saved = ack(AckState.SAVED, checkpoint=reference(80))
    state = folded(ack(AckState.RUNNING, world=2, attempt=2), saved, saved)
    assert state.saved == (reference(80),)


def test_claims_repeated_with_any_ack_are_found_once_each() -> None:
    recent = (reference(70), reference(80))
    state = folded(ack(AckState.RUNNING, recent=recent), ack(AckState.HOLDING, recent=recent))
    assert state.saved == recent


def test_events_about_checkpoints_do_not_hide_the_state() -> None:
    holding = ack(AckState.HOLDING)
    state = folded(
        holding,
        ack(AckState.VERIFIED, checkpoint=reference(80), by="b"),
        ack(AckState.VERIFY_FAILED, checkpoint=reference(70), detail="object rank-0 differs"),
        ack(AckState.SAVED, checkpoint=reference(80)),
        ack(AckState.REFUSED, reason="RestoreRequired"),
    )
    assert state.latest == holding
    assert state.verified == ((reference(80), "b"),)
    assert state.verify_failed == ((reference(70), "object rank-0 differs"),)
    assert state.refused is not None


def test_what_is_said_again_and_again_takes_no_more_room() -> None:
    said = [ack(AckState.VERIFIED, checkpoint=reference(80), by=host) for host in ("b", "a", "b")] * 50
    assert folded(*said).verified == ((reference(80), "b"),)


def test_however_much_is_claimed_only_the_newest_is_remembered() -> None:
    state, last = Acks(), KEPT_CLAIMS + 50
    for step in range(last + 1):
        for kind in (AckState.SAVED, AckState.VERIFIED, AckState.VERIFY_FAILED):
            state = state.fold(f"{step}-0", ack(kind, checkpoint=reference(step)))
    assert (len(state.saved), len(state.verified), len(state.verify_failed)) == (KEPT_CLAIMS,) * 3
    assert (state.saved[-1], state.verified[-1][0]) == (reference(last), reference(last))


def test_the_words_that_decide_are_kept_beside_the_newest_state() -> None:
    state = folded(
        ack(AckState.RESTORED, attempt=2),
        ack(AckState.DIAGNOSED, attempt=2),
        ack(AckState.RUNNING, attempt=2),
        ack(AckState.FINISHED, attempt=2),
    )
    assert state.restored is not None
    assert state.diagnosed is not None
    assert state.finished is not None
    assert state.latest == state.finished


def test_a_measured_world_that_names_its_checkpoint_was_restored() -> None:
    """Redis may lose the word before; the repeated one must be enough."""
    measured = ack(AckState.DIAGNOSED, attempt=2, checkpoint=reference(80))
    assert folded(measured).restored == measured
    restored = ack(AckState.RESTORED, attempt=2, checkpoint=reference(80))
    assert folded(restored, measured).restored == restored
    assert folded(ack(AckState.DIAGNOSED, attempt=2)).restored is None


@pytest.mark.parametrize("beyond", [{"world": 2}, {"attempt": 3}, {"world": 10**15, "attempt": 10**15}])
@pytest.mark.parametrize("state", [AckState.RUNNING, AckState.FINISHED, AckState.SAVED])
def test_words_of_worlds_that_were_never_started_deafen_nobody(state: AckState, beyond: dict[str, Any]) -> None:
    lie = ack(state, **{"world": 1, "attempt": 2, "checkpoint": reference(90), **beyond})
    true = ack(AckState.RUNNING, world=1, attempt=2)
    heard = Acks().hear("1-0", lie, RESTORING)
    assert heard == Acks(cursor="1-0")
    assert heard.hear("2-0", true, RESTORING).latest == true


@pytest.mark.parametrize("state", [AckState.RESTORED, AckState.DIAGNOSED])
@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint": reference(70)},
        {"checkpoint": msgspec.structs.replace(reference(80), sha256="1" * 64)},
        {"epoch": 2, "seq": 29},
        {"epoch": 3, "seq": 41},
    ],
)
def test_a_restore_that_was_not_asked_for_is_not_believed_and_hides_no_true_one(
    state: AckState, change: dict[str, Any]
) -> None:
    true = ack(AckState.RESTORED, attempt=2, epoch=3, seq=40, checkpoint=reference(80))
    lie = msgspec.structs.replace(true, state=state, **change)
    assert Acks().hear("1-0", lie, RESTORING).restored is None
    for order in ((true, lie), (lie, true)):
        heard = Acks()
        for number, one in enumerate(order):
            heard = heard.hear(f"{number}-0", one, RESTORING)
        assert (heard.restored, heard.diagnosed) == (true, None)


def test_a_restore_acknowledged_before_its_directive_was_repeated_still_counts() -> None:
    early = ack(AckState.RESTORED, attempt=2, epoch=2, seq=30, checkpoint=reference(80))
    assert Acks().hear("1-0", early, RESTORING).restored == early


def test_a_restored_without_its_checkpoint_says_nothing() -> None:
    assert Acks().hear("1-0", ack(AckState.RESTORED, attempt=2, epoch=3, seq=40), RESTORING).restored is None


def test_only_the_newest_world_says_that_checkpoints_do_not_get_stored_and_only_until_one_is() -> None:
    why = "the checkpoint after step 130 was left out"
    up = run_state(world=World(number=2))
    assert folded(ack(AckState.RUNNING, world=2, checkpoints_behind=why)).behind(up) == why
    assert folded(ack(AckState.RUNNING, world=1, checkpoints_behind=why)).behind(up) == ""
    late = folded(ack(AckState.RUNNING, world=2, checkpoints_behind=why), ack(AckState.RUNNING, world=2))
    assert late.behind(up) == ""
    assert folded(ack(AckState.RUNNING, world=2, checkpoints_behind=why)).behind(run_state(world=None)) == ""
