"""What a pod's log ends with, and what is read of the message that the pod left."""

from pathlib import Path

import pytest
from trimtab_contract.directives import CheckpointReference, Reason, TerminationMessage, encode
from trimtab_trainer.termination import ends_as_told, last_words, leave_message, left_message


def message(reason: Reason, *, saved: int | None = None, detail: str = "") -> TerminationMessage:
    checkpoint = CheckpointReference(key="k", sha256="0", step=saved) if saved is not None else None
    return TerminationMessage(reason=reason, world=2, attempt=3, step=120, detail=detail, saved=checkpoint)


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (
            message(Reason.TERMINATED, saved=120),
            "drained: all ranks saved at step 120, and the next world goes on from there",
        ),
        (
            message(Reason.TERMINATED, saved=100, detail="the replicas differ"),
            (
                "drained at step 120: the replicas differ; the next world goes on from a checkpoint"
                "; the newest checkpoint is of step 100"
            ),
        ),
        (
            message(Reason.STOPPED, saved=100),
            "ended at step 120: the run is stopped for good, as it was told; the newest checkpoint is of step 100",
        ),
        (message(Reason.SUPERSEDED), "ended at step 120: a later world goes on in place of this one"),
        (
            message(Reason.PEER_LOST, saved=100, detail="agreeing with the ranks failed"),
            "failed at step 120 (PeerLost): agreeing with the ranks failed; the newest checkpoint is of step 100",
        ),
    ],
)
def test_the_last_words_say_why_it_ended_and_from_where_to_go_on(left: TerminationMessage, words: str) -> None:
    assert last_words(left) == words


@pytest.mark.parametrize("reason", sorted(Reason))
def test_the_last_words_of_every_fault_say_that_it_failed(reason: Reason) -> None:
    assert last_words(message(reason)).startswith("failed") is not ends_as_told(reason)


def test_a_message_is_found_among_what_others_wrote_there(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    left = message(Reason.TERMINATED, saved=120)
    path.write_text(f"{{not json}}\n{encode(left).decode()}\nKilled\n")
    assert left_message(path) == left


def test_who_left_no_message_is_not_heard(tmp_path: Path) -> None:
    assert left_message(tmp_path / "none") is None
    (tmp_path / "noise").write_bytes(b"\xff\xfe\nKilled\n")
    assert left_message(tmp_path / "noise") is None


def test_a_process_that_lost_another_one_does_not_hide_why_that_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    crashed, lost = message(Reason.CRASHED, detail="out of memory"), message(Reason.PEER_LOST)
    leave_message(crashed, path)
    leave_message(lost, path)
    assert left_message(path) == crashed
    leave_message(lost, path := tmp_path / "other")
    leave_message(crashed, path)
    assert left_message(path) == crashed
