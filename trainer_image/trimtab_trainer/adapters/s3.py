"""The object store: the only module of the trainer that speaks S3."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from botocore.response import StreamingBody
from trimtab_contract.store_answers import StoreAnswer, advice, region_of, store_answer

from trimtab_trainer.errors import ObjectMissing, StoreError, StoreRefused, StoreUnavailable

CONNECT_TIMEOUT_SECONDS = 2.0
READ_TIMEOUT_SECONDS = 10.0
MAX_ATTEMPTS = 3
"""botocore's standard mode waits between attempts with full jitter."""

CHUNK_BYTES = 256 * 1024
"""Of what is read: as much as stays in a processor's cache until its reader has hashed and copied it."""

_TRANSFER = TransferConfig(use_threads=False)
_BEYOND_THE_END = frozenset({"InvalidRange", "416"})
_CHECKSUM = "CRC32"
"""Of every part; the only one that botocore computes without further libraries."""


Bytes = bytes | bytearray


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an upload as the server acknowledged it."""

    number: int
    etag: str
    checksum: str | None


@dataclass(frozen=True, slots=True)
class StoreTimeouts:
    """How long one request may take, and how often it is tried."""

    connect_seconds: float = CONNECT_TIMEOUT_SECONDS
    read_seconds: float = READ_TIMEOUT_SECONDS
    attempts: int = MAX_ATTEMPTS


class Destination(Protocol):
    """Memory in which bytes are to arrive, one piece after another."""

    def room(self) -> memoryview:
        """Where the next ones belong; empty when all are there."""
        ...

    def take(self, count: int, /) -> None:
        """The first `count` bytes of the room have arrived."""
        ...


class _Broken(Exception):
    """An answer that breaks off."""


class _Stretch(NamedTuple):
    """Bytes on their way, and how many the whole object has."""

    body: Any
    whole_size: int


class ObjectStore:
    """One bucket. Keys are whole: callers put the run's root in front (`trimtab_contract.keys`).

    Every method raises StoreUnavailable or StoreRefused; reading raises ObjectMissing too. Safe to use from several
    threads at once.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        timeouts: StoreTimeouts = StoreTimeouts(),
    ) -> None:
        """Credentials left out are taken from the environment, as every AWS tool does."""
        self.bucket = bucket
        own = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
        identity = own if access_key or secret_key else _of_environment()
        make = cast("Callable[..., Any]", boto3.Session().client)  # pyright: ignore[reportUnknownMemberType] boto3 carries no types
        self._client = make(
            "s3",
            endpoint_url=endpoint,
            region_name=region_of(endpoint or ""),
            config=Config(
                connect_timeout=timeouts.connect_seconds,
                read_timeout=timeouts.read_seconds,
                retries={"mode": "standard", "total_max_attempts": timeouts.attempts},
                s3={"addressing_style": "path"},
            ),
            **identity,
        )

    def put(self, key: str, body: bytes | Path) -> None:
        """Store bytes, or the content of a file (in parts where it is large), under `key`."""
        with self._translated("PutObject", key):
            if isinstance(body, Path):
                with body.open("rb") as file:
                    self._client.upload_fileobj(file, self.bucket, key, Config=_TRANSFER)
            else:
                self._client.put_object(Bucket=self.bucket, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        """The whole object."""
        with self._translated("GetObject", key):
            return cast("bytes", self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def chunks(self, key: str) -> Iterator[bytes]:
        """The whole object, at most 256 KiB at a time."""
        with self._translated("GetObject", key):
            body = self._client.get_object(Bucket=self.bucket, Key=key)["Body"]
            yield from body.iter_chunks(CHUNK_BYTES)

    def stretch(self, key: str, offset: int, length: int, into: Callable[[bytes], object]) -> int:
        """Hand `length` bytes from `offset` on to `into`, at most 256 KiB at a time; returns the whole object's size.

        Fewer bytes come where the object ends before; none, and the size 0, where it ends before `offset`.
        """
        with self._translated("GetObject", key):
            found = self._stretch(key, offset, length)
            for chunk in found.body.iter_chunks(CHUNK_BYTES):
                into(chunk)
            return found.whole_size

    def fill(self, key: str, offset: int, length: int, into: Destination) -> int:
        """Write `length` bytes from `offset` on to where `into` wants them; returns as `stretch` does.

        No bytes come that `into` has no room for.
        """
        with self._translated("GetObject", key):
            found = self._stretch(key, offset, length)
            left = min(length, found.whole_size - offset)
            with found.body as raw:
                source = _source(found.body, raw)
                while (room := into.room()) and (count := _received(source, room)):
                    into.take(count)
                    left -= count
                if room and left > 0:
                    raise _Broken(f"the answer ended {left} bytes early")
                if _is_over(source):
                    raw.release_conn()
            return found.whole_size

    def _stretch(self, key: str, offset: int, length: int) -> _Stretch:
        try:
            answer = self._client.get_object(Bucket=self.bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}")
        except ClientError as error:
            if _code(error) in _BEYOND_THE_END:
                return _Stretch(StreamingBody(BytesIO(), None), 0)
            raise
        return _Stretch(answer["Body"], int(str(answer["ContentRange"]).rpartition("/")[2]))

    def begin_parts(self, key: str) -> str:
        """Begin an upload in parts; returns its id. Nothing is visible under `key` before `complete_parts`."""
        with self._translated("CreateMultipartUpload", key):
            answer = self._client.create_multipart_upload(Bucket=self.bucket, Key=key, ChecksumAlgorithm=_CHECKSUM)
            return str(answer["UploadId"])

    def put_part(self, key: str, upload: str, number: int, body: Bytes) -> Part:
        """Store part `number`, from 1; the server compares it with the checksum that travels along."""
        with self._translated("UploadPart", key):
            answer = self._client.upload_part(
                Bucket=self.bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                Body=body,
                ChecksumAlgorithm=_CHECKSUM,
            )
            return Part(number, str(answer["ETag"]), answer.get(f"Checksum{_CHECKSUM}"))

    def complete_parts(self, key: str, upload: str, parts: Sequence[Part]) -> None:
        """Make the object of all parts visible."""
        named = [
            {"PartNumber": part.number, "ETag": part.etag}
            | ({} if part.checksum is None else {f"Checksum{_CHECKSUM}": part.checksum})
            for part in sorted(parts, key=lambda part: part.number)
        ]
        with self._translated("CompleteMultipartUpload", key):
            self._client.complete_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": named}
            )

    def abort_parts(self, key: str, upload: str) -> None:
        """Give an upload in parts up and free what was stored of it; one that is not there any more is none."""
        try:
            with self._translated("AbortMultipartUpload", key):
                self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        except ObjectMissing:
            return

    def get_to(self, key: str, path: Path) -> None:
        """Write the whole object into a file."""
        with path.open("wb") as file:
            self.copy_to(key, file)

    def copy_to(self, key: str, file: BinaryIO) -> None:
        """Write the whole object to an open file."""
        file.writelines(self.chunks(key))

    def list(self, prefix: str) -> dict[str, int]:
        """Key and size of every object under `prefix`, in key order."""
        found: dict[str, int] = {}
        with self._translated("ListObjectsV2", prefix):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                for entry in cast("list[dict[str, Any]]", page.get("Contents", [])):
                    found[entry["Key"]] = entry["Size"]
        return found

    def exists(self, key: str) -> bool:
        """Whether there is an object under `key`."""
        try:
            with self._translated("HeadObject", key):
                self._client.head_object(Bucket=self.bucket, Key=key)
        except ObjectMissing:
            return False
        return True

    @contextmanager
    def _translated(self, operation: str, key: str) -> Generator[None]:
        try:
            yield
        except ClientError as error:
            raise self._translate(error, operation, key) from error
        except NoCredentialsError as error:
            message = (
                f"checkpoint.uri: no credentials for bucket {self.bucket!r}: "
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
            raise StoreRefused(message) from error
        except _Broken as error:
            raise StoreUnavailable(f"{operation} {self.bucket}/{key}: {error}") from error
        except BotoCoreError as error:
            # Of what the library did not expect it quotes the request, signature included.
            told = "" if type(error) is HTTPClientError else f": {error}"
            message = f"{operation} {self.bucket}/{key}: {type(error).__name__}{told}"
            raise StoreUnavailable(message) from error

    def _translate(self, error: ClientError, operation: str, key: str) -> StoreError:
        response = cast("Mapping[str, Any]", error.response)
        code = _code(error)
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        answer = store_answer(code, status)
        why = advice(answer, code, region=str(_headers(response).get("x-amz-bucket-region", "")))
        if answer is StoreAnswer.NO_BUCKET:
            return StoreRefused(f"checkpoint.uri: there is no bucket {self.bucket!r}: create it or correct the URI")
        if answer is StoreAnswer.ABSENT:
            return ObjectMissing(f"there is no object {self.bucket}/{key}")
        if answer.temporary:
            return StoreUnavailable(f"{operation} {self.bucket}/{key}: {why} ({code or status})")
        if answer is StoreAnswer.REGION:
            return StoreRefused(f"checkpoint.endpoint: bucket {self.bucket!r}: {why} ({code or status})")
        if answer in {StoreAnswer.CREDENTIALS, StoreAnswer.RIGHTS}:
            return StoreRefused(
                f"checkpoint.uri: bucket {self.bucket!r} refused {operation} with {code or status}: "
                "check the credentials and what they may do"
            )
        return StoreRefused(f"{operation} {self.bucket}/{key} was refused: {code or status}")


def _of_environment() -> dict[str, str]:
    """The environment's keys, where both are there. The line break at the end of a Secret made from a file is none of
    a key, and no request could be sent with it."""
    names = {
        "aws_access_key_id": "AWS_ACCESS_KEY_ID",
        "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
    }
    found = {argument: os.environ.get(name, "").strip() for argument, name in names.items()}
    both = found["aws_access_key_id"] and found["aws_secret_access_key"]
    return {argument: value for argument, value in found.items() if value} if both else {}


def _source(body: object, raw: object) -> Any:
    """What fills memory with a body: the reader of the socket, where nothing is done with what it reads.

    The libraries above it have a `readinto` too, which reads into new memory and copies.
    """
    reader = getattr(raw, "_fp", None)
    return reader if type(body) is StreamingBody and isinstance(reader, HTTPResponse) else body


def _received(source: Any, room: memoryview) -> int:
    try:
        return source.readinto(room)
    except (HTTPException, OSError) as error:
        raise _Broken(f"{type(error).__name__}: {error}") from error


def _is_over(source: object) -> bool:
    """Whether the socket's reader has read all of an answer: its connection can be used for another one."""
    return isinstance(source, HTTPResponse) and source.isclosed()


def _headers(response: Mapping[str, Any]) -> Mapping[str, Any]:
    return response.get("ResponseMetadata", {}).get("HTTPHeaders", {})


def _code(error: ClientError) -> str:
    response = cast("Mapping[str, Any]", error.response)
    return str(response.get("Error", {}).get("Code", ""))
