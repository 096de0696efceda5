"""The bus on Redis: records and acknowledgements in, directives out, one confined user per run."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from trimtab_contract import keys
from trimtab_contract.directives import ACK_FIELD, Ack, Directive, decode, encode
from trimtab_contract.errors import MalformedDirective, MalformedRecord
from trimtab_contract.keys import RunId
from trimtab_contract.metrics import STREAM_FIELD, MetricRecord, decode_record

from trimtab_operator.adapters.ports import ACK_PAGE, AckBatch, Publication, Published, RecordBatch, Rejected
from trimtab_operator.errors import BusUnavailable, Fenced, PermanentError

TIMEOUT_SECONDS = 3.0
FURTHEST_STEP = 100_000
"""A step this far above the last good one cannot be what a trainer meant."""

_MAX_ACK_BYTES = 64 * 1024
_MAX_REASON_CHARACTERS = 300
_PAGE_BYTES = 4 * 1024 * 1024
_FIRST_PAGE, _LARGEST_PAGE = 16, 64
"""The next entries may be thousands of times as large as the ones before them."""
_LAST_OF_STEP = (1 << 64) - 1

_PUBLISH = """
local stored = redis.call('GET', KEYS[1])
local epoch, seq = tonumber(ARGV[2]), tonumber(ARGV[3])
if stored == ARGV[1] then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  return {'Same', ARGV[2], ARGV[3]}
end
if stored then
  local readable, directive = pcall(cjson.decode, stored)
  if readable and type(directive) == 'table' then
    local stored_epoch, stored_seq = tonumber(directive['epoch']), tonumber(directive['seq'])
    if stored_epoch and stored_seq
      and (stored_epoch > epoch or (stored_epoch == epoch and stored_seq >= seq)) then
      return {'Refused', string.format('%.0f', stored_epoch), string.format('%.0f', stored_seq)}
    end
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[4])
return {'Written', ARGV[2], ARGV[3]}
"""
"""Compare and set: KEYS[1] the directive, ARGV its bytes, epoch, seq and lifetime. An unreadable value is replaced."""

_USER_COMMANDS = ("+xadd", "+xrange", "+get", "+ping", "+hello", "+client|setname")


class RedisBus:
    """`Bus` on one Redis server, reached as its administrator. Nothing is retried, so that nothing is sent twice."""

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS, max_connections: int = 16) -> None:
        """`url` is redis:// or rediss:// with user and password; connects when first used.

        `timeout_seconds` bound a command, connecting included.
        """
        self._timeout = timeout_seconds
        self._commands = _client(url, timeout_seconds, max_connections)
        # Apart, so that reads that block never keep a command from getting a connection.
        self._waits = _client(url, timeout_seconds, max_connections)

    async def close(self) -> None:
        """End every connection."""
        await self._commands.aclose()
        await self._waits.aclose()

    async def ping(self) -> None:
        """See `Bus.ping`."""
        await self._command("PING")

    async def records(self, run: RunId, attempt: int, after_step: int, limit: int = 1000) -> RecordBatch:
        """See `Bus.records`."""
        records: list[MetricRecord] = []
        rejected: list[Rejected] = []
        last_good, page = after_step, _FIRST_PAGE
        start, cursor = f"{after_step + 1}-0", f"{after_step}-{_LAST_OF_STEP}"
        stream = keys.metrics_stream(run, attempt)
        while (room := limit - len(records) - len(rejected)) > 0:
            count = min(page, room)
            entries = await self._range(stream, start, count)
            for entry_id, fields in entries:
                try:
                    record = _record(entry_id, fields, attempt, last_good)
                except MalformedRecord as error:
                    rejected.append(Rejected(entry_id, str(error)[:_MAX_REASON_CHARACTERS]))
                else:
                    records.append(record)
                    last_good = record.step
            if entries:
                cursor = entries[-1][0]
                start = f"({cursor}"
                page = _next_page(entries)
            if len(entries) < count:
                break
        return RecordBatch(tuple(records), tuple(rejected), cursor)

    async def acks(self, run: RunId, after_id: str = "0-0", limit: int = ACK_PAGE) -> AckBatch:
        """See `Bus.acks`."""
        acks: list[tuple[str, Ack]] = []
        rejected: list[Rejected] = []
        entries = await self._range(keys.ack_stream(run), f"({after_id}", limit)
        for entry_id, fields in entries:
            try:
                acks.append((entry_id, _ack(fields)))
            except MalformedDirective as error:
                rejected.append(Rejected(entry_id, str(error)[:_MAX_REASON_CHARACTERS]))
        return AckBatch(tuple(acks), tuple(rejected), entries[-1][0] if entries else after_id)

    async def wait(self, cursors: Mapping[str, str], milliseconds: int) -> frozenset[str]:
        """See `Bus.wait`."""
        # Redis takes a block of zero as for ever.
        milliseconds = max(1, milliseconds)
        if not cursors:
            await asyncio.sleep(milliseconds / 1000)
            return frozenset()
        arguments = ("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *cursors.keys(), *cursors.values())
        with _translated("XREAD"):
            async with asyncio.timeout(milliseconds / 1000 + self._timeout):
                found = await _execute(self._waits, *arguments)
        return frozenset(bytes(name).decode() for name, _ in found or ())

    async def publish(self, run: RunId, directive: Directive) -> Published:
        """See `Bus.publish`."""
        arguments = (encode(directive), directive.epoch, directive.seq, keys.REDIS_TTL_SECONDS)
        reply: Any = await self._command("EVAL", _PUBLISH, 1, keys.directive_key(run), *arguments)
        outcome, stored = Publication(bytes(reply[0]).decode()), (int(reply[1]), int(reply[2]))
        if outcome is Publication.REFUSED and stored == directive.order:
            message = f"directive {stored} of {run} is stored with other content: two operators use one epoch"
            raise Fenced(message)
        return Published(outcome, stored)

    async def directive(self, run: RunId) -> Directive | None:
        """See `Bus.directive`."""
        stored: Any = await self._command("GET", keys.directive_key(run))
        if stored is None:
            return None
        try:
            return decode(Directive, stored)
        except MalformedDirective:
            return None

    async def ensure_user(self, run: RunId, password: str) -> None:
        """See `Bus.ensure_user`."""
        # Redis applies the rules of one SETUSER together or not at all: there is no moment without a password.
        digest = hashlib.sha256(password.encode()).hexdigest()
        rules = ("reset", "on", f"#{digest}", "resetkeys", *keys.redis_acl_patterns(run), *_USER_COMMANDS)
        known: Any = await self._command("COMMAND INFO", "client|setinfo")
        if known and known[0]:
            rules = (*rules, "+client|setinfo")
        await self._command("ACL SETUSER", keys.redis_user(run), *rules)

    async def delete_user(self, user: str) -> None:
        """See `Bus.delete_user`."""
        if not user.startswith(keys.REDIS_USER_PREFIX):
            message = f"Redis user {user!r} is no run's user; it is left alone"
            raise PermanentError(message)
        await self._command("ACL DELUSER", user)

    async def users(self) -> tuple[str, ...]:
        """See `Bus.users`."""
        names: Any = await self._command("ACL USERS")
        return tuple(name for name in names if name.startswith(keys.REDIS_USER_PREFIX))

    async def refresh(self, run: RunId, attempts: Sequence[int]) -> None:
        """See `Bus.refresh`."""
        streams = (keys.metrics_stream(run, attempt) for attempt in attempts)
        with _translated("EXPIRE"):
            async with asyncio.timeout(self._timeout), self._commands.pipeline(transaction=False) as pipeline:
                for key in (keys.directive_key(run), keys.ack_stream(run), *streams):
                    pipeline.expire(key, keys.REDIS_TTL_SECONDS)
                await pipeline.execute()

    async def _range(self, stream: str, start: str, count: int) -> list[tuple[str, dict[bytes, bytes]]]:
        entries: Any = await self._command("XRANGE", stream, start, "+", "COUNT", count)
        return [(bytes(entry_id).decode(), fields) for entry_id, fields in entries]

    async def _command(self, name: str, *arguments: str | bytes | int) -> Any:
        with _translated(name):
            async with asyncio.timeout(self._timeout):
                return await _execute(self._commands, name, *arguments)


def _client(url: str, connect_timeout: float, max_connections: int) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] untyped in redis-py
            url,
            protocol=2,
            decode_responses=False,
            max_connections=max_connections,
            timeout=connect_timeout,
            socket_connect_timeout=connect_timeout,
            # With one redis-py sends through `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
            # comes while the command is being sent; and a blocking read must outlive it. Callers bring a deadline.
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # The address carries a password, and the library's words may quote it.
        raise PermanentError("the Redis address is not a redis:// or rediss:// URL") from None
    return Redis.from_pool(pool)


async def _execute(client: Redis, *arguments: str | bytes | int) -> Any:
    call = cast("Callable[..., Awaitable[Any]]", client.execute_command)  # pyright: ignore[reportUnknownMemberType] untyped in redis-py
    return await call(*arguments)


@contextmanager
def _translated(command: str) -> Generator[None]:
    """Every way in which Redis can fail to serve; its own words are not passed on, as they may quote arguments."""
    try:
        yield
    except AuthenticationError as error:
        raise BusUnavailable("Redis refuses the operator's user or password") from error
    except ResponseError as error:
        code = str(error).split(" ", 1)[0]
        detail = code if code.isupper() else type(error).__name__
        message = f"Redis refused {command}: {detail}"
        raise BusUnavailable(message) from error
    except (RedisError, OSError) as error:
        message = f"Redis did not answer {command}: {type(error).__name__}"
        raise BusUnavailable(message) from error


def _record(entry_id: str, fields: Mapping[bytes, bytes], attempt: int, last_good: int) -> MetricRecord:
    """The record of a stream entry; raises MalformedRecord."""
    record = decode_record(fields.get(STREAM_FIELD, b""))
    if record.attempt != attempt:
        message = f"record of attempt {record.attempt} lies in the stream of attempt {attempt}"
        raise MalformedRecord(message)
    if entry_id != f"{record.step}-0":
        message = f"record of step {record.step} has the id {entry_id}"
        raise MalformedRecord(message)
    if record.step > last_good + FURTHEST_STEP:
        message = f"step {record.step} is far above the last good step {last_good}"
        raise MalformedRecord(message)
    return record


def _ack(fields: Mapping[bytes, bytes]) -> Ack:
    """The acknowledgement of a stream entry; raises MalformedDirective."""
    body = fields.get(ACK_FIELD, b"")
    if len(body) > _MAX_ACK_BYTES:
        message = f"acknowledgement has {len(body)} bytes; at most {_MAX_ACK_BYTES} are allowed"
        raise MalformedDirective(message)
    return decode(Ack, body)


def _next_page(entries: Sequence[tuple[str, Mapping[bytes, bytes]]]) -> int:
    """How many entries of the size just seen fit in a page: a record may have 1 KB or 4 MB."""
    size = sum(len(value) for _, fields in entries for value in fields.values())
    return min(_LARGEST_PAGE, max(1, _PAGE_BYTES * len(entries) // max(1, size)))
