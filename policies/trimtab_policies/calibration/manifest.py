"""A proposal -> a GuardPolicy manifest whose comments are its evidence."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trimtab_policies.calibration.logits import MARGIN, MAXIMA, QUANTILE, LogitChoice
from trimtab_policies.calibration.proposal import Proposal
from trimtab_policies.calibration.spikes import AFTER_STEPS, CONFIDENCE, SpikeChoice
from trimtab_policies.policy import parse_policy
from trimtab_policies.rules import Action

MOST_ROLLBACKS = 1.0
"""A rule rolls back only if it is shown to do so without need at most so often in 10,000 steps."""

_WIDTH = 116

Rule = Mapping[str, Any]


def manifest(proposal: Proposal, name: str = "calibrated") -> str:
    """The manifest as YAML text; its spec is one that `parse_policy` accepts."""
    rules = list(_rules(proposal))
    parse_policy({"mode": "Enforce", "rules": [rule for _, rule in rules]})
    logs = ", ".join(map(json.dumps, proposal.logs))
    lines = _comment(
        f"Proposed by `trimtab policy calibrate` from {proposal.records:,} records of healthy runs ({logs}), for at "
        f"most {proposal.target:g} false alarms per 10,000 steps and rule. For use beside `default`."
    )
    lines += [line for reason in proposal.refused for line in _comment(f"Not proposed: {json.dumps(reason)[1:-1]}.")]
    lines += ["apiVersion: trimtab.dev/v1alpha1", "kind: GuardPolicy", "metadata:", f"  name: {name}"]
    lines += ["spec:", "  mode: Enforce", "  rules:"]
    for evidence, rule in rules:
        lines += _comment(evidence, "  ")
        lines += [
            f"  {'-' if index == 0 else ' '} {field}: {_flow(value)}"
            for index, (field, value) in enumerate(rule.items())
        ]
    return "\n".join(lines) + "\n"


def action_of(choice: SpikeChoice) -> Action:
    """A rule may act as far as its evidence carries; a gradient norm is news and no damage."""
    shown = choice.supported and choice.firings.bound <= MOST_ROLLBACKS
    return Action.ROLLBACK if choice.metric == "loss" and shown else Action.NOTIFY


def sentences(choice: SpikeChoice) -> str:
    """The evidence for a spike rule."""
    firings = choice.firings
    said = (
        f"{firings.events} firings in {firings.records:,} healthy records, which stand for {firings.steps:,} steps: "
        f"{firings.rate:.3g} per 10,000 steps; at most {firings.bound:.3g} with {CONFIDENCE:.0%} confidence (corrected "
        "for the choice; firings taken as independent)."
    )
    if choice.supported:
        return said
    return (
        f"{said} These records cannot show the target of {choice.target:g}: that takes {choice.steps_missing:,} more "
        "steps without a firing."
    )


def logit_sentences(choice: LogitChoice) -> str:
    """The evidence for a threshold of QK-Clip."""
    records = sum(one.records for one in choice.by_log if one is not None)
    unknown = any(one is not None and not one.gamma_known for one in choice.by_log)
    said = (
        f"{QUANTILE:.1%} of the heads' largest logits lie below {choice.quantile:.3g} in the second half of {records:,}"
        f" records, the largest is {choice.largest:.3g}; the threshold is {MARGIN:g} times the former."
    )
    return f"{said} No qk_clip_gamma says that nothing was clipped." if unknown else said


def _rules(proposal: Proposal) -> Iterator[tuple[str, Rule]]:
    for choice in proposal.spikes:
        yield sentences(choice), _spike_rule(choice)
    if proposal.logits is not None:
        yield from _logit_rules(proposal.logits)


def _spike_rule(choice: SpikeChoice) -> Rule:
    setting = choice.setting
    return {
        "name": f"{choice.metric.replace('_', '-')}-spike-calibrated",
        "metric": choice.metric,
        "spike": {"baseline": {"statistic": setting.statistic}, "sigma": setting.sigma},
        "forRecords": setting.for_records,
        "afterSteps": AFTER_STEPS,
        "action": action_of(choice).value,
    }


def _logit_rules(choice: LogitChoice) -> Iterator[tuple[str, Rule]]:
    of_largest = {"metric": MAXIMA, "reduce": {"max": True}}
    rising = {"records": 5, "settleRecords": 10, "lookbackRecords": 1000}
    rising |= {"relative": 0.5, "absolute": float(f"{choice.tau / 5:.3g}"), "sigma": 6}
    yield (
        f"Set the trainer's optimizer.qkClipThreshold to {choice.tau:g}. {logit_sentences(choice)}",
        {"name": "qk-logit-growth-calibrated", "allOf": ["qk-logit-high-calibrated", "qk-logit-rising-calibrated"]}
        | {"action": "Notify"},
    )
    yield (
        "At least four fifths of the threshold, and above every logit in the second half of the logs.",
        {"name": "qk-logit-high-calibrated", **of_largest, "range": {"max": choice.high}, "forRecords": 5}
        | {"action": "Record"},
    )
    yield (
        "Half as high again as the best level of late.",
        {"name": "qk-logit-rising-calibrated", **of_largest, "divergence": rising, "forRecords": 3}
        | {"action": "Record"},
    )
    yield (
        "Growth that clipping does not hold.",
        {"name": "qk-logit-runaway-calibrated", **of_largest, "range": {"max": choice.runaway}, "forRecords": 5}
        | {"action": "Pause"},
    )


def _comment(text: str, indent: str = "") -> list[str]:
    prefix = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False)


def _flow(value: object) -> str:
    """A value as YAML writes it in one line."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, cast("list[object]", value))) + "]"
    return value if isinstance(value, str) else json.dumps(value)
