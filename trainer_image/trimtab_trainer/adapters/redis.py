"""The metrics bus: the only module of the trainer that speaks Redis."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from trimtab_contract.directives import ACK_FIELD
from trimtab_contract.keys import RunId, ack_stream, directive_key, metrics_stream
from trimtab_contract.metrics import STREAM_FIELD

from trimtab_trainer.errors import BusUnavailable

SOCKET_TIMEOUT_SECONDS = 1.0
"""A trainer would rather queue than wait; the client's own retries would store an entry twice."""

_NOT_NEWER = "equal or smaller"


class Delivery(StrEnum):
    """What became of a record."""

    STORED = "stored"
    ALREADY_THERE = "already there"
    PASSED_BY = "passed by"
    """The stream has gone on without this record; the archive holds it."""

    CONFLICT = "conflict"
    """Another record of the same attempt and step is in the stream."""


class Bus:
    """Redis for one run. Every method raises BusUnavailable when the server is down or refuses this user."""

    def __init__(self, url: str, username: str, password: str, run: RunId) -> None:
        self._run = run
        self._client = cast(
            "Any",
            redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType] keyword arguments are untyped
                url,
                username=username,
                password=password,
                socket_timeout=SOCKET_TIMEOUT_SECONDS,
                socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
                lib_name=None,
                lib_version=None,
            ),
        )

    def directive(self) -> bytes | None:
        """The bytes of the directive in force, None when the key is absent."""
        with _translated():
            return self._client.get(directive_key(self._run))

    def acknowledge(self, wire: bytes) -> None:
        """Append an ack."""
        with _translated():
            self._client.xadd(ack_stream(self._run), {ACK_FIELD: wire}, maxlen=10_000, approximate=True)

    def publish(self, records: Sequence[tuple[int, int, bytes]], keep: int) -> list[Delivery]:
        """Append (attempt, step, record) triples in one round trip, keeping about `keep` entries per stream.

        Safe to repeat: an entry's id is its step, and one that is already there is compared, never added again.
        """
        with _translated():
            pipeline = self._client.pipeline(transaction=False)
            for attempt, step, wire in records:
                stream = metrics_stream(self._run, attempt)
                pipeline.xadd(stream, {STREAM_FIELD: wire}, id=f"{step}-0", maxlen=keep, approximate=True)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            return [self._delivery(record, answer) for record, answer in zip(records, answers, strict=True)]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _delivery(self, record: tuple[int, int, bytes], answer: Any) -> Delivery:
        if not isinstance(answer, Exception):
            return Delivery.STORED
        if not (isinstance(answer, ResponseError) and _NOT_NEWER in str(answer)):
            raise answer
        attempt, step, wire = record
        found = self._client.xrange(metrics_stream(self._run, attempt), f"{step}-0", f"{step}-0")
        if not found:
            return Delivery.PASSED_BY
        return Delivery.ALREADY_THERE if found[0][1].get(STREAM_FIELD) == wire else Delivery.CONFLICT


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise BusUnavailable(f"{type(error).__name__}: {error}") from error
