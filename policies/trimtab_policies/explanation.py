"""A verdict in plain words, with its numbers."""

import math

from trimtab_policies.checks import DEFAULT_NO_DATA_FOR
from trimtab_policies.rules import OnNoData, Rule
from trimtab_policies.verdicts import Reason, State, Verdict

_AXES = {
    "qk_max_logit": ("layer", "head"),
    "qk_max_logit_bound": ("layer", "head"),
    "qk_clip_gamma": ("layer", "head"),
    "qk_clip_rate": ("layer", "head"),
    "qk_clip_smallest": ("layer", "head"),
    "layer_weight_norm": ("layer",),
    "layer_momentum_norm": ("layer",),
    "layer_spectral_norm": ("layer",),
    "layer_update_rms": ("layer",),
    "layer_router_entropy": ("layer",),
    "expert_load": ("layer", "expert"),
    "dropped_tokens": ("layer",),
    "group_grad_norm": ("group",),
    "group_clip_ratio": ("group",),
}
"""What the axes of the known vectors are called."""


def explain(verdict: Verdict) -> str:
    """One sentence: what was seen, what it was compared with, and what that means for the rule."""
    finding, rule, reason = verdict.finding, verdict.rule, verdict.reason
    held_back = reason in {Reason.NOT_YET_ARMED, Reason.NOT_YET_IN_FORCE, Reason.IN_GRACE}
    if finding.observation is None and finding.cause is None and not held_back:
        return finding.note or f"{rule.metric} is absent from the record"
    compared = finding.note if finding.observation is None else _comparison(verdict)
    match reason:
        case Reason.NOT_YET_ARMED:
            return f"{compared}; not judged up to step {rule.after_steps} (afterSteps)"
        case Reason.NOT_YET_IN_FORCE:
            return f"{compared}; recorded before the policy was in force"
        case Reason.IN_GRACE:
            return f"{compared}; not judged for {rule.grace_steps} steps after a resume (graceSteps)"
        case Reason.LEVEL_SHIFT:
            return f"{compared}; the baseline was rebuilt on the new level after its longest freeze"
        case _ if verdict.streak:
            times = "1 record" if verdict.streak == 1 else f"{verdict.streak} records{_spread(rule)}"
            wanted = f" of {rule.for_records}" if verdict.streak < rule.for_records else ""
            return f"{compared}, {times}{wanted} since step {verdict.first_bad_step}"
        case _:
            return compared


def _spread(rule: Rule) -> str:
    return " in a row" if rule.within_records is None else f" of the last {rule.within_records}"


def absence_rule(rule: Rule) -> str:
    """What follows when the rule's metric stays away; empty where nothing does."""
    if rule.on_no_data is OnNoData.IGNORE:
        return ""
    deed = "pauses the run" if rule.on_no_data is OnNoData.PAUSE else "counts as a breach"
    return f"no {rule.metric} for {rule.no_data_for or DEFAULT_NO_DATA_FOR} {deed}"


def element_name(metric: str, element: tuple[int, ...]) -> str:
    """The element as people call it, such as `layer 7 head 12`; indices count from 0."""
    axes = _AXES.get(metric, ())
    if len(axes) != len(element):
        return f"element {list(element)}"
    return " ".join(f"{axis} {index}" for axis, index in zip(axes, element, strict=True))


def subject(rule: Rule) -> str:
    """What the rule looks at, such as `fraction of qk_clip_gamma below 1`."""
    metric, reduce = rule.metric or "", rule.reduce
    if reduce is None:
        return metric
    for name in ("fraction", "count", "longest_streak"):
        for side in ("above", "below"):
            limit = getattr(reduce, f"{name}_{side}")
            if limit is not None:
                return f"{name.replace('_', ' ')} of {metric} {side} {limit:g}"
    if reduce.quantile is not None:
        return f"{reduce.quantile:g} quantile of {metric}"
    return f"{'max' if reduce.max else 'min' if reduce.min else 'mean'} of {metric}"


def _comparison(verdict: Verdict) -> str:
    value, rule, comparison = verdict.observed, verdict.rule, verdict.comparison
    if value is None or comparison is None:
        return verdict.finding.note
    seen = f"{subject(rule)} {value:.4g}"
    if verdict.element is not None:
        seen += f" at {element_name(rule.metric or '', verdict.element)}"
    if not math.isfinite(value):
        return f"{seen} is not finite"
    threshold = comparison.threshold
    if threshold is None:
        return f"{seen}; {comparison.summary}" if comparison.summary else f"{seen} is finite"
    if rule.divergence is not None:
        relation = ">" if verdict.finding.assessment and verdict.finding.assessment.breach else "<="
        return f"{seen}; {relation} {threshold:.4g}: {comparison.summary}"
    relation = "=" if value == threshold else "<" if value < threshold else ">"
    text = f"{seen} {relation} {threshold:.4g}"
    return f"{text} ({comparison.summary})" if comparison.summary else text


def is_notable(verdict: Verdict) -> bool:
    """Whether a person would want to hear of it: firing, blind or broken, or a shift of level."""
    return verdict.state in {State.FIRING, State.NO_DATA, State.ERROR} or verdict.reason is Reason.LEVEL_SHIFT
