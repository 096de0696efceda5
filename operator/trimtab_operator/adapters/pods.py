"""A pod as the API server shows it, reduced to what the operator decides from (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab_operator.adapters.ports import KubernetesObject, PodView

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def pod_view(pod: KubernetesObject) -> PodView:
    """Reduce a pod. Messages of its containers come in order: earlier terminations, then the last one."""
    metadata: Mapping[str, Any] = pod["metadata"]
    status: Mapping[str, Any] = pod.get("status", {})
    containers: list[Mapping[str, Any]] = [
        *status.get("initContainerStatuses", ()),
        *status.get("containerStatuses", ()),
    ]
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    disruption = _true(conditions.get("DisruptionTarget"))
    scheduled: Mapping[str, Any] = conditions.get("PodScheduled", {})
    ended = [state for container in containers for state in _terminations(container)]
    waiting = _waiting(containers)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        index=_index(metadata),
        node=pod.get("spec", {}).get("nodeName", ""),
        phase=status.get("phase", ""),
        deleted="deletionTimestamp" in metadata,
        ready=bool(_true(conditions.get("Ready"))),
        exit_codes=tuple(int(state["exitCode"]) for state in ended if "exitCode" in state),
        termination_messages=tuple(state["message"] for state in ended if state.get("message")),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        image_id=next((container["imageID"] for container in reversed(containers) if container.get("imageID")), ""),
        reason=status.get("reason") or disruption.get("reason", ""),
        message=status.get("message") or disruption.get("message", ""),
    )


def _true(condition: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The condition if it holds, else an empty one."""
    return condition if condition and condition.get("status") == "True" else {}


def _terminations(container: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for state in (container.get("lastState", {}), container.get("state", {})):
        if "terminated" in state:
            yield state["terminated"]


def _waiting(containers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first wait that is more than the normal start, else an empty one."""
    for container in containers:
        state: Mapping[str, Any] = container.get("state", {}).get("waiting", {})
        if state.get("reason", "") not in {"", "ContainerCreating", "PodInitializing"}:
            return state
    return {}


def _index(metadata: Mapping[str, Any]) -> int | None:
    text = metadata.get("annotations", {}).get(_COMPLETION_INDEX, "")
    return int(text) if text.isdigit() else None
