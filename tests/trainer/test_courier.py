"""The thread that speaks to Redis, with a real Redis: what it says, and what may not keep it from saying so."""

import logging
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest
from redis_fixture import RedisServer
from trainer_world import grant_user, until
from trimtab_contract import keys
from trimtab_contract.directives import ACK_FIELD, Ack, AckState, Action, CheckpointReference, Directive, decode, encode
from trimtab_contract.metrics import STREAM_FIELD
from trimtab_trainer.adapters.redis import Bus, Delivery
from trimtab_trainer.config import TelemetryConfig
from trimtab_trainer.courier import Courier
from trimtab_trainer.directives import Inbox
from trimtab_trainer.outage import REMIND_SECONDS
from trimtab_trainer.telemetry import Outbox, QueuedRecord, Reporter, Vitals

STATE_SECONDS = 3.0


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A courier of one run, and the eyes of an administrator on what it delivers."""

    def __init__(self, server: RedisServer, bus: type[Bus] = Bus) -> None:
        self.server = server
        self.run = keys.RunId("team", "tiny", uuid.uuid4().hex[:12])
        self.clock, self.vitals, self.outbox, self.inbox = Clock(), Vitals(), Outbox(100_000), Inbox(1)
        self.reporter = Reporter(self.outbox, self.vitals, lambda: 7.0)
        self.bus = bus(f"redis://{server.host}:{server.port}/0", keys.redis_user(self.run), "pass", self.run)
        config = TelemetryConfig(state_seconds=STATE_SECONDS, poll_seconds=0.01)
        self.courier = Courier(
            self.bus, self.outbox, self.reporter, self.inbox, config, on_absent=lambda: None, clock=self.clock
        )

    def say(self, state: AckState) -> None:
        """Change the state, and wait until it is heard."""
        before = self.heard().count(state)
        self.reporter.state(ack(state))
        self.courier.wake()
        until(f"the word {state}", lambda: self.heard().count(state) > before or None)

    def save(self, step: int) -> None:
        """Tell of a saved checkpoint, and wait until it is heard."""
        before = self.heard().count(AckState.SAVED)
        self.reporter.event(ack(AckState.SAVED, CheckpointReference(key=f"k{step}", sha256="0" * 64, step=step)))
        self.courier.wake()
        until(f"save {step}", lambda: self.heard().count(AckState.SAVED) > before or None)

    def heard(self) -> list[AckState]:
        """The states of all acks, in the order of their arrival."""
        return [decode(Ack, fields[ACK_FIELD]).state for _, fields in self._entries(keys.ack_stream(self.run))]

    def records(self) -> list[bytes]:
        """All records, in the order of their arrival."""
        return [fields[STREAM_FIELD] for _, fields in self._entries(keys.metrics_stream(self.run, 1))]

    def forget(self) -> None:
        """Lose every key of the run, as a Redis that was restarted."""
        with self.server.client() as client:
            client.delete(keys.ack_stream(self.run), keys.directive_key(self.run), keys.metrics_stream(self.run, 1))

    def _entries(self, stream: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        with self.server.client() as client:
            return cast("list[Any]", client.xrange(stream))


def ack(state: AckState, checkpoint: CheckpointReference | None = None) -> Ack:
    return Ack(
        state=state,
        epoch=1,
        seq=2,
        world=1,
        attempt=1,
        ranks=2,
        hosts=(),
        step=0,
        progress=0,
        time=0.0,
        checkpoint=checkpoint,
    )


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[Line]:
    """A courier at work."""
    line = Line(redis_server)
    grant_user(redis_server, line.run)
    line.courier.start()
    yield line
    line.courier.close(10.0)


def test_a_world_that_saves_more_often_than_its_state_is_due_repeats_its_state_all_the_same(line: Line) -> None:
    line.say(AckState.RUNNING)
    line.forget()
    for step in range(1, 9):
        line.clock.now += STATE_SECONDS / 2
        line.save(step)
    # The clock may go on before the round of a save looks at it, so not every second half period ends with one.
    assert line.heard().count(AckState.RUNNING) >= 2


def test_a_state_that_was_just_said_is_not_repeated_before_it_is_due(line: Line) -> None:
    line.say(AckState.WAITING)
    line.say(AckState.RUNNING)
    line.save(1)
    line.clock.now += STATE_SECONDS / 2
    line.save(2)
    line.save(3)
    assert line.heard() == [AckState.WAITING, AckState.RUNNING, *[AckState.SAVED] * 3]


class CrowdedBus(Bus):
    """As if training were faster than Redis: with every batch delivered there is another record, and time goes by."""

    line: Line | None = None
    step = 0

    def publish(self, records: Any, keep: int) -> list[Delivery]:
        """As the bus, and the queue is never empty."""
        deliveries = super().publish(records, keep)
        if (line := self.line) is not None:
            line.clock.now += STATE_SECONDS / 10
            self.step += 1
            line.outbox.put(QueuedRecord(1, self.step, b"record"))
        return deliveries


def test_a_queue_that_is_never_empty_keeps_nobody_from_the_directive_and_the_state(redis_server: RedisServer) -> None:
    line = Line(redis_server, CrowdedBus)
    grant_user(redis_server, line.run)
    bus = cast("CrowdedBus", line.bus)
    line.courier.start()
    try:
        line.say(AckState.RUNNING)
        bus.line, bus.step = line, 1
        line.outbox.put(QueuedRecord(1, 1, b"record"))
        line.courier.wake()
        until("the state, again and again", lambda: line.heard().count(AckState.RUNNING) > 3 or None)
        with redis_server.client() as client:
            hold = Directive(epoch=1, seq=3, world=1, attempt=1, action=Action.HOLD)
            client.set(keys.directive_key(line.run), encode(hold))
        until("the directive", lambda: line.inbox.letter.count or None)
        assert len(line.outbox) > 0
    finally:
        bus.line = None
        line.courier.close(10.0)
    assert len(line.records()) == bus.step


def test_a_redis_that_forgot_this_run_and_its_user_is_named_in_the_log_and_told_the_state_when_it_answers(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    def said(text: str, level: int) -> int:
        return sum(text in record.getMessage() and record.levelno == level for record in caplog.records)

    caplog.set_level(logging.INFO, "trimtab_trainer.courier")
    line.say(AckState.RUNNING)
    with line.server.client() as client:
        client.execute_command("ACL", "DELUSER", keys.redis_user(line.run))  # pyright: ignore[reportUnknownMemberType]
    line.forget()
    line.reporter.event(ack(AckState.SAVED))
    until("the reason", lambda: said("0 records were dropped: AuthenticationError", logging.WARNING) or None)
    line.clock.now += REMIND_SECONDS
    until("a reminder", lambda: said("cannot publish to Redis for 30 s; 1 records and acks", logging.WARNING) or None)
    assert "pass" not in [word for record in caplog.records for word in record.getMessage().split()]
    grant_user(line.server, line.run)
    until("the state", lambda: AckState.RUNNING in line.heard() or None)
    assert line.heard()[:2] == [AckState.SAVED, AckState.RUNNING]
    until("the end of the outage", lambda: said("Redis answers again", logging.INFO) or None)
