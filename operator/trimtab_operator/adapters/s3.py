"""The journal and the checkpoints on S3. boto3 blocks, so its calls run in threads of their own."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    InvalidRegionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from trimtab_contract import keys
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId
from urllib3.exceptions import HTTPError

from trimtab_operator.adapters.ports import MAX_OBJECT_BYTES, Appended
from trimtab_operator.errors import (
    AuditStoreUnfit,
    Conflict,
    NotFound,
    OperatorError,
    StoreRefused,
    StoreUnavailable,
)

CONNECT_SECONDS, READ_SECONDS = 3.0, 5.0
PARALLEL_READS = 8
RACERS = 8
THREADS = 16
LIST_PAGE = 1000

ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
"""The fields of a credentials Secret; the last one may be absent."""

DEFAULT_REGION = "us-east-1"

_ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
_TAKEN = frozenset({"PreconditionFailed", "412"})
_RACING = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_RACING_ATTEMPTS = 5
_MAKING_CLIENTS = Lock()
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class _KeyTaken(Exception):
    """412: an object with this key exists."""


class _WriteRace(Exception):
    """409: another conditional write of this key is in progress."""


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and the way to it. An empty endpoint means the provider's own."""

    bucket: str
    endpoint: str = ""
    region: str = DEFAULT_REGION


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """An S3 identity; shows nothing of itself when printed."""

    access_key: str
    secret_key: str
    session_token: str = ""

    def __repr__(self) -> str:
        return "S3Credentials(…)"

    @classmethod
    def of_secret(cls, secret: Mapping[str, str]) -> "S3Credentials":
        """Read a Secret's data; raises StoreRefused naming the fields that are missing."""
        missing = [name for name in (ACCESS_KEY, SECRET_KEY) if not secret.get(name)]
        if missing:
            message = f"checkpoint.credentialsSecretRef: the Secret has no {' and no '.join(missing)}"
            raise StoreRefused(message)
        return cls(secret[ACCESS_KEY].strip(), secret[SECRET_KEY].strip(), secret.get(SESSION_TOKEN, "").strip())


class _Bucket:
    """One bucket with bounded, translated calls. Writes are sent once; reads are sent again once."""

    def __init__(self, location: S3Location, credentials: S3Credentials | None, executor: ThreadPoolExecutor) -> None:
        _check_endpoint(location.endpoint)
        self.name = location.bucket
        self._location, self._credentials = location, credentials
        self._executor = executor
        self._client: Any = None

    async def put_if_absent(self, key: str, body: bytes) -> None:
        """Raises _KeyTaken or _WriteRace."""
        arguments = {"Bucket": self.name, "Key": key, "Body": body, "IfNoneMatch": "*"}
        await self._in_thread("PutObject", key, lambda client: client.put_object(**arguments))

    async def get(self, key: str, limit: int | None = None, *, again: bool = True) -> bytes:
        def read(client: Any) -> bytes | None:
            answer = client.get_object(Bucket=self.name, Key=key)
            with closing(answer["Body"]) as body:
                return None if limit is not None and answer["ContentLength"] > limit else body.read()

        found = await (self._read if again else self._in_thread)("GetObject", key, read)
        if found is None:
            message = f"{self.name}/{key} is larger than the {limit} bytes expected of it"
            raise StoreRefused(message)
        return found

    async def delete(self, key: str) -> None:
        await self._in_thread("DeleteObject", key, lambda client: client.delete_object(Bucket=self.name, Key=key))

    async def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        async for page in self._pages(prefix, StartAfter=after):
            found.update((item["Key"], item["Size"]) for item in page.get("Contents", ()))
        return found

    async def folders(self, prefix: str) -> tuple[str, ...]:
        found: list[str] = []
        async for page in self._pages(prefix, Delimiter="/"):
            found += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
        return tuple(found)

    async def peek(self, prefix: str) -> None:
        """One listing of at most one key: the least that proves bucket, endpoint and credentials."""
        await self._list(prefix, {"MaxKeys": 1})

    async def _pages(self, prefix: str, **options: str) -> AsyncGenerator[dict[str, Any]]:
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value} | {"MaxKeys": LIST_PAGE}
        while True:
            page = await self._list(prefix, chosen)
            yield page
            if not page.get("IsTruncated"):
                return
            chosen = {**chosen, "ContinuationToken": page["NextContinuationToken"]}

    async def _list(self, prefix: str, options: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {"Bucket": self.name, "Prefix": prefix, **options}
        return await self._read("ListObjectsV2", prefix, lambda client: client.list_objects_v2(**arguments))

    async def _read(self, operation: str, key: str, call: Callable[[Any], _Result]) -> _Result:
        try:
            return await self._in_thread(operation, key, call)
        except StoreUnavailable:
            return await self._in_thread(operation, key, call)

    def _run(self, call: Callable[[Any], _Result]) -> _Result:
        # Making the first client of a process reads megabytes of service descriptions: not on the event loop.
        with _MAKING_CLIENTS:
            if self._client is None:
                self._client = _make_client(self._location, self._credentials)
        return call(self._client)

    async def _in_thread(self, operation: str, key: str, call: Callable[[Any], _Result]) -> _Result:
        what = f"{operation} of {self.name}/{key}"
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, call)
        except ClientError as error:
            raise _translated(what, error) from error
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            message = f"{what}: no usable credentials"
            raise StoreRefused(message) from error
        except (ParamValidationError, InvalidRegionError, ValueError) as error:
            message = f"{what}: not a request that S3 knows ({type(error).__name__})"
            raise StoreRefused(message) from error
        except (BotoCoreError, HTTPError, OSError) as error:
            message = f"{what}: S3 did not answer ({type(error).__name__})"
            raise StoreUnavailable(message) from error


class S3JournalStore:
    """`JournalStore` in the operator's audit bucket."""

    def __init__(self, location: S3Location, credentials: S3Credentials | None) -> None:
        """Without `credentials` the provider's usual chain (environment, instance role) is used. Sends nothing."""
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="audit-store")
        self._bucket = _Bucket(location, credentials, self._executor)

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
        listed = await self._bucket.sizes(keys.journal_prefix(run), keys.journal_record(run, after) if after else "")
        wanted = sorted((seq, key) for key in listed if (seq := _seq(run, key)) is not None and seq > after)
        bodies = await _gather((key for _, key in wanted), self._bucket.get)
        return tuple((seq, body) for (seq, _), body in zip(wanted, bodies, strict=True))

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

    async def _write(self, key: str, body: bytes) -> Appended:
        for attempt in range(_RACING_ATTEMPTS):
            try:
                await self._bucket.put_if_absent(key, body)
            except _KeyTaken:
                return await self._compare(key, body)
            except _WriteRace:
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
        except _KeyTaken:
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

    def __init__(self, bucket: _Bucket, root: str, endpoint: str) -> None:
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
        except StoreRefused as error:
            message = (
                f"checkpoint.credentialsSecretRef: its identity may not list bucket {self._bucket.name!r} of "
                f"checkpoint.uri; correct one of the two ({error})"
            )
            raise StoreRefused(message) from error
        except StoreUnavailable as error:
            message = f"checkpoint.endpoint: the S3 server {_shown(self._endpoint)} does not answer; trying again"
            raise StoreUnavailable(message) from error

    async def get(self, key: str, limit: int = MAX_OBJECT_BYTES) -> bytes:
        """See `CheckpointStore.get`."""
        return await self._bucket.get(key, limit)

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        """See `CheckpointStore.sizes`."""
        return await self._bucket.sizes(prefix)


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
        bucket = _Bucket(location, S3Credentials.of_secret(secret), self._executor)
        return S3CheckpointStore(bucket, parts.path.strip("/"), endpoint)


@cache
def _session() -> Session:
    """One for the process: it keeps the service descriptions. Not safe between threads, see `_MAKING_CLIENTS`."""
    return Session()


def _make_client(location: S3Location, credentials: S3Credentials | None) -> Any:
    identity: dict[str, str | None] = {}
    if credentials is not None:
        identity = {
            "aws_access_key_id": credentials.access_key,
            "aws_secret_access_key": credentials.secret_key,
            "aws_session_token": credentials.session_token or None,
        }
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"total_max_attempts": 1},
        max_pool_connections=THREADS,
        s3={"addressing_style": "path" if location.endpoint else "auto"},
    )
    make = cast("Callable[..., Any]", _session().client)  # pyright: ignore[reportUnknownMemberType] boto3 carries no types
    endpoint = location.endpoint or None
    return make("s3", endpoint_url=endpoint, region_name=location.region, config=config, **identity)


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        good = not endpoint or (parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        good = False
    if not good:
        message = f"endpoint {_shown(endpoint)} is no address of an S3 server; write http(s)://<host>[:<port>]"
        raise StoreRefused(message)


def _shown(endpoint: str) -> str:
    """An endpoint as it may be printed: somebody may have put a password into it."""
    return endpoint if endpoint and "@" not in endpoint else "of the provider" if not endpoint else "(not shown)"


def _translated(what: str, error: ClientError) -> Exception:
    """What an answer of S3 means. Only its code is passed on: servers may quote parts of the request."""
    response: Any = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _TAKEN or status == 412:
        return _KeyTaken(what)
    if code in _RACING:
        return _WriteRace(what)
    if code in _ABSENT or code == "NoSuchBucket":
        return NotFound(f"{what}: it does not exist ({code})")
    if status >= 500 or status in {408, 429} or code in {"SlowDown", "RequestTimeout", "Throttling"}:
        return StoreUnavailable(f"{what}: S3 cannot serve now ({code or status})")
    return StoreRefused(f"{what}: S3 refuses ({code or status})")


async def _gather(items: Iterable[_Item], call: Callable[[_Item], Awaitable[_Result]]) -> list[_Result]:
    """The results of all calls, a bounded number of them at once; the first error ends the rest."""
    slots = asyncio.Semaphore(PARALLEL_READS)

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
