"""Tells a policy's owner whether the newest text is valid. What judges a run is in that run's journal, not here."""

from collections.abc import Mapping
from typing import Any

from trimtab_policies.errors import InvalidPolicy
from trimtab_policies.policy import parse_policy, policy_hash

from trimtab_operator.adapters.ports import Cluster, Kind, KubernetesObject
from trimtab_operator.journal import wall_time
from trimtab_operator.reasons import ConditionType, Reason
from trimtab_operator.status import Status, condition


async def report_policy(cluster: Cluster, body: KubernetesObject) -> None:
    """Write the condition Accepted and the hash of the last valid text, when they changed.

    Raises temporary errors, and NotFound when the policy is gone.
    """
    metadata = body["metadata"]
    before: Mapping[str, Any] = body.get("status") or {}
    status = policy_status(body, wall_time())
    if all(before.get(name) == value for name, value in status.items()):
        return
    namespace = metadata.get("namespace", "")
    await cluster.patch_status(Kind(body["kind"]), namespace, metadata["name"], status, metadata["resourceVersion"])


def policy_status(body: KubernetesObject, now: str) -> Status:
    """The status of a policy; every error of an invalid text at once."""
    before: Mapping[str, Any] = body.get("status") or {}
    generation = int(body["metadata"]["generation"])
    known: list[Status] = list(before.get("conditions") or [])
    try:
        valid, problem = policy_hash(parse_policy(body.get("spec"))), ""
    except InvalidPolicy as error:
        valid, problem = before.get("hash"), str(error)
    reason = Reason.POLICY_INVALID if problem else Reason.POLICY_ACCEPTED
    row = (ConditionType.ACCEPTED, not problem, reason, problem)
    return {
        "observedGeneration": generation,
        "hash": valid,
        "message": problem[:1000] or None,
        "conditions": [condition(row, generation, now, known)],
    }
