"""The evidence of all logs -> what is proposed."""

from collections.abc import Sequence

import msgspec

from trimtab_policies.calibration.logits import LogitChoice, choose_threshold
from trimtab_policies.calibration.spikes import METRICS, SpikeChoice, choose
from trimtab_policies.calibration.survey import LogEvidence
from trimtab_policies.errors import PolicyError


class NothingToPropose(PolicyError):
    """The logs allow no proposal; `reasons` are sentences without a full stop."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(reasons))


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What is proposed, and in `refused` what is not and why. `logs` and `records` are what it rests on."""

    target: float
    logs: tuple[str, ...]
    records: int
    spikes: tuple[SpikeChoice, ...]
    logits: LogitChoice | None
    refused: tuple[str, ...]


def propose(logs: Sequence[LogEvidence], target: float) -> Proposal:
    """Thresholds with at most `target` firings per 10,000 steps.

    Raises NothingToPropose naming every log that is not healthy, or why no threshold could be found.
    """
    unhealthy = [f"{log.name} {log.problem}" for log in logs if log.problem]
    if unhealthy:
        raise NothingToPropose(unhealthy)
    refused: list[str] = []
    spikes: list[SpikeChoice] = []
    for metric in METRICS:
        counts = [log.spikes[metric] for log in logs]
        if not any(counts) and metric != METRICS[0]:
            continue
        choice = choose(metric, counts, target)
        if isinstance(choice, str):
            refused.append(choice)
        else:
            spikes.append(choice)
    evidence = [log.logits for log in logs]
    clipped = [
        f"QK-Clip threshold: {log.name} {log.logits.refusal}"
        for log in logs
        if log.logits is not None and log.logits.refusal
    ]
    refused += clipped
    logits = None if clipped else choose_threshold(evidence)
    if not spikes and logits is None:
        raise NothingToPropose(refused)
    return Proposal(
        target=target,
        logs=tuple(log.name for log in logs),
        records=sum(log.records for log in logs),
        spikes=tuple(spikes),
        logits=logits,
        refused=tuple(refused),
    )
