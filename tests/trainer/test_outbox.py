"""The queue between a training loop and a Redis that may be away."""

from trimtab_contract.directives import RECENT_SAVED, Ack, AckState, CheckpointReference, decode
from trimtab_trainer.telemetry import (
    OUTBOX_ACKS,
    STREAM_BYTES,
    Outbox,
    QueuedAck,
    QueuedRecord,
    Reporter,
    Vitals,
    stream_length,
)


def record(step: int) -> QueuedRecord:
    return QueuedRecord(1, step, b"record")


def state(said: AckState) -> Ack:
    return Ack(state=said, epoch=1, seq=2, world=1, attempt=1, ranks=2, hosts=(), step=0, progress=0, time=0.0)


def repeated(reporter: Reporter) -> AckState:
    wire = reporter.repetition()
    assert wire is not None
    return decode(Ack, wire).state


def test_the_oldest_record_is_dropped_and_counted_and_acks_are_kept() -> None:
    outbox = Outbox(2)
    ack = QueuedAck(b"ack")
    for item in (ack, record(1), record(2), record(3)):
        outbox.put(item)
    assert outbox.peek(10) == (ack,)
    outbox.remove((ack,))
    assert [item.step for item in outbox.peek(10) if isinstance(item, QueuedRecord)] == [2, 3]
    assert outbox.dropped == 1


def test_order_is_kept_between_records_and_acks() -> None:
    outbox = Outbox(10)
    items = (record(1), record(2), QueuedAck(b"holding"), record(3))
    for item in items:
        outbox.put(item)
    seen: list[object] = []
    while batch := outbox.peek(10):
        seen += batch
        outbox.remove(batch)
    assert seen == list(items)


def test_what_was_dropped_while_it_was_being_sent_is_not_removed_twice() -> None:
    outbox = Outbox(2)
    outbox.put(record(1))
    outbox.put(record(2))
    sent = outbox.peek(10)
    outbox.put(record(3))
    outbox.remove(sent)
    assert outbox.peek(10) == (record(3),)


def test_a_stream_keeps_64_mebibytes_but_never_less_than_the_longest_rule_needs() -> None:
    assert stream_length(1024, 2000) == STREAM_BYTES // 1024
    assert stream_length(4 * 1024 * 1024, 2000) == 2000


def test_a_repeated_state_carries_the_latest_step_and_the_latest_checkpoints() -> None:
    outbox, vitals = Outbox(10), Vitals()
    reporter = Reporter(outbox, vitals, lambda: 7.0)
    assert reporter.repetition() is None
    reporter.state(state(AckState.RUNNING))
    outbox.remove(outbox.peek(1))
    for step in range(RECENT_SAVED + 2):
        reporter.saved(CheckpointReference(key=f"k{step}", sha256="0" * 64, step=step))
    vitals.step, vitals.progress = 41, 99
    wire = reporter.repetition()
    assert wire is not None
    ack = decode(Ack, wire)
    assert (ack.state, ack.step, ack.progress, ack.time) == (AckState.RUNNING, 41, 99, 7.0)
    assert [saved.step for saved in ack.recent] == list(range(2, RECENT_SAVED + 2))


def test_a_change_of_state_is_not_repeated_before_it_is_said_nor_the_state_that_it_ended() -> None:
    outbox = Outbox(10)
    reporter = Reporter(outbox, Vitals(), lambda: 7.0)
    reporter.state(state(AckState.RUNNING))
    assert reporter.repetition() is None
    outbox.remove(outbox.peek(10))
    assert repeated(reporter) is AckState.RUNNING

    # The record of a withheld step explains the Holding behind it: a repetition must not arrive before both.
    outbox.put(record(12))
    reporter.event(state(AckState.SAVED))
    assert repeated(reporter) is AckState.RUNNING
    reporter.state(state(AckState.HOLDING))
    assert reporter.repetition() is None
    while batch := outbox.peek(1):
        assert reporter.repetition() is None
        outbox.remove(batch)
    assert repeated(reporter) is AckState.HOLDING


def test_a_change_of_state_that_events_crowded_out_of_the_queue_is_said_by_repetition() -> None:
    outbox = Outbox(10)
    reporter = Reporter(outbox, Vitals(), lambda: 7.0)
    reporter.state(state(AckState.RUNNING))
    for _ in range(OUTBOX_ACKS):
        assert reporter.repetition() is None
        reporter.event(state(AckState.SAVED))
    assert len(outbox) == OUTBOX_ACKS
    assert repeated(reporter) is AckState.RUNNING
