"""Reading one S3 bucket."""

import hashlib
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from trimtab_contract.store_answers import StoreAnswer, advice, region_of, store_answer
from urllib3.exceptions import HTTPError

from trimtab_cli.bucket_versions import ObjectVersions, Versioning
from trimtab_cli.errors import NotAllowed, NotFound, Unreachable

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A bucket, the way to it and who asks. An empty endpoint means AWS; empty keys mean boto3's own search."""

    bucket: str
    endpoint: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)


class ObjectStore:
    """Reads objects; errors name the bucket and what to do."""

    def __init__(self, address: BucketAddress) -> None:
        self.address = address
        self._client: Any = cast("Any", Session()).client(
            "s3",
            endpoint_url=address.endpoint or None,
            region_name=region_of(address.endpoint),
            # The line break at the end of a Secret made from a file is none of a key.
            aws_access_key_id=address.access_key.strip() or None,
            aws_secret_access_key=address.secret_key.strip() or None,
            config=Config(
                connect_timeout=3, read_timeout=30, retries={"total_max_attempts": 3}, s3={"addressing_style": "path"}
            ),
        )

    def sizes(self, prefix: str) -> dict[str, int]:
        """Size in bytes by key of every object under a prefix, in key order."""
        found: dict[str, int] = {}
        with self._translated(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.address.bucket, Prefix=prefix)
            for page in pages:
                found.update({item["Key"]: int(item["Size"]) for item in page.get("Contents", ())})
        return dict(sorted(found.items()))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names one level below a prefix that ends with a slash."""
        names: list[str] = []
        with self._translated(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.address.bucket, Prefix=prefix, Delimiter="/"
            )
            for page in pages:
                names += [item["Prefix"].removeprefix(prefix).rstrip("/") for item in page.get("CommonPrefixes", ())]
        return tuple(names)

    def versioning(self) -> Versioning:
        """Whether the bucket keeps what is replaced or deleted; Unknown where that may not be asked."""
        try:
            with self._translated("its versioning"):
                status = self._client.get_bucket_versioning(Bucket=self.address.bucket).get("Status")
        except NotAllowed:
            return Versioning.UNKNOWN
        return Versioning(status) if status in set(Versioning) else Versioning.OFF

    def versions(self, prefix: str) -> dict[str, ObjectVersions]:
        """Versions and delete markers by key of every object under a prefix, also of those that were deleted."""
        found: dict[str, ObjectVersions] = {}
        with self._translated(prefix):
            pages = self._client.get_paginator("list_object_versions").paginate(
                Bucket=self.address.bucket, Prefix=prefix
            )
            for page in pages:
                for item in page.get("Versions", ()):
                    one = found.get(item["Key"], ObjectVersions())
                    found[item["Key"]] = ObjectVersions(one.versions + 1, one.deletions)
                for item in page.get("DeleteMarkers", ()):
                    one = found.get(item["Key"], ObjectVersions())
                    found[item["Key"]] = ObjectVersions(one.versions, one.deletions + 1)
        return found

    def get(self, key: str) -> bytes:
        """The bytes of an object; raises NotFound."""
        with (
            self._translated(key),
            closing(self._client.get_object(Bucket=self.address.bucket, Key=key)["Body"]) as body,
        ):
            return body.read()

    def stretch(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes of an object from `offset` on, fewer where it ends before; raises NotFound."""
        wanted = f"bytes={offset}-{offset + length - 1}"
        with (
            self._translated(key),
            closing(self._client.get_object(Bucket=self.address.bucket, Key=key, Range=wanted)["Body"]) as body,
        ):
            return body.read()

    def sha256(self, key: str) -> tuple[str, int]:
        """SHA-256 and size of an object, read in pieces; raises NotFound."""
        digest, size = hashlib.sha256(), 0
        with (
            self._translated(key),
            closing(self._client.get_object(Bucket=self.address.bucket, Key=key)["Body"]) as body,
        ):
            for chunk in body.iter_chunks(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return digest.hexdigest(), size

    @contextmanager
    def _translated(self, key: str) -> Generator[None]:
        where = f"{self.address.endpoint or 'AWS S3'}, bucket {self.address.bucket}"
        try:
            yield
        except ClientError as error:
            code = str(cast("Any", error).response.get("Error", {}).get("Code", "unknown"))
            metadata: Mapping[str, Any] = cast("Any", error).response.get("ResponseMetadata", {})
            status = int(metadata.get("HTTPStatusCode", 0))
            answer = store_answer(code, status)
            region = str(metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region", ""))
            why = advice(answer, code, region=region)
            if answer is StoreAnswer.ABSENT:
                raise NotFound(f"{key} does not exist ({where}).") from error
            if answer is StoreAnswer.NO_BUCKET:
                raise NotFound(f"The bucket {self.address.bucket} does not exist at {where}.") from error
            if answer.temporary:
                raise Unreachable(f"{where} refuses {key}: {why} ({code})") from error
            raise NotAllowed(f"{where} refuses {key}: {why or 'it says no more'} ({code})") from error
        except (BotoCoreError, HTTPError, OSError, ValueError) as error:
            # Of what the library did not expect it quotes the request, signature included.
            reason = type(error).__name__ if type(error) is HTTPClientError else " ".join(str(error).split())
            raise Unreachable(f"{where} does not answer: {reason}") from error
