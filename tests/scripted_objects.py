"""The Lease and the JournalAnchor of a scripted run, as the API server keeps them: each write is an act of its own."""

from collections.abc import Callable, Mapping
from typing import Any

from scripted_world import ScriptedRun
from trimtab_contract.journal import record_hash
from trimtab_operator.adapters.ports import Created, Kind, KubernetesObject
from trimtab_operator.errors import ClusterUnavailable, Conflict


class MemoryLease:
    """Where the Lease is kept."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run

    async def read_lease(self, namespace: str, name: str) -> KubernetesObject | None:
        return self._run.lease_object

    async def write_lease(self, body: KubernetesObject) -> KubernetesObject:
        run = self._run

        def write() -> KubernetesObject | None:
            if _version(run.lease_object) != body["metadata"].get("resourceVersion"):
                return None
            run.lease_object = _versioned(run, body)
            return run.lease_object

        return _written(run, write, tells_apart=True)


class MemoryAnchors:
    """Where the anchor is kept. It never falls, as its own validation has it, and knows what the bucket holds."""

    def __init__(self, run: ScriptedRun) -> None:
        self._run = run

    async def training_job(self, _namespace: str, _name: str) -> KubernetesObject:
        return {"metadata": {"uid": ""}}

    async def journal_anchor(self, _namespace: str, _name: str) -> KubernetesObject | None:
        return self._run.anchor_object

    async def create(self, body: KubernetesObject) -> Created:
        run = self._run

        def write() -> Created:
            fresh = run.anchor_object is None
            if fresh:
                self._keep(body, body["spec"])
            return Created("uid", "1", fresh)

        return run.operation(write, away=ClusterUnavailable, denied=Conflict, ends_turn=False)

    async def patch_spec(
        self, _kind: Kind, _namespace: str, _name: str, spec: Mapping[str, Any], resource_version: str
    ) -> str:
        run = self._run

        def write() -> KubernetesObject | None:
            if run.anchor_object is None or _version(run.anchor_object) != resource_version:
                return None
            return self._keep(run.anchor_object, spec)

        return str(_version(_written(run, write)))

    def _keep(self, body: KubernetesObject, spec: Mapping[str, Any]) -> KubernetesObject:
        run = self._run
        known = run.anchor_object["spec"]["seq"] if run.anchor_object is not None else 0
        if spec["seq"] < known:
            run.violations.append(f"the anchor fell from record {known} to {spec['seq']}")
        if spec["seq"] not in run.store.bodies or record_hash(run.store.bodies[spec["seq"]]) != spec["hash"]:
            run.violations.append(f"the anchor knows a record {spec['seq']} that the bucket does not hold")
        given = {key: one for key, one in spec.items() if one is not None}
        run.anchored, run.anchor_object = spec["seq"], _versioned(run, {**body, "spec": given})
        return run.anchor_object


def _written(
    run: ScriptedRun, write: Callable[[], KubernetesObject | None], *, tells_apart: bool = False
) -> KubernetesObject:
    written = run.operation(write, away=ClusterUnavailable, denied=Conflict, ends_turn=False, tells_apart=tells_apart)
    if written is None:
        message = "the object has been modified"
        raise Conflict(message)
    return written


def _version(body: KubernetesObject | None) -> str | None:
    return body["metadata"]["resourceVersion"] if body is not None else None


def _versioned(run: ScriptedRun, body: KubernetesObject) -> KubernetesObject:
    run.versions += 1
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(run.versions)}}
