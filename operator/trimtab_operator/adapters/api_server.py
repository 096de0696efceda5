"""Plain JSON requests to the Kubernetes API server, bounded in time and number, with translated errors.

The client library brings addresses, certificates and rotating tokens; objects stay the API server's own JSON, so that
what the operator sees is what `kubectl get -o json` shows.
"""

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import OpenApiException

from trimtab_operator.adapters.ports import KubernetesObject
from trimtab_operator.errors import (
    ClusterUnavailable,
    Conflict,
    InvalidResource,
    NotFound,
    OperatorError,
    PermanentError,
)

CONNECT_SECONDS, TOTAL_SECONDS = 3.0, 5.0
MAX_REQUESTS = 16
PAGE = 500
FIELD_MANAGER = "trimtab-operator"

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_JSON, _MERGE_PATCH = "application/json", "application/merge-patch+json"
_STRICT = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER}


class AlreadyExists(OperatorError):
    """An object of this name exists; for the adapters only, which compare it with the one wanted."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where the API server keeps a kind."""

    group_version: str
    plural: str
    namespaced: bool = True

    def collection(self, namespace: str = "") -> str:
        """The path of all objects, of one namespace or of all; raises InvalidResource."""
        prefix = "/api" if self.group_version == "v1" else "/apis"
        scope = f"/namespaces/{_checked(namespace)}" if namespace else ""
        return f"{prefix}/{self.group_version}{scope}/{self.plural}"

    def item(self, namespace: str, name: str, subresource: str = "") -> str:
        """The path of one object; raises InvalidResource."""
        tail = f"/{subresource}" if subresource else ""
        scope = _checked(namespace) if self.namespaced else ""
        return f"{self.collection(scope)}/{_checked(name)}{tail}"


DEEPEST_JSON = 12_000
"""The API server accepts objects nested 10,000 deep, and Python's parser counts its own recursion."""


class ApiServer:
    """One API server."""

    def __init__(self, client: ApiClient) -> None:
        """Made by `connect`."""
        self._client = client
        self._slots = asyncio.Semaphore(MAX_REQUESTS)

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> "ApiServer":
        """Use the pod's service account, or a kubeconfig (the usual one when None). Sends nothing."""
        # Of the whole process: what watches the API server beside this client parses the same objects.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST_JSON))
        configuration = Configuration()
        try:
            if kubeconfig is None and context is None and _SERVICE_ACCOUNT.exists():
                config.load_incluster_config(client_configuration=configuration)  # pyright: ignore[reportUnknownMemberType] untyped library
            else:
                file = str(kubeconfig) if kubeconfig else None
                await config.load_kube_config(file, context, configuration, persist_config=False)  # pyright: ignore[reportUnknownMemberType] untyped library
            return cls(ApiClient(configuration))
        except (config.ConfigException, OSError) as error:
            message = f"the kubeconfig cannot be used: {error}"
            raise PermanentError(message) from error
        except (yaml.YAMLError, ValueError, TypeError, KeyError) as error:
            # Words about a malformed file may quote a token in it.
            message = f"the kubeconfig cannot be read ({type(error).__name__}); check that it is one"
            raise PermanentError(message) from None

    async def close(self) -> None:
        """End every connection."""
        await self._client.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> KubernetesObject:
        """One object; raises NotFound."""
        return await self._request("GET", resource.item(namespace, name))

    async def list(
        self, resource: Resource, namespace: str = "", selector: str = "", *, fields: str = ""
    ) -> tuple[KubernetesObject, ...]:
        """All objects of a namespace, or of all, that the label selector and the field selector name."""
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(PAGE), **{name: value for name, value in selectors.items() if value}}
        items: list[KubernetesObject] = []
        while True:
            page = await self._request("GET", resource.collection(namespace), query)
            # A list names the kind once; its items leave it out.
            about = {"apiVersion": page["apiVersion"], "kind": page["kind"].removesuffix("List")}
            items += [{**about, **item} for item in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return tuple(items)
            query = {**query, "continue": token}

    async def create(self, resource: Resource, body: KubernetesObject) -> KubernetesObject:
        """Create an object; raises AlreadyExists. Unknown fields are refused, not dropped."""
        return await self._request("POST", resource.collection(body["metadata"]["namespace"]), _STRICT, body)

    async def replace(self, resource: Resource, body: KubernetesObject) -> KubernetesObject:
        """Replace the object that has the body's resourceVersion; raises Conflict."""
        metadata = body["metadata"]
        return await self._request("PUT", resource.item(metadata["namespace"], metadata["name"]), _STRICT, body)

    async def patch(self, path: str, change: Mapping[str, Any], resource_version: str) -> KubernetesObject:
        """Merge a change into the object that has this resourceVersion; raises Conflict."""
        body = {**change, "metadata": {"resourceVersion": resource_version}}
        return await self._request("PATCH", path, _STRICT, body, _MERGE_PATCH)

    async def delete(self, path: str, uid: str, **options: str | int) -> None:
        """Delete the object that has this uid; one that is gone is fine, another one is Conflict."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, **options}
        try:
            await self._request("DELETE", path, body=body)
        except NotFound:
            return

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> dict[str, Any]:
        what = f"{method} {path}"
        try:
            async with self._slots:
                status, content = await self._send(method, path, query, body, content_type)
            # A path that the API server does not know is answered in plain text.
            known = content and not (status == 404 and not content.startswith(b"{"))
            document = cast("dict[str, Any]", json.loads(content) if known else {})
        except (aiohttp.ClientError, OpenApiException, config.ConfigException, OSError, ValueError) as error:
            message = f"the API server did not answer {what}: {type(error).__name__}"
            raise ClusterUnavailable(message) from error
        if 200 <= status <= 299:
            return document
        raise _refusal(what, status, document)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> tuple[int, bytes]:
        call = cast("Any", self._client).call_api
        answer: aiohttp.ClientResponse = await call(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": _JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=aiohttp.ClientTimeout(total=TOTAL_SECONDS, sock_connect=CONNECT_SECONDS),
        )
        async with answer:
            return answer.status, await answer.read()


def _checked(name: str) -> str:
    """A name that leads to no other path; raises InvalidResource."""
    if not _NAME.fullmatch(name):
        message = f"{name!r} is not a name of a Kubernetes object: lower-case letters, digits, '-' and '.'"
        raise InvalidResource(message)
    return name


def _refusal(what: str, status: int, answer: Mapping[str, Any]) -> OperatorError:
    """What a refusal means, in the API server's own words, which name the field."""
    reason, text = str(answer.get("reason", "")), str(answer.get("message", "")) or f"status {status}"
    if reason == "AlreadyExists":
        return AlreadyExists(text)
    if status == 404:
        return NotFound(text)
    if status in {409, 410}:
        return Conflict(text)
    if status in {400, 413, 415, 422}:
        return InvalidResource(text)
    if status in {401, 403}:
        # Roles are often bound after the operator starts, and tokens are renewed: worth another try.
        return ClusterUnavailable(f"the API server does not allow {what}: {text}")
    return ClusterUnavailable(f"the API server cannot serve {what} now: {text}")
