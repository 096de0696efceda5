"""No exception of a library passes an adapter: whatever Redis, S3 and Kubernetes clients raise has a name of ours."""

import inspect
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import botocore.exceptions
import kubernetes.aio.client.exceptions
import pytest
import redis.exceptions
import urllib3.exceptions
from kubernetes.aio.config import ConfigException
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.api_server import ApiServer, Resource
from trimtab_operator.adapters.bucket import Bucket, S3Credentials, S3Location
from trimtab_operator.adapters.redis import RedisBus
from trimtab_operator.errors import ClusterUnavailable, OperatorError, StoreRefused, StoreUnavailable, TemporaryError

RUN = RunId("team", "job", "uid")
OPERATING_SYSTEM = (OSError, TimeoutError, ConnectionResetError, BrokenPipeError, ssl.SSLError, ssl.CertificateError)


def descendants(module: ModuleType, root: type[Exception]) -> Iterator[type[Exception]]:
    for _, found in sorted(inspect.getmembers(module, inspect.isclass)):
        if issubclass(found, root):
            yield found


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with ThreadPoolExecutor(1) as executor:
        yield Bucket(S3Location("bucket", "http://127.0.0.1:1"), S3Credentials("a", "b"), executor)


def instance(kind: type[Exception]) -> Exception:
    """An exception of a kind whose constructor may want anything."""
    return kind.__new__(kind, "hidden-word")


@pytest.mark.parametrize(
    "kind",
    [*descendants(redis.exceptions, redis.exceptions.RedisError), *OPERATING_SYSTEM],
    ids=lambda kind: kind.__name__,
)
async def test_whatever_redis_raises_is_temporary_and_quotes_nothing(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = RedisBus("redis://127.0.0.1:1")

    async def fails(*_: Any, **__: Any) -> None:
        raise instance(kind)

    for client in (bus._commands, bus._waits):
        monkeypatch.setattr(client, "execute_command", fails)
    for call in (bus.ping(), bus.directive(RUN), bus.records(RUN, 1, 0), bus.wait({"stream": "0-0"}, 1), bus.users()):
        with pytest.raises(TemporaryError) as error:
            await call
        assert "hidden-word" not in str(error.value)
    await bus.close()


@pytest.mark.parametrize(
    "kind",
    [
        *descendants(botocore.exceptions, botocore.exceptions.BotoCoreError),
        *descendants(urllib3.exceptions, urllib3.exceptions.HTTPError),
        *OPERATING_SYSTEM,
    ],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
async def test_whatever_the_s3_client_raises_is_unavailable_or_refused(bucket: Bucket, kind: type[Exception]) -> None:
    def fails(_: Any) -> None:
        raise instance(kind)

    with pytest.raises((StoreUnavailable, StoreRefused)) as error:
        await bucket._in_thread("GetObject", "key", fails)
    assert "hidden-word" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchKey", "NotFound"),
        (404, "NoSuchBucket", "NotFound"),
        (403, "AccessDenied", "StoreRefused"),
        (403, "SignatureDoesNotMatch", "CredentialsRefused"),
        (403, "InvalidAccessKeyId", "CredentialsRefused"),
        (400, "InvalidArgument", "StoreRefused"),
        (400, "RequestTimeout", "StoreUnavailable"),
        (503, "SlowDown", "StoreUnavailable"),
        (500, "InternalError", "StoreUnavailable"),
        (429, "TooManyRequests", "StoreUnavailable"),
        (502, "", "StoreUnavailable"),
        (403, "RequestTimeTooSkewed", "StoreTroubled"),
        (507, "", "StoreTroubled"),
        (403, "QuotaExceeded", "StoreTroubled"),
        (301, "PermanentRedirect", "WrongRegion"),
        (400, "AuthorizationHeaderMalformed", "WrongRegion"),
    ],
)
async def test_every_answer_of_s3_has_a_name(bucket: Bucket, status: int, code: str, expected: str) -> None:
    response: Any = {
        "Error": {"Code": code, "Message": "hidden-word"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }

    def fails(_: Any) -> None:
        raise botocore.exceptions.ClientError(response, "GetObject")

    with pytest.raises(OperatorError) as error:
        await bucket._in_thread("GetObject", "key", fails)
    assert type(error.value).__name__ == expected
    assert "hidden-word" not in str(error.value)


@pytest.mark.parametrize(
    "kind",
    [
        *descendants(aiohttp, aiohttp.ClientError),
        *descendants(kubernetes.aio.client.exceptions, kubernetes.aio.client.exceptions.OpenApiException),
        ConfigException,
        *OPERATING_SYSTEM,
    ],
    ids=lambda kind: kind.__name__,
)
async def test_whatever_the_kubernetes_client_raises_is_unavailable(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], '
        '"users": [{"name": "u", "user": {}}], '
        '"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}'
    )
    server = await ApiServer.connect(kubeconfig)

    async def fails(*_: Any, **__: Any) -> None:
        raise instance(kind)

    monkeypatch.setattr(server._client, "call_api", fails)
    with pytest.raises(ClusterUnavailable) as error:
        await server.list(Resource("v1", "pods"))
    assert "hidden-word" not in str(error.value)
    await server.close()
