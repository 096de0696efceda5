"""The bus against a real Redis: what is accepted, refused, confined and survived."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from redis_fixture import RedisServer
from trimtab_contract import keys
from trimtab_contract.directives import ACK_FIELD, Ack, AckState, Action, Directive, encode
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import STREAM_FIELD, MetricRecord, encode_record
from trimtab_operator.adapters.ports import ACK_PAGE, Publication
from trimtab_operator.adapters.redis import FURTHEST_STEP, RedisBus
from trimtab_operator.errors import BusUnavailable, Fenced, PermanentError


@pytest.fixture
async def bus(redis_server: RedisServer) -> AsyncIterator[RedisBus]:
    made = RedisBus(redis_server.url, timeout_seconds=2.0)
    yield made
    await made.close()


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def run() -> RunId:
    return RunId("team", "job", str(uuid.uuid4()))


def record(step: int, attempt: int = 1) -> MetricRecord:
    return MetricRecord(
        attempt=attempt,
        step=step,
        window=step - 1,
        samples_seen=step,
        tokens_seen=step,
        time=1.0,
        scalars={"loss": 2.0, "grad_norm": float("inf")},
    )


def ack(seq: int) -> Ack:
    return Ack(
        state=AckState.RUNNING,
        epoch=1,
        seq=seq,
        world=1,
        attempt=1,
        ranks=2,
        hosts=("a", "b"),
        step=seq,
        progress=seq,
        time=1.0,
    )


def directive(epoch: int, seq: int, action: Action = Action.RUN) -> Directive:
    return Directive(epoch=epoch, seq=seq, world=1, attempt=1, action=action)


def add(admin: Redis, run: RunId, entry_id: str, body: bytes, attempt: int = 1) -> None:
    admin.xadd(keys.metrics_stream(run, attempt), {STREAM_FIELD: body}, id=entry_id)


async def until_blocked(admin: Redis) -> None:
    while admin.info("clients")["blocked_clients"] == 0:
        await asyncio.sleep(0.01)


async def test_records_come_in_step_order_after_the_given_step(bus: RedisBus, admin: Redis, run: RunId) -> None:
    for step in range(1, 41):
        add(admin, run, f"{step}-0", encode_record(record(step)))
    batch = await bus.records(run, 1, after_step=7)
    assert [each.step for each in batch.records] == list(range(8, 41))
    assert batch.records[0].scalars["grad_norm"] == float("inf")
    assert batch.rejected == ()
    assert batch.cursor == "40-0"


async def test_a_limit_bounds_the_batch_and_the_next_one_continues(bus: RedisBus, admin: Redis, run: RunId) -> None:
    for step in range(1, 101):
        add(admin, run, f"{step}-0", encode_record(record(step)))
    first = await bus.records(run, 1, after_step=0, limit=60)
    second = await bus.records(run, 1, after_step=first.records[-1].step, limit=60)
    assert [each.step for each in (*first.records, *second.records)] == list(range(1, 101))


async def test_a_gap_is_handed_on_not_hidden(bus: RedisBus, admin: Redis, run: RunId) -> None:
    for step in (1, 2, 5):
        add(admin, run, f"{step}-0", encode_record(record(step)))
    assert [each.step for each in (await bus.records(run, 1, 0)).records] == [1, 2, 5]


async def test_entries_that_no_trainer_means_are_rejected_and_reported(bus: RedisBus, admin: Redis, run: RunId) -> None:
    add(admin, run, "1-0", encode_record(record(1)))
    add(admin, run, "1-7", encode_record(record(1)))
    add(admin, run, "2-0", b"noise")
    add(admin, run, "3-0", encode_record(record(4)))
    add(admin, run, "5-0", encode_record(record(5, attempt=2)))
    add(admin, run, "6-0", encode_record(record(6)))
    far = 6 + FURTHEST_STEP + 1
    add(admin, run, f"{far}-0", encode_record(record(far)))
    admin.xadd(keys.metrics_stream(run, 1), {b"other": b"field"}, id=f"{far + 1}-0")
    batch = await bus.records(run, 1, after_step=0)
    assert [each.step for each in batch.records] == [1, 6]
    reasons = {each.id: each.reason for each in batch.rejected}
    assert set(reasons) == {"1-7", "2-0", "3-0", "5-0", f"{far}-0", f"{far + 1}-0"}
    assert "far above" in reasons[f"{far}-0"]
    assert "attempt 2" in reasons["5-0"]


async def test_a_rejected_entry_does_not_wake_for_ever(bus: RedisBus, admin: Redis, run: RunId) -> None:
    stream = keys.metrics_stream(run, 1)
    add(admin, run, "1-0", encode_record(record(1)))
    add(admin, run, "1-5", b"noise")
    batch = await bus.records(run, 1, after_step=0)
    assert await bus.wait({stream: batch.cursor}, 20) == frozenset()
    nothing_new = await bus.records(run, 1, after_step=1)
    assert await bus.wait({stream: nothing_new.cursor}, 20) == frozenset()


async def test_acks_come_in_order_and_unreadable_ones_are_reported(bus: RedisBus, admin: Redis, run: RunId) -> None:
    stream = keys.ack_stream(run)
    first = admin.xadd(stream, {ACK_FIELD: encode(ack(1))}).decode()
    bad = admin.xadd(stream, {ACK_FIELD: b"{}"}).decode()
    third = admin.xadd(stream, {ACK_FIELD: encode(ack(3))}).decode()
    batch = await bus.acks(run)
    assert batch.acks == ((first, ack(1)), (third, ack(3)))
    assert [each.id for each in batch.rejected] == [bad]
    assert batch.cursor == third
    assert (await bus.acks(run, after_id=first)).acks == ((third, ack(3)),)
    assert (await bus.acks(run, after_id=third)).cursor == third


async def test_an_entry_that_nests_without_end_hides_nothing_behind_it(bus: RedisBus, admin: Redis, run: RunId) -> None:
    bad = admin.xadd(keys.ack_stream(run), {ACK_FIELD: b'{"a":' * 5000}).decode()
    good = admin.xadd(keys.ack_stream(run), {ACK_FIELD: encode(ack(2))}).decode()
    batch = await bus.acks(run)
    assert ([each.id for each in batch.rejected], batch.acks) == ([bad], ((good, ack(2)),))
    add(admin, run, "1-0", b"\x81\xa1a" * 5000)
    add(admin, run, "2-0", encode_record(record(2)))
    records = await bus.records(run, 1, after_step=0)
    assert ([each.id for each in records.rejected], records.records[0].step) == (["1-0"], 2)


async def test_a_flood_of_acks_is_read_in_small_pages_and_a_huge_one_is_dropped(
    bus: RedisBus, admin: Redis, run: RunId
) -> None:
    stream = keys.ack_stream(run)
    huge = admin.xadd(stream, {ACK_FIELD: encode(msgspec.structs.replace(ack(1), detail="x" * 65_536))}).decode()
    for seq in range(2, 100):
        admin.xadd(stream, {ACK_FIELD: encode(ack(seq))})
    first = await bus.acks(run)
    assert ([one.id for one in first.rejected], len(first.acks)) == ([huge], ACK_PAGE - 1)
    assert "at most 65536 are allowed" in first.rejected[0].reason
    assert (await bus.acks(run, first.cursor)).acks[0][1] == ack(ACK_PAGE + 1)


async def test_one_wait_wakes_for_the_stream_that_has_news(bus: RedisBus, admin: Redis, run: RunId) -> None:
    other = RunId("team", "other", str(uuid.uuid4()))
    cursors = {keys.metrics_stream(run, 1): "0-0", keys.ack_stream(run): "0-0", keys.metrics_stream(other, 1): "0-0"}
    waiting = asyncio.create_task(bus.wait(cursors, 60_000))
    await until_blocked(admin)
    await asyncio.to_thread(admin.xadd, keys.ack_stream(run), {ACK_FIELD: encode(ack(1))})
    assert await waiting == {keys.ack_stream(run)}


async def test_waiting_survives_a_restart_and_a_flush(bus: RedisBus, redis_server: RedisServer, run: RunId) -> None:
    stream = keys.metrics_stream(run, 1)
    await bus.ping()
    waiting = asyncio.create_task(bus.wait({stream: "3-0"}, 60_000))
    with redis_server.client() as admin:
        await until_blocked(admin)
    await asyncio.to_thread(redis_server.restart)
    with pytest.raises(BusUnavailable):
        await waiting
    waiting = asyncio.create_task(bus.wait({stream: "3-0"}, 60_000))
    with redis_server.client() as admin:
        await until_blocked(admin)
        add(admin, run, "3-0", encode_record(record(3)))
        admin.flushall()
        add(admin, run, "4-0", encode_record(record(4)))
    assert await waiting == {stream}
    assert [each.step for each in (await bus.records(run, 1, after_step=3)).records] == [4]


async def test_a_frozen_server_is_unavailable_and_serves_again_afterwards(
    bus: RedisBus, redis_server: RedisServer, run: RunId
) -> None:
    await bus.publish(run, directive(1, 1))
    redis_server.freeze()
    try:
        with pytest.raises(BusUnavailable):
            await bus.publish(run, directive(1, 2))
        with pytest.raises(BusUnavailable):
            await bus.wait({keys.ack_stream(run): "0-0"}, 10)
    finally:
        redis_server.thaw()
    # The lost reply: the write may have arrived, the same call again is safe either way.
    again = await bus.publish(run, directive(1, 2))
    assert again.outcome in {Publication.WRITTEN, Publication.SAME}
    assert await bus.directive(run) == directive(1, 2)


async def test_a_command_that_is_cancelled_at_any_moment_ends_cancelled(bus: RedisBus, run: RunId) -> None:
    for command in (bus.users, lambda: bus.acks(run), lambda: bus.refresh(run, [1]), lambda: bus.directive(run)):
        await command()
        moment, done = 0, False
        while not done:
            task = asyncio.ensure_future(command())
            for _ in range(moment):
                await asyncio.sleep(0)
            done = task.done()
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or done, f"a cancellation after {moment} steps of the event loop was lost"
            moment += 1
    assert await bus.directive(run) is None, "it serves on"


async def test_a_stale_leader_cannot_replace_a_newer_directive(bus: RedisBus, run: RunId) -> None:
    assert (await bus.publish(run, directive(2, 10))).outcome is Publication.WRITTEN
    for stale in (directive(1, 99), directive(2, 9)):
        refused = await bus.publish(run, stale)
        assert (refused.outcome, refused.stored) == (Publication.REFUSED, (2, 10))
    assert await bus.directive(run) == directive(2, 10)
    assert (await bus.publish(run, directive(3, 1))).outcome is Publication.WRITTEN


async def test_the_same_directive_again_changes_nothing(bus: RedisBus, run: RunId) -> None:
    await bus.publish(run, directive(1, 5))
    assert (await bus.publish(run, directive(1, 5))).outcome is Publication.SAME


async def test_two_directives_of_one_order_are_an_error(bus: RedisBus, run: RunId) -> None:
    await bus.publish(run, directive(1, 5))
    with pytest.raises(Fenced, match="two operators"):
        await bus.publish(run, directive(1, 5, Action.HOLD))
    assert await bus.directive(run) == directive(1, 5)


async def test_an_absent_or_unreadable_directive_is_none_and_is_replaced(
    bus: RedisBus, admin: Redis, run: RunId
) -> None:
    assert await bus.directive(run) is None
    admin.set(keys.directive_key(run), b"noise")
    assert await bus.directive(run) is None
    assert (await bus.publish(run, directive(1, 1))).outcome is Publication.WRITTEN


async def test_a_runs_user_reaches_its_own_keys_and_nothing_else(
    bus: RedisBus, redis_server: RedisServer, run: RunId
) -> None:
    other = RunId("team", "other", str(uuid.uuid4()))
    await bus.ensure_user(run, "own-password")
    await bus.ensure_user(other, "other-password")
    await bus.publish(run, directive(1, 1))
    with redis_server.client(keys.redis_user(run), "own-password") as user:
        add(user, run, "1-0", encode_record(record(1)))
        add(user, run, "1-0", encode_record(record(1, attempt=2)), attempt=2)
        user.xadd(keys.ack_stream(run), {ACK_FIELD: encode(ack(1))})
        assert len(user.xrange(keys.metrics_stream(run, 1))) == 1
        assert user.get(keys.directive_key(run)) == encode(directive(1, 1))
        assert user.ping()
        for refused in (
            lambda: user.set(keys.directive_key(run), b"{}"),
            lambda: user.xadd(keys.directive_key(run), {"a": "b"}),
            lambda: add(user, other, "1-0", b"x"),
            lambda: user.xrange(keys.metrics_stream(other, 1)),
            lambda: user.get(keys.directive_key(other)),
            lambda: user.delete(keys.metrics_stream(run, 1)),
            lambda: user.expire(keys.ack_stream(run), 1),
            lambda: user.xtrim(keys.ack_stream(run), 0),
            lambda: user.eval("return redis.call('SET', KEYS[1], 'x')", 1, keys.directive_key(run)),
            user.flushall,
            user.keys,
            lambda: user.config_get("*"),
            user.acl_list,
            lambda: user.publish("channel", "x"),
        ):
            with pytest.raises(NoPermissionError):
                refused()


async def test_setting_a_user_again_changes_its_password_and_keeps_it_confined(
    bus: RedisBus, redis_server: RedisServer, admin: Redis, run: RunId
) -> None:
    await bus.ensure_user(run, "first")
    admin.acl_setuser(keys.redis_user(run), keys=["*"], commands=["+flushall"])
    await bus.ensure_user(run, "second")
    before = admin.acl_getuser(keys.redis_user(run))
    await bus.ensure_user(run, "second")
    assert admin.acl_getuser(keys.redis_user(run)) == before
    assert len(before["passwords"]) == 1
    with redis_server.client(keys.redis_user(run), "second") as user, pytest.raises(NoPermissionError):
        user.flushall()


async def test_users_are_listed_and_deleted_but_never_the_administrator(bus: RedisBus, run: RunId) -> None:
    await bus.ensure_user(run, "password")
    assert keys.redis_user(run) in await bus.users()
    assert all(user.startswith(keys.REDIS_USER_PREFIX) for user in await bus.users())
    await bus.delete_user(keys.redis_user(run))
    await bus.delete_user(keys.redis_user(run))
    assert keys.redis_user(run) not in await bus.users()
    with pytest.raises(PermanentError, match="left alone"):
        await bus.delete_user("admin")


async def test_keys_live_seven_days_after_a_refresh(bus: RedisBus, admin: Redis, run: RunId) -> None:
    add(admin, run, "1-0", encode_record(record(1)))
    admin.xadd(keys.ack_stream(run), {ACK_FIELD: encode(ack(1))})
    await bus.publish(run, directive(1, 1))
    admin.persist(keys.directive_key(run))
    await bus.refresh(run, (1, 2))
    for key in (keys.metrics_stream(run, 1), keys.ack_stream(run), keys.directive_key(run)):
        assert keys.REDIS_TTL_SECONDS - 60 < admin.ttl(key) <= keys.REDIS_TTL_SECONDS


async def test_no_password_is_told_when_redis_refuses_or_is_away(redis_server: RedisServer) -> None:
    url = redis_server.url_of("admin", "wrong-password")
    refused = RedisBus(url)
    with pytest.raises(BusUnavailable) as error:
        await refused.ping()
    await refused.close()
    assert "wrong-password" not in str(error.value)
    away = RedisBus("redis://admin:hidden-word@127.0.0.1:1/0", timeout_seconds=0.5)
    with pytest.raises(BusUnavailable) as error:
        await away.ping()
    await away.close()
    assert "hidden-word" not in str(error.value)
    with pytest.raises(PermanentError) as malformed:
        RedisBus("http://admin:hidden-word@127.0.0.1/0")
    assert "hidden-word" not in str(malformed.value)


async def test_a_full_server_is_unavailable_and_says_so(bus: RedisBus, admin: Redis, run: RunId) -> None:
    admin.config_set("maxmemory", "1")
    try:
        with pytest.raises(BusUnavailable, match=r"OutOfMemoryError|OOM"):
            await bus.publish(run, directive(1, 1))
    finally:
        admin.config_set("maxmemory", "0")
