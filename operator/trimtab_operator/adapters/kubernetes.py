"""The cluster: fresh reads, writes guarded by resourceVersion or uid, Events that count instead of piling up."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trimtab_operator.adapters.api_server import FIELD_MANAGER, AlreadyExists, ApiServer, Resource
from trimtab_operator.adapters.pods import ON_THE_WAY, pod_view, why_on_the_way
from trimtab_operator.adapters.ports import Created, EventType, Kind, KubernetesObject, PodView
from trimtab_operator.errors import Conflict, InvalidResource, NotFound

MAX_EVENT_CHARACTERS = 1000

_EVENT_ATTEMPTS = 3
_OURS = "trimtab.dev/v1alpha1"
_RESOURCES: Mapping[Kind, Resource] = {
    Kind.TRAINING_JOB: Resource(_OURS, "trainingjobs"),
    Kind.GUARD_POLICY: Resource(_OURS, "guardpolicies"),
    Kind.CLUSTER_GUARD_POLICY: Resource(_OURS, "clusterguardpolicies", namespaced=False),
    Kind.GUARD_INCIDENT: Resource(_OURS, "guardincidents"),
    Kind.RUN_REQUEST: Resource(_OURS, "runrequests"),
    Kind.JOURNAL_ANCHOR: Resource(_OURS, "journalanchors"),
    Kind.JOB: Resource("batch/v1", "jobs"),
    Kind.SERVICE: Resource("v1", "services"),
    Kind.CONFIG_MAP: Resource("v1", "configmaps"),
    Kind.SECRET: Resource("v1", "secrets"),
}
_PODS = Resource("v1", "pods")
_EVENTS = Resource("v1", "events")
_LEASES = Resource("coordination.k8s.io/v1", "leases")


class KubernetesCluster:
    """`Cluster`, and the `LeaseStore` of the leader's Lease."""

    def __init__(self, server: ApiServer, namespaces: tuple[str, ...] = ()) -> None:
        """Made by `connect`."""
        self._server, self._namespaces = server, namespaces

    @classmethod
    async def connect(
        cls, kubeconfig: Path | None = None, context: str | None = None, *, namespaces: tuple[str, ...] = ()
    ) -> "KubernetesCluster":
        """Use the pod's service account, or a kubeconfig (the usual one when None); raises PermanentError.

        `namespaces` are the only ones whose TrainingJobs are listed, as its rights may reach no further; empty: all.
        """
        return cls(await ApiServer.connect(kubeconfig, context), namespaces)

    async def close(self) -> None:
        """End every connection."""
        await self._server.close()

    async def training_job(self, namespace: str, name: str) -> KubernetesObject:
        """See `Cluster.training_job`."""
        return await self._server.get(_RESOURCES[Kind.TRAINING_JOB], namespace, name)

    async def training_jobs(self) -> tuple[KubernetesObject, ...]:
        """See `Cluster.training_jobs`."""
        return await self._watched(Kind.TRAINING_JOB)

    async def guard_policy(self, kind: Kind, namespace: str, name: str) -> KubernetesObject:
        """See `Cluster.guard_policy`."""
        return await self._server.get(_RESOURCES[kind], namespace, name)

    async def guard_policies(self) -> tuple[KubernetesObject, ...]:
        """See `Cluster.guard_policies`."""
        clusters = await self._server.list(_RESOURCES[Kind.CLUSTER_GUARD_POLICY], "")
        return (*clusters, *await self._watched(Kind.GUARD_POLICY))

    async def _watched(self, kind: Kind) -> tuple[KubernetesObject, ...]:
        """Every object of a kind in the namespaces this operator watches."""
        lists = [await self._server.list(_RESOURCES[kind], namespace) for namespace in self._namespaces or ("",)]
        return tuple(found for objects in lists for found in objects)

    async def guard_incident(self, namespace: str, name: str) -> KubernetesObject:
        """See `Cluster.guard_incident`."""
        return await self._server.get(_RESOURCES[Kind.GUARD_INCIDENT], namespace, name)

    async def run_requests(self, namespace: str) -> tuple[KubernetesObject, ...]:
        """See `Cluster.run_requests`."""
        try:
            return await self._server.list(_RESOURCES[Kind.RUN_REQUEST], namespace)
        except NotFound:
            return ()  # where definitions are installed by hand, the kind may come later than its operator

    async def journal_anchor(self, namespace: str, name: str) -> KubernetesObject | None:
        """See `Cluster.journal_anchor`."""
        try:
            return await self._server.get(_RESOURCES[Kind.JOURNAL_ANCHOR], namespace, name)
        except NotFound:
            return None

    async def journal_anchors(self) -> tuple[KubernetesObject, ...]:
        """See `Cluster.journal_anchors`."""
        try:
            return await self._watched(Kind.JOURNAL_ANCHOR)
        except NotFound:
            return ()

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], resource_version: str
    ) -> str:
        """See `Cluster.patch_status`."""
        path = _RESOURCES[kind].item(namespace, name, "status")
        return _version(await self._server.patch(path, {"status": status}, resource_version))

    async def patch_spec(
        self, kind: Kind, namespace: str, name: str, spec: Mapping[str, Any], resource_version: str
    ) -> str:
        """See `Cluster.patch_spec`."""
        path = _RESOURCES[kind].item(namespace, name)
        return _version(await self._server.patch(path, {"spec": spec}, resource_version))

    async def create(self, body: KubernetesObject) -> Created:
        """See `Cluster.create`."""
        kind, metadata = Kind(body["kind"]), body["metadata"]
        resource = _RESOURCES[kind]
        try:
            made = await self._server.create(resource, body)
        except AlreadyExists as error:
            try:
                return _found(body, await self._server.get(resource, metadata["namespace"], metadata["name"]))
            except NotFound:
                raise Conflict(f"{error}, and was gone a moment later") from None
        except InvalidResource:
            if kind is not Kind.SECRET:
                raise
            # The API server's words may quote the body.
            message = f"the API server refuses Secret {metadata['namespace']}/{metadata['name']}"
            raise InvalidResource(message) from None
        return Created(made["metadata"]["uid"], _version(made), fresh=True)

    async def get_job(self, namespace: str, name: str) -> KubernetesObject | None:
        """See `Cluster.get_job`."""
        try:
            return await self._server.get(_RESOURCES[Kind.JOB], namespace, name)
        except NotFound:
            return None

    async def pods(self, namespace: str, selector: str) -> tuple[PodView, ...]:
        """See `Cluster.pods`."""
        views = [pod_view(pod) for pod in await self._server.list(_PODS, namespace, selector)]
        late = next((view for view in views if view.waiting in ON_THE_WAY and not view.waiting_message), None)
        if late is not None:
            # One pod of a thousand says enough: they have one template, and a mount is tried for minutes.
            about = f"involvedObject.uid={late.uid},type={EventType.WARNING}"
            why = why_on_the_way(await self._server.list(_EVENTS, namespace, fields=about))
            views = [replace(view, waiting_message=why) if view is late else view for view in views]
        return tuple(sorted(views, key=lambda view: (view.index is None, view.index or 0, view.name)))

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int) -> None:
        """See `Cluster.delete_pod`."""
        await self._server.delete(_PODS.item(namespace, name), uid, gracePeriodSeconds=grace_seconds)

    async def secret(self, namespace: str, name: str) -> Mapping[str, str]:
        """See `Cluster.secret`."""
        stored = await self._server.get(_RESOURCES[Kind.SECRET], namespace, name)
        data: Mapping[str, str] = stored.get("data") or {}
        try:
            return {field: base64.b64decode(value).decode() for field, value in data.items()}
        except ValueError:
            # The decoder's words would quote the secret.
            message = f"Secret {namespace}/{name} holds bytes that are not text"
            raise InvalidResource(message) from None

    async def event(self, involved: KubernetesObject, kind: EventType, reason: str, message: str) -> None:
        """See `Cluster.event`."""
        body = _event(involved, kind, reason, message)
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        for _ in range(_EVENT_ATTEMPTS):
            try:
                await self._server.create(_EVENTS, body)
            except AlreadyExists:
                try:
                    stored = await self._server.get(_EVENTS, namespace, name)
                    again = {"count": int(stored.get("count") or 1) + 1, "lastTimestamp": body["lastTimestamp"]}
                    await self._server.patch(_EVENTS.item(namespace, name), again, _version(stored))
                except (Conflict, NotFound):
                    continue
            return
        message = f"Event {namespace}/{name} is being changed by others"
        raise Conflict(message)

    async def read_lease(self, namespace: str, name: str) -> KubernetesObject | None:
        """See `LeaseStore.read_lease`."""
        try:
            return await self._server.get(_LEASES, namespace, name)
        except NotFound:
            return None

    async def write_lease(self, body: KubernetesObject) -> KubernetesObject:
        """See `LeaseStore.write_lease`."""
        try:
            if body["metadata"].get("resourceVersion"):
                return await self._server.replace(_LEASES, body)
            return await self._server.create(_LEASES, body)
        except (AlreadyExists, NotFound) as error:
            raise Conflict(str(error)) from error


def _version(item: KubernetesObject) -> str:
    return item["metadata"]["resourceVersion"]


def _found(wanted: KubernetesObject, stored: KubernetesObject) -> Created:
    """An object that was there already, if it is the one that was to be made; else raises Conflict."""
    metadata = stored["metadata"]
    label = f"{stored['kind']} {metadata['namespace']}/{metadata['name']}"
    if _owner(stored) != _owner(wanted):
        message = f"{label} belongs to another owner; it is left alone until it is gone"
        raise Conflict(message)
    if metadata.get("deletionTimestamp"):
        message = f"{label} is being deleted; waiting until it is gone"
        raise Conflict(message)
    return Created(metadata["uid"], _version(stored), fresh=False)


def _owner(item: KubernetesObject) -> str | None:
    """The uid of the controlling owner, else of the only one."""
    references = item["metadata"].get("ownerReferences", ())
    for reference in references:
        if reference.get("controller"):
            return reference["uid"]
    return references[0]["uid"] if len(references) == 1 else None


def _event(involved: KubernetesObject, kind: EventType, reason: str, message: str) -> dict[str, Any]:
    """An Event whose name follows from its words, so that the same words find it again."""
    metadata, text = involved["metadata"], _printable(message)
    words = "\0".join((metadata["uid"], kind, reason, text))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:200]}.{hashlib.sha256(words.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": involved["apiVersion"],
            "kind": involved["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": kind.value,
        "reason": reason,
        "message": text,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": FIELD_MANAGER},
    }


def _printable(text: str) -> str:
    """Text that may come from a trainer, made safe for a terminal and short enough for an Event."""
    escaped = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return escaped if len(escaped) <= MAX_EVENT_CHARACTERS else f"{escaped[: MAX_EVENT_CHARACTERS - 1]}…"
