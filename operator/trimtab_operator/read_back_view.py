"""The Job that reads checkpoints back, as Kubernetes shows it: what became of it, or what it waits for. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from trimtab_contract.errors import ContractError
from trimtab_contract.read_back import ReadBackAnswer, decode_report

from trimtab_operator.adapters.ports import KubernetesObject, PodView
from trimtab_operator.kubernetes_view import job_ended, pods_trouble
from trimtab_operator.observation import ReadBackOutcome
from trimtab_operator.read_back_workload import MAKING_SECONDS, patience_seconds
from trimtab_operator.run_state import ReadBackOrder


def outcome_of(
    order: ReadBackOrder, name: str, job: KubernetesObject | None, pods: Sequence[PodView], now: float
) -> ReadBackOutcome | None:
    """What became of an order by `now`, in seconds since the epoch; None while its Job is to be waited for, or made.

    Only words of a pod that names this Job count, whatever else stands in its termination message.
    """
    outcome = ReadBackOutcome(number=order.number, job=name)
    patience = patience_seconds(order) if job is not None else MAKING_SECONDS
    if job is not None and job_ended(job):
        node = next((pod.node for pod in reversed(pods) if _answers(name, pod)), "")
        answers = tuple(answer for pod in pods for answer in _answers(name, pod))
        return replace(outcome, answers=answers, node=node, error="" if answers else _why(job, pods))
    if now <= order.since + patience:
        return None
    left = "is gone, or never was there" if job is None else f"is not over after {patience} s"
    return replace(outcome, error=f"Job {name} {left}")


def begun(pods: Sequence[PodView]) -> bool:
    """Whether a pod of the Job has begun to read."""
    return any(pod.phase not in {"", "Pending"} for pod in pods)


def waits(name: str, pods: Sequence[PodView]) -> str:
    """What keeps the Job's pod from starting, in words; empty while nothing does."""
    reason, trouble = pods_trouble(pods)
    return f"Job {name}: {trouble}" if reason is not None else ""


def _answers(name: str, pod: PodView) -> tuple[ReadBackAnswer, ...]:
    found: list[ReadBackAnswer] = []
    for line in (line for text in pod.termination_messages for line in text.splitlines()):
        try:
            report = decode_report(line)
        except ContractError:
            continue  # the kernel and the runtime write there, too
        found += report.answers if report.job == name else ()
    return tuple(found)


def _why(job: KubernetesObject, pods: Sequence[PodView]) -> str:
    """Why a Job that has ended says nothing."""
    _, trouble = pods_trouble(pods)
    failed = [one for one in job.get("status", {}).get("conditions") or () if one.get("type") == "Failed"]
    told = trouble or "; ".join(str(one.get("message") or one.get("reason")) for one in failed)
    return f"Job {job['metadata']['name']} has said nothing" + (f": {told}" if told else "")
