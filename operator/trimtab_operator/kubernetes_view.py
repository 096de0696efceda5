"""The newest world as Kubernetes shows it, reduced to what decisions need. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab_contract.directives import TerminationMessage, decode
from trimtab_contract.errors import MalformedDirective

from trimtab_operator.adapters.pods import ON_THE_WAY
from trimtab_operator.adapters.ports import KubernetesObject, PodView
from trimtab_operator.observation import PodPlace, Pods, PodsState
from trimtab_operator.reasons import Reason

_DEAD = frozenset({"Succeeded", "Failed"})
"""Any other phase, `Unknown` on a lost node too, may still have a process behind it."""
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_NO_VOLUME = ("FailedMount", "FailedMapVolume", "FailedAttachVolume")
_EVICTED = frozenset(
    {"Evicted", "PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "Terminated"}
)


def pods_of_world(world: int, job: KubernetesObject | None, pods: Sequence[PodView]) -> Pods:
    """Summarise the pods of `world`. A Job that failed or completed has no process left once none of its pods runs.

    `names` are the pods that live and were not told to end yet.
    """
    alive = [pod for pod in pods if pod.phase not in _DEAD]
    dead = [pod for pod in pods if pod.phase in _DEAD]
    messages = tuple(message for pod in pods for message in _messages(pod))
    reason, trouble = pods_trouble(pods)
    return Pods(
        world=world,
        state=_state(job, alive, dead),
        failed=any(pod.phase == "Failed" for pod in dead),
        evicted=any(pod.reason in _EVICTED for pod in pods),
        messages=messages,
        trouble=trouble,
        trouble_reason=reason,
        names=tuple(pod.name for pod in alive if not pod.deleted),
        wanted=_wanted(job),
        made=len(pods),
        scheduled=sum(bool(pod.node) for pod in pods),
        running=sum(pod.phase == "Running" for pod in pods),
        starting=next((f"pod {pod.name}: {pod.waiting}" for pod in pods if pod.waiting in ON_THE_WAY), ""),
        places=tuple(sorted(PodPlace(_index(pod), pod.name, pod.node, pod.image_id) for pod in pods)),
    )


def _wanted(job: KubernetesObject | None) -> int:
    spec: Mapping[str, Any] = (job or {}).get("spec") or {}
    return int(spec.get("completions") or 0)


def _index(pod: PodView) -> int:
    return -1 if pod.index is None else pod.index


def owned_by(body: KubernetesObject, uid: str) -> bool:
    """Whether an object belongs to the owner with this uid."""
    owners: list[Mapping[str, Any]] = body["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid for owner in owners)


def _state(job: KubernetesObject | None, alive: Sequence[PodView], dead: Sequence[PodView]) -> PodsState:
    ended = job is not None and job_ended(job)
    if alive:
        if dead or ended or any(pod.deleted for pod in alive):
            return PodsState.ENDING
        return PodsState.LIVE if all(pod.phase == "Running" for pod in alive) else PodsState.STARTING
    if ended:
        return PodsState.GONE
    if job is None:
        return PodsState.ABSENT
    return PodsState.ENDING if dead else PodsState.STARTING


def job_ended(job: KubernetesObject) -> bool:
    """Whether a Job has completed or failed."""
    status: Mapping[str, Any] = job.get("status") or {}
    conditions: list[Mapping[str, Any]] = status.get("conditions") or []
    return any(item.get("type") in {"Failed", "Complete"} and item.get("status") == "True" for item in conditions)


def _messages(pod: PodView) -> list[TerminationMessage]:
    found: list[TerminationMessage] = []
    for text in pod.termination_messages:
        for line in text.splitlines():
            try:
                found.append(decode(TerminationMessage, line))
            except MalformedDirective:
                continue  # torchrun and the kernel write there too; only our own JSON line counts
    return found


def pods_trouble(pods: Sequence[PodView]) -> tuple[Reason | None, str]:
    """What keeps a pod from starting, in words and as a reason; else how one ended, without a reason."""
    for pod in pods:
        said = f": {_once(pod.waiting_message)}" if pod.waiting_message else ""
        if pod.waiting in _NO_IMAGE:
            why = f"pod {pod.name} cannot get its image: {pod.waiting}: correct spec.trainer.image{said}"
            return Reason.IMAGE_PULL_FAILED, why
        if pod.waiting and (pod.waiting not in ON_THE_WAY or said):
            mend = ": correct spec.podTemplate.volumes" if pod.waiting_message.startswith(_NO_VOLUME) else ""
            return Reason.CONTAINER_NOT_STARTED, f"pod {pod.name} waits: {pod.waiting}{mend}{said}"
        if pod.unschedulable:
            return Reason.UNSCHEDULABLE, f"pod {pod.name} cannot be scheduled: {_once(pod.unschedulable)}"
    for pod in pods:
        if any(code != 0 for code in pod.exit_codes):
            codes = ", ".join(str(code) for code in pod.exit_codes)
            return None, f"pod {pod.name} ended with exit code {codes}" + (f" ({pod.reason})" if pod.reason else "")
    return None, ""


def _once(text: str) -> str:
    """Words of Kubernetes without sentences that only repeat the end of the one before, as the scheduler's do."""
    kept: list[str] = []
    for sentence in text.strip().removesuffix(".").split(". "):
        if not (kept and kept[-1].endswith(sentence)):
            kept.append(sentence)
    return ". ".join(kept)
