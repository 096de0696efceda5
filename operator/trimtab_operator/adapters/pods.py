"""A pod as the API server shows it, reduced to what the operator decides from (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trimtab_operator.adapters.ports import KubernetesObject, PodView

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


ON_THE_WAY = frozenset({"ContainerCreating", "PodInitializing"})
"""What the kubelet calls a container with which nothing is wrong yet: it pulls the image, or mounts volumes."""

_NEVER_MADE = frozenset({"FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox"})
"""Events about a container that stays on its way, of which the pod itself says nothing."""


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


def why_on_the_way(events: Iterable[KubernetesObject]) -> str:
    """What the kubelet's Events say of a pod whose containers are not made; empty where it was said only once.

    A first try may fail for what is only late, such as a ConfigMap that the kubelet has not seen yet.
    """
    said = [one for one in events if one.get("reason") in _NEVER_MADE and _times(one) > 1]
    last = max(said, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""), default=None)
    return "" if last is None else f"{last['reason']}: {' '.join(str(last.get('message', '')).split())}"


def _times(event: KubernetesObject) -> int:
    series: Mapping[str, Any] = event.get("series") or {}
    return max(int(event.get("count") or 0), int(series.get("count") or 0))


def _waiting(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first wait that is more than the normal start, else the first one, else an empty one."""
    states: list[Mapping[str, Any]] = [container.get("state", {}).get("waiting", {}) for container in containers]
    waits = [state for state in states if state.get("reason")]
    return next((state for state in waits if state["reason"] not in ON_THE_WAY), waits[0] if waits else {})


def _index(metadata: Mapping[str, Any]) -> int | None:
    text = metadata.get("annotations", {}).get(_COMPLETION_INDEX, "")
    return int(text) if text.isdigit() else None
