"""The journal and the checkpoints on S3."""

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar
from urllib.parse import urlsplit

from trimtab_contract import keys
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId

from trimtab_operator.adapters.bucket import (
    THREADS,
    Bucket,
    KeyTaken,
    S3Credentials,
    S3Location,
    WriteRace,
    shown_endpoint,
)
from trimtab_operator.adapters.ports import MAX_OBJECT_BYTES, Appended, Upload
from trimtab_operator.errors import (
    AuditStoreUnfit,
    Conflict,
    CredentialsRefused,
    NotFound,
    OperatorError,
    StoreRefused,
    StoreTroubled,
    StoreUnavailable,
    WrongRegion,
)

__all__ = ["S3CheckpointStore", "S3CheckpointStores", "S3Credentials", "S3JournalStore", "S3Location"]

PARALLEL_CALLS = 8
RACERS = 8

_RACING_ATTEMPTS = 5
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class S3JournalStore:
    """`JournalStore` in the operator's audit bucket."""

    def __init__(self, location: S3Location, credentials: S3Credentials | None) -> None:
        """Without `credentials` the provider's usual chain (environment, instance role) is used. Sends nothing."""
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="audit-store")
        self._bucket = Bucket(location, credentials, self._executor)

    async def close(self) -> None:
        """Let calls in flight end and release the threads."""
        await asyncio.to_thread(self._executor.shutdown)

    async def probe(self) -> None:
        """See `JournalStore.probe`."""
        prefix = f"probe/{uuid.uuid4().hex}"
        try:
            # Some servers make a missing bucket on the first write: a mistyped name would begin a second trail.
            await self._bucket.peek(prefix)
            await self._probe_second_write(f"{prefix}-second")
            await self._probe_race(f"{prefix}-race")
        except NotFound as error:
            message = f"the audit bucket {self._bucket.name!r} does not exist; create it or correct its name"
            raise AuditStoreUnfit(message) from error
        except StoreRefused as error:
            message = f"the audit bucket cannot be used: {error}"
            raise AuditStoreUnfit(message) from error

    async def read(self, run: RunId, after: int = 0) -> tuple[tuple[int, bytes], ...]:
        """See `JournalStore.read`."""
        wanted = await self._listed(run, after)
        bodies = await _gather((key for _, key in wanted), self._bucket.get)
        return tuple((seq, body) for (seq, _), body in zip(wanted, bodies, strict=True))

    async def last(self, run: RunId) -> bytes | None:
        """See `JournalStore.last`."""
        listed = await self._listed(run)
        return await self._bucket.get(listed[-1][1]) if listed else None

    async def append(self, run: RunId, seq: int, body: bytes) -> Appended:
        """See `JournalStore.append`."""
        return await self._write(keys.journal_record(run, seq), body)

    async def put_object(self, key: str, body: bytes) -> str:
        """See `JournalStore.put_object`."""
        if await self._write(key, body) is Appended.OTHER:
            message = f"{key} in the audit bucket holds other bytes"
            raise Conflict(message)
        return hashlib.sha256(body).hexdigest()

    async def get_object(self, key: str) -> bytes:
        """See `JournalStore.get_object`."""
        return await self._bucket.get(key)

    async def runs(self) -> tuple[RunId, ...]:
        """See `JournalStore.runs`."""
        folders: tuple[str, ...] = ("journal/",)
        for _ in range(3):
            folders = tuple(child for level in await _gather(folders, self._bucket.folders) for child in level)
        return tuple(sorted(run for folder in folders if (run := _run(folder)) is not None))

    async def _listed(self, run: RunId, after: int = 0) -> list[tuple[int, str]]:
        """(sequence number, key) of the records above `after`, in order."""
        listed = await self._bucket.sizes(keys.journal_prefix(run), keys.journal_record(run, after) if after else "")
        return sorted((seq, key) for key in listed if (seq := _seq(run, key)) is not None and seq > after)

    async def _write(self, key: str, body: bytes) -> Appended:
        for attempt in range(_RACING_ATTEMPTS):
            try:
                await self._bucket.put_if_absent(key, body)
            except KeyTaken:
                return await self._compare(key, body)
            except WriteRace:
                await asyncio.sleep(0.05 * 2**attempt)
            except StoreUnavailable:
                # The reply is lost, not necessarily the write. One look only: the server is likely still away.
                try:
                    return await self._compare(key, body, again=False)
                except NotFound:
                    pass
                raise
            else:
                return Appended.WON
        message = f"{key}: other writers keep S3 from deciding who is first"
        raise StoreUnavailable(message)

    async def _compare(self, key: str, body: bytes, *, again: bool = True) -> Appended:
        return Appended.SAME if await self._bucket.get(key, again=again) == body else Appended.OTHER

    async def _probe_second_write(self, key: str) -> None:
        if await self._write(key, b"first") is not Appended.WON:
            raise AuditStoreUnfit("the audit bucket refuses the first conditional write of a new key")
        try:
            await self._bucket.put_if_absent(key, b"second")
        except KeyTaken:
            await self._discard(key)
            return
        raise AuditStoreUnfit("the audit bucket ignores If-None-Match: a second write replaces the first one")

    async def _probe_race(self, key: str) -> None:
        bodies = tuple(f"racer {number}".encode() for number in range(RACERS))
        outcomes = await asyncio.gather(*(self._write(key, body) for body in bodies))
        winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is Appended.WON]
        if len(winners) != 1 or await self._bucket.get(key) != winners[0]:
            message = f"the audit bucket let {len(winners)} of {RACERS} racing conditional writes of one key succeed"
            raise AuditStoreUnfit(message)
        await self._discard(key)

    async def _discard(self, key: str) -> None:
        """An audit bucket may well forbid every deletion; a probe's few bytes then stay."""
        try:
            await self._bucket.delete(key)
        except OperatorError:
            return


class S3CheckpointStore:
    """`CheckpointStore` in one job's bucket, with its credentials."""

    def __init__(self, bucket: Bucket, root: str, endpoint: str) -> None:
        """Made by `S3CheckpointStores.open`."""
        self._bucket, self._root, self._endpoint = bucket, root, endpoint

    @property
    def root(self) -> str:
        """See `CheckpointStore.root`."""
        return self._root

    async def check(self) -> None:
        """See `CheckpointStore.check`."""
        try:
            await self._bucket.peek(f"{self._root}/" if self._root else "")
        except NotFound as error:
            message = f"checkpoint.uri: bucket {self._bucket.name!r} does not exist; create it or correct the field"
            raise StoreRefused(message) from error
        except CredentialsRefused as error:
            message = f"checkpoint.credentialsSecretRef: {error}; correct the Secret"
            raise CredentialsRefused(message) from error
        except WrongRegion as error:
            message = f"checkpoint.endpoint: {error}"
            raise WrongRegion(message) from error
        except StoreRefused as error:
            message = (
                f"checkpoint.credentialsSecretRef: its identity may not list bucket {self._bucket.name!r} of "
                f"checkpoint.uri; correct one of the two ({error})"
            )
            raise StoreRefused(message) from error
        except StoreTroubled as error:
            message = f"checkpoint.endpoint: the S3 server {shown_endpoint(self._endpoint)}: {error}; trying again"
            raise StoreTroubled(message) from error
        except StoreUnavailable as error:
            message = (
                f"checkpoint.endpoint: the S3 server {shown_endpoint(self._endpoint)} does not answer; trying again"
            )
            raise StoreUnavailable(message) from error

    async def get(self, key: str, limit: int = MAX_OBJECT_BYTES) -> bytes:
        """See `CheckpointStore.get`."""
        return await self._bucket.get(key, limit)

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        """See `CheckpointStore.sizes`."""
        return await self._bucket.sizes(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """See `CheckpointStore.delete`."""
        await _gather(keys, self._bucket.delete)

    async def times(self, prefix: str) -> Mapping[str, datetime]:
        """See `CheckpointStore.times`."""
        return await self._bucket.times(prefix)

    async def uploads(self, prefix: str) -> tuple[Upload, ...]:
        """See `CheckpointStore.uploads`."""
        try:
            return await self._bucket.uploads(prefix)
        except CredentialsRefused:
            raise
        except StoreRefused:
            # A right of its own, which only tidying up needs: deleting checkpoints must not wait for it.
            return ()

    async def abort(self, uploads: Sequence[Upload]) -> None:
        """See `CheckpointStore.abort`."""
        await _gather(uploads, self._bucket.abort)


class S3CheckpointStores:
    """`CheckpointStores`: one set of threads for the stores of all jobs."""

    def __init__(self) -> None:
        """Sends nothing."""
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="checkpoint-store")

    async def close(self) -> None:
        """Let calls in flight end and release the threads."""
        await asyncio.to_thread(self._executor.shutdown)

    def open(self, uri: str, endpoint: str, secret: Mapping[str, str]) -> S3CheckpointStore:
        """See `CheckpointStores.open`."""
        parts = urlsplit(uri)
        if parts.scheme != "s3" or not parts.netloc:
            message = f"checkpoint.uri: {uri!r} is not s3://<bucket>/<prefix>"
            raise StoreRefused(message)
        location = S3Location(parts.netloc, endpoint)
        bucket = Bucket(location, S3Credentials.of_secret(secret), self._executor)
        return S3CheckpointStore(bucket, parts.path.strip("/"), endpoint)


async def _gather(items: Iterable[_Item], call: Callable[[_Item], Awaitable[_Result]]) -> list[_Result]:
    """The results of all calls, a bounded number of them at once; the first error ends the rest."""
    slots = asyncio.Semaphore(PARALLEL_CALLS)

    async def bounded(item: _Item) -> _Result:
        async with slots:
            return await call(item)

    tasks: list[asyncio.Task[_Result]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bounded(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _seq(run: RunId, key: str) -> int | None:
    """The sequence number of a key that is exactly a journal record of this run."""
    try:
        seq = keys.journal_seq(key)
    except ContractError:
        return None
    return seq if key == keys.journal_record(run, seq) else None


def _run(folder: str) -> RunId | None:
    try:
        return RunId.parse(folder.removeprefix("journal/").rstrip("/"))
    except ContractError:
        return None
