"""Whether a world gets on is told by anything it says, not by its state alone."""

import msgspec
from trimtab_contract.directives import Ack, AckState, CheckpointReference
from trimtab_operator.observation import Acks
from trimtab_operator.progress import ProgressClock, TrainingClock

DEADLINE = 16.0
RUNNING = Ack(
    state=AckState.RUNNING, epoch=1, seq=4, world=1, attempt=1, ranks=2, hosts=(), step=0, progress=1, time=1.0
)
SAVED = msgspec.structs.replace(
    RUNNING, state=AckState.SAVED, checkpoint=CheckpointReference(key="x/manifest.json", sha256="0" * 64, step=10)
)


def verdict_after(silence_of_state: Ack) -> str:
    """What is said of a world whose only acks for three deadlines are like the given one, a second apart."""
    clock, acks, verdict = ProgressClock(60, DEADLINE), Acks().fold("1-0", RUNNING), ""
    for second in range(int(3 * DEADLINE)):
        more = msgspec.structs.replace(silence_of_state, progress=silence_of_state.progress + second)
        acks = acks.fold(f"{second + 2}-0", more)
        verdict = clock.observe(float(second), 1, acks.latest, bus_answers=True) or verdict
    return verdict


def test_a_world_that_only_reports_checkpoints_gets_on() -> None:
    assert verdict_after(SAVED) == ""


def test_words_of_an_earlier_world_are_no_progress() -> None:
    assert "no progress" in verdict_after(msgspec.structs.replace(SAVED, world=0, attempt=0))


def test_a_checkpoint_that_is_reported_changes_no_state() -> None:
    acks = Acks().fold("1-0", RUNNING).fold("2-0", msgspec.structs.replace(SAVED, step=10, progress=9))
    assert acks.latest == msgspec.structs.replace(RUNNING, progress=9)


def test_only_time_in_which_the_run_trains_within_earshot_counts() -> None:
    clock = TrainingClock()
    seen = [
        clock.observe(second, training=training) for second, training in ((0, True), (5, True), (9, False), (60, False))
    ]
    assert seen == [0, 5, 5, 5]
    assert [clock.observe(second, training=True) for second in (100, 103)] == [5, 8]
