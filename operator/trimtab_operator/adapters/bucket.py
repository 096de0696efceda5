"""One S3 bucket: bounded calls in threads, since boto3 blocks, and errors of the operator only."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
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
from trimtab_contract.store_answers import StoreAnswer, advice, region_of, store_answer
from urllib3.exceptions import HTTPError

from trimtab_operator.adapters.ports import Upload
from trimtab_operator.errors import (
    CredentialsRefused,
    NotFound,
    ObjectTooLarge,
    StoreRefused,
    StoreTroubled,
    StoreUnavailable,
    WrongRegion,
)

CONNECT_SECONDS, READ_SECONDS = 3.0, 5.0
THREADS = 16
LIST_PAGE = 1000

ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
"""The fields of a credentials Secret; the last one may be absent."""

_TAKEN = frozenset({"PreconditionFailed", "412"})
_RACING = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_MAKING_CLIENTS = Lock()
_Result = TypeVar("_Result")


class KeyTaken(Exception):
    """412: an object with this key exists."""


class WriteRace(Exception):
    """409: another conditional write of this key is in progress."""


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and the way to it. An empty endpoint means the provider's own, an empty region that of the endpoint."""

    bucket: str
    endpoint: str = ""
    region: str = ""


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


class Bucket:
    """One bucket with bounded, translated calls. Writes are sent once; reads are sent again once."""

    def __init__(self, location: S3Location, credentials: S3Credentials | None, executor: ThreadPoolExecutor) -> None:
        _check_endpoint(location.endpoint)
        self.name = location.bucket
        self._location, self._credentials = location, credentials
        self._executor = executor
        self._client: Any = None

    async def put_if_absent(self, key: str, body: bytes) -> None:
        """Raises KeyTaken or WriteRace."""
        arguments = {"Bucket": self.name, "Key": key, "Body": body, "IfNoneMatch": "*"}
        await self._in_thread("PutObject", key, lambda client: client.put_object(**arguments))

    async def get(self, key: str, limit: int | None = None, *, again: bool = True) -> bytes:
        """The whole object; raises NotFound, and ObjectTooLarge over `limit` bytes. `again` allows a second try."""

        def read(client: Any) -> bytes | None:
            answer = client.get_object(Bucket=self.name, Key=key)
            with closing(answer["Body"]) as body:
                return None if limit is not None and answer["ContentLength"] > limit else body.read()

        found = await (self._read if again else self._in_thread)("GetObject", key, read)
        if found is None:
            message = f"{self.name}/{key} is larger than the {limit} bytes expected of it"
            raise ObjectTooLarge(message)
        return found

    async def delete(self, key: str) -> None:
        """Delete an object; one that does not exist is fine."""
        await self._in_thread("DeleteObject", key, lambda client: client.delete_object(Bucket=self.name, Key=key))

    async def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        """Size of every object whose key begins with `prefix` and sorts behind `after`, in key order."""
        found: dict[str, int] = {}
        async for page in self._pages(prefix, StartAfter=after):
            found.update((item["Key"], item["Size"]) for item in page.get("Contents", ()))
        return found

    async def times(self, prefix: str) -> dict[str, datetime]:
        """When every object whose key begins with `prefix` was last written, in key order."""
        found: dict[str, datetime] = {}
        async for page in self._pages(prefix):
            found.update((item["Key"], item["LastModified"]) for item in page.get("Contents", ()))
        return found

    async def uploads(self, prefix: str) -> tuple[Upload, ...]:
        """The uploads in parts below a prefix, in key order."""
        found: list[Upload] = []
        arguments: dict[str, Any] = {"Bucket": self.name, "Prefix": prefix}
        while True:
            page = await self._read(
                "ListMultipartUploads",
                prefix,
                lambda client: client.list_multipart_uploads(**arguments),  # noqa: B023 called before the next round
            )
            items = page.get("Uploads", ())
            found += [Upload(item["Key"], item["UploadId"], item["Initiated"]) for item in items]
            if not page.get("IsTruncated") or not items:
                return tuple(one for one in found if one.key.startswith(prefix))
            last = items[-1]
            arguments |= {
                "KeyMarker": page.get("NextKeyMarker") or last["Key"],
                "UploadIdMarker": page.get("NextUploadIdMarker") or last["UploadId"],
            }

    async def abort(self, upload: Upload) -> None:
        """Give an upload in parts up; one that is not there any more is fine."""
        arguments = {"Bucket": self.name, "Key": upload.key, "UploadId": upload.id}
        try:
            await self._in_thread(
                "AbortMultipartUpload", upload.key, lambda client: client.abort_multipart_upload(**arguments)
            )
        except NotFound:
            return

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """The prefixes one `/` below `prefix`."""
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
    return make(
        "s3",
        endpoint_url=endpoint,
        region_name=location.region or region_of(location.endpoint),
        config=config,
        **identity,
    )


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        good = not endpoint or (parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        good = False
    if not good:
        message = f"endpoint {shown_endpoint(endpoint)} is no address of an S3 server; write http(s)://<host>[:<port>]"
        raise StoreRefused(message)


def shown_endpoint(endpoint: str) -> str:
    """An endpoint as it may be printed: somebody may have put a password into it."""
    return endpoint if endpoint and "@" not in endpoint else "of the provider" if not endpoint else "(not shown)"


def _translated(what: str, error: ClientError) -> Exception:
    """What an answer of S3 means. Only its code is passed on: servers may quote parts of the request."""
    response: Any = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _TAKEN or status == 412:
        return KeyTaken(what)
    if code in _RACING:
        return WriteRace(what)
    answer = store_answer(code, status)
    headers: Any = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    why = advice(answer, code, region=str(headers.get("x-amz-bucket-region", "")))
    told = f"{what}: {why} ({code or status})"
    if answer in {StoreAnswer.ABSENT, StoreAnswer.NO_BUCKET}:
        return NotFound(f"{what}: it does not exist ({code})")
    if answer is StoreAnswer.BUSY:
        return StoreUnavailable(f"{what}: S3 cannot serve now ({code or status})")
    if answer.temporary:
        return StoreTroubled(told)
    if answer is StoreAnswer.CREDENTIALS:
        return CredentialsRefused(f"{why} ({code})")
    if answer is StoreAnswer.REGION:
        return WrongRegion(told)
    return StoreRefused(f"{what}: S3 refuses ({code or status})")
