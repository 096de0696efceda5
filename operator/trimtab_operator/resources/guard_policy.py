"""GuardPolicy: the schema of the policies' own models, with the rules that span fields as CEL.

The same rules are checked in `trimtab_policies.checks`; here the API server states them before anything is stored.
"""

from collections.abc import Mapping

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS
from trimtab_policies.checks import (
    COMPOSITE_FIELDS,
    DETECTOR_FIELDS,
    FRACTION_FIELDS,
    HEALTHY_WINDOWS_AFTER_DAMAGE,
    REDUCTION_FIELDS,
)
from trimtab_policies.policy import GuardPolicySpec

from trimtab_operator.resources.schema import Schema, add_rules, at, structural_schema
from trimtab_operator.resources.values import Conditions, Count, Hash, LongText, Resource, list_map, validation

_MAX_METRIC_NAME = 63
"""What the metric name's pattern allows; stated again because the cost estimate does not read patterns."""


class GuardPolicyStatus(Resource):
    """What the operator thinks of the newest generation."""

    observed_generation: Count | None = None
    hash: Hash | None = None
    """SHA-256 of the last valid generation, the one in force."""
    message: LongText | None = None
    conditions: Conditions | None = None


def policy_status_schema() -> Schema:
    """The structural schema of `status`."""
    return structural_schema(GuardPolicyStatus)


def policy_spec_schema() -> Schema:
    """The structural schema of `spec`, its CEL rules included."""
    schema = structural_schema(GuardPolicySpec)
    at(schema, "rules[].metric")["maxLength"] = _MAX_METRIC_NAME
    at(schema, "rules").update(list_map("name"))
    add_rules(schema, "rules[]", *_rule_rules())
    add_rules(
        schema,
        "rules[].range",
        validation("has(self.min) || has(self.max)", "must have min or max or both"),
        validation("!has(self.min) || !has(self.max) || self.min <= self.max", "min must be at most max"),
    )
    add_rules(
        schema,
        "rules[].spike.baseline",
        validation(
            "self.minRecords <= self.records",
            "must be at most records, else the baseline never fills",
            fieldPath=".minRecords",
        ),
    )
    add_rules(
        schema,
        "rules[].reduce",
        validation(_exactly_one(REDUCTION_FIELDS), f"must have exactly one of {', '.join(REDUCTION_FIELDS)}"),
        validation(
            f"!has(self.minCount) || {_any(FRACTION_FIELDS)}",
            f"belongs to {' and '.join(FRACTION_FIELDS)}: remove it",
            fieldPath=".minCount",
        ),
    )
    add_rules(
        schema,
        "rules[].spike",
        validation(_exactly_one(("sigma", "ratio")), "must have exactly one of sigma and ratio"),
    )
    add_rules(
        schema,
        "rules[].divergence",
        validation(
            "self.settleRecords <= self.lookbackRecords",
            "must be at most lookbackRecords, else no level ever settles within it",
            fieldPath=".settleRecords",
        ),
    )
    add_rules(
        schema,
        "remediation",
        validation(
            "!has(self.approvalDeadline) || self.approval == 'Required'",
            "belongs to approval Required: set that or remove it",
            fieldPath=".approvalDeadline",
        ),
        validation(
            "!has(self.approvalDeadline) || self.approvalDeadline.matches('[1-9]')",
            "must be longer than zero",
            fieldPath=".approvalDeadline",
        ),
    )
    schema["x-kubernetes-validations"] = [
        *_composite_rules(),
        validation(
            "self.rules.all(rule, rule.action != 'Rollback' || "
            "self.remediation.skipBatches.probe >= (has(rule.withinRecords) ? rule.withinRecords : rule.forRecords) + "
            f"{HEALTHY_WINDOWS_AFTER_DAMAGE})",
            "must be at least forRecords (or withinRecords) of every rule that rolls back, plus "
            f"{HEALTHY_WINDOWS_AFTER_DAMAGE}: so many healthy windows end the damage",
            fieldPath=".remediation.skipBatches.probe",
        ),
        validation(
            "self.rules.all(rule, rule.action != 'Rollback') || "
            "self.remediation.skipBatches.before < self.remediation.margin",
            "must be less than margin: windows from before the checkpoint cannot be skipped any more",
            fieldPath=".remediation.skipBatches.before",
        ),
    ]
    return schema


def _rule_rules() -> tuple[Mapping[str, str], ...]:
    return (
        validation(_exactly_one(DETECTOR_FIELDS), f"must have exactly one detector: {' or '.join(DETECTOR_FIELDS)}"),
        validation(
            "!has(self.spike) || self.forRecords <= self.spike.baseline.maxFreeze",
            "must be at most spike.baseline.maxFreeze, else the rule could never fire",
            fieldPath=".forRecords",
        ),
        validation(
            "!has(self.divergence) || self.forRecords <= self.divergence.maxFreeze",
            "must be at most divergence.maxFreeze, else the rule could never fire",
            fieldPath=".forRecords",
        ),
        validation(
            "!has(self.withinRecords) || self.withinRecords >= self.forRecords",
            "must be at least forRecords",
            fieldPath=".withinRecords",
        ),
        validation(
            "!has(self.stale) || !has(self.withinRecords)",
            "must be left out with stale, which counts time and no records",
            fieldPath=".withinRecords",
        ),
        validation(
            f"has(self.metric) || has(self.stale) || {_any(COMPOSITE_FIELDS)}",
            "must have a metric, which this detector looks at",
        ),
        validation(
            f"!({_any(COMPOSITE_FIELDS)}) || !(has(self.metric) || has(self.reduce))",
            "must have neither metric nor reduce: a composite is made of other rules, which have metrics of their own",
        ),
        validation(
            f"!has(self.metric) || has(self.reduce) || has(self.stale) || !(self.metric in {_texts(KNOWN_VECTORS)})",
            "is a vector: add reduce, which turns it into one number",
            fieldPath=".metric",
        ),
        validation(
            "!has(self.stale) || !has(self.reduce)", "must be left out: stale looks at no value", fieldPath=".reduce"
        ),
        validation(
            "!has(self.stale) || self.action != 'Rollback'",
            "must be Record, Notify, Pause or Stop with stale: a step that was never recorded cannot be undone",
            fieldPath=".action",
        ),
        validation(
            "!has(self.stale) || self.forRecords == 1",
            "must be left out with stale, which counts time and no records",
            fieldPath=".forRecords",
        ),
        validation(
            f"self.onNoData == 'Ignore' || !(has(self.stale) || {_any(COMPOSITE_FIELDS)})",
            "must be Ignore: this rule has no value of its own that could be absent",
            fieldPath=".onNoData",
        ),
        validation(
            "!has(self.noDataFor) || self.onNoData != 'Ignore'",
            "belongs to onNoData Pause or Breach: set one of them or remove it",
            fieldPath=".noDataFor",
        ),
        validation(
            f"!has(self.reduce) || !has(self.metric) || !(self.metric in {_texts(KNOWN_SCALARS)})",
            "must be left out: the metric is a scalar",
            fieldPath=".reduce",
        ),
    )


def _composite_rules() -> tuple[Mapping[str, str], ...]:
    simple = " && ".join(f"!has(other.{field})" for field in (*COMPOSITE_FIELDS, "stale"))
    return tuple(
        validation(
            f"self.rules.all(rule, !has(rule.{field}) || (rule.{field}.size() >= 2 && "
            f"rule.{field}.all(name, self.rules.exists_one(other, other.name == name && {simple}))))",
            f"{field} must name at least two rules of this policy that are no composites themselves and not stale",
            fieldPath=".rules",
        )
        for field in COMPOSITE_FIELDS
    )


def _any(fields: tuple[str, ...]) -> str:
    return " || ".join(f"has(self.{field})" for field in fields)


def _exactly_one(fields: tuple[str, ...]) -> str:
    return f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(given, given).size() == 1"


def _texts(values: tuple[str, ...]) -> str:
    return f"[{', '.join(repr(value) for value in values)}]"
