"""Whether a run behind a rollback trains as well as before the incident: more than that no rule fires. Pure.

Rules look for what they were written for. A run may be green and yet stand on another level, clip every gradient, or
train at half its speed, so its last records are compared with the healthy ones before the first bad step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean, median, pstdev

from trimtab_operator.extent import LARGEST_LOSS
from trimtab_operator.incidents import Vitals

BASELINE_RECORDS = 100
"""How many healthy records before the first bad step are the baseline."""
COMPARED_RECORDS = 20
"""How many records at the end of the probation are compared with it."""
MINIMUM_RECORDS = 8
"""With fewer values on either side nothing is compared."""
LOSS_STDS = 1.0
"""How many standard deviations of single records the mean loss may lie above the baseline's mean.

The mean of 20 independent records scatters by 0.22 of them, so this is far outside chance, and half of what the level
of a recovered run differs from that of a damaged one. There is no lower bound: below lies where training leads.
"""
CLIP_STANDARD_ERRORS, CLIP_TOLERANCE = 3.0, 0.1
"""By how much the rate of clipped gradients may rise: so many standard errors of the difference, and this much."""
MAX_EXTENSIONS = 2
"""How often a probation is made longer by its own length before a doubt is left to people."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is not as before: the numbers in a sentence. `harmful` says whether it is about what is trained."""

    message: str
    harmful: bool


def vitals(records: Iterable[Mapping[str, float]]) -> Vitals | None:
    """What records say by their scalars, oldest first; None when there is none."""
    scalars = tuple(records)
    if not scalars:
        return None
    losses = [loss for one in scalars if abs(loss := one.get("loss", float("nan"))) <= LARGEST_LOSS]
    ratios = [one["clip_ratio"] for one in scalars if isfinite(one.get("clip_ratio", float("nan")))]
    speeds = [one["tokens_per_second"] for one in scalars if isfinite(one.get("tokens_per_second", float("nan")))]
    return Vitals(
        records=len(losses),
        loss_mean=fmean(losses) if losses else None,
        loss_std=pstdev(losses) if losses else None,
        clip_records=len(ratios),
        clip_rate=sum(ratio < 1 for ratio in ratios) / len(ratios) if ratios else None,
        speed_records=len(speeds),
        tokens_per_second=median(speeds) if speeds else None,
    )


def doubts(before: Vitals | None, after: Vitals | None, min_throughput: float) -> tuple[Doubt, ...]:
    """What is worse than before the incident; nothing where too little was recorded to compare.

    `min_throughput` is the least share of the median throughput before the incident.
    """
    if before is None or after is None:
        return ()
    found = (_loss(before, after), _clips(before, after), _speed(before, after, min_throughput))
    return tuple(doubt for doubt in found if doubt)


def compared(before: Vitals | None, after: Vitals | None) -> str:
    """The comparison in a sentence; empty where there is none."""
    if before is None or after is None or min(before.records, after.records) < MINIMUM_RECORDS:
        return ""
    numbers = f"mean loss {after.loss_mean:.4f} over the last {after.records} records"
    numbers += f", {before.loss_mean:.4f} (std {before.loss_std:.4f}) over {before.records} before the incident"
    if before.tokens_per_second and after.tokens_per_second is not None:
        numbers += f"; {after.tokens_per_second / before.tokens_per_second:.0%} of the throughput"
    return numbers


def _loss(before: Vitals, after: Vitals) -> Doubt | None:
    if min(before.records, after.records) < MINIMUM_RECORDS:
        return None
    mean, std, now = before.loss_mean or 0.0, before.loss_std or 0.0, after.loss_mean or 0.0
    limit = mean + LOSS_STDS * std
    if now <= limit:
        return None
    message = f"the mean loss of the last {after.records} records is {now:.4f}, above {limit:.4f}"
    return Doubt(f"{message} (mean {mean:.4f}, std {std:.4f} over {before.records} before the incident)", harmful=True)


def _clips(before: Vitals, after: Vitals) -> Doubt | None:
    if min(before.clip_records, after.clip_records) < MINIMUM_RECORDS:
        return None
    was, now = before.clip_rate or 0.0, after.clip_rate or 0.0
    pooled = (was * before.clip_records + now * after.clip_records) / (before.clip_records + after.clip_records)
    error = sqrt(pooled * (1 - pooled) * (1 / before.clip_records + 1 / after.clip_records))
    if now <= was + CLIP_STANDARD_ERRORS * error + CLIP_TOLERANCE:
        return None
    return Doubt(f"{now:.0%} of the gradients are clipped, {was:.0%} were before the incident", harmful=True)


def _speed(before: Vitals, after: Vitals, min_throughput: float) -> Doubt | None:
    was, now = before.tokens_per_second, after.tokens_per_second
    if min(before.speed_records, after.speed_records) < MINIMUM_RECORDS or not was or now is None:
        return None
    if now >= min_throughput * was:
        return None
    message = f"{now:.0f} tokens a second are {now / was:.0%} of the {was:.0f} before the incident"
    return Doubt(message, harmful=False)
