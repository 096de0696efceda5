"""GuardPolicy: the schema of the policies' own models, with the rules that span fields as CEL.

The same rules are checked in `trimtab_policies.checks`; here the API server states them before anything is stored.
"""

from collections.abc import Mapping

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS
from trimtab_policies.checks import DETECTOR_FIELDS, HEALTHY_WINDOWS_AFTER_DAMAGE, REDUCTION_FIELDS
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
            "!has(self.minCount) || has(self.fractionBelow)",
            "belongs to fractionBelow: remove it",
            fieldPath=".minCount",
        ),
    )
    schema["x-kubernetes-validations"] = [
        validation(
            "self.rules.all(rule, rule.action != 'Rollback' || "
            f"self.remediation.skipBatches.probe >= rule.forRecords + {HEALTHY_WINDOWS_AFTER_DAMAGE})",
            "must be at least forRecords of every rule that rolls back, plus "
            f"{HEALTHY_WINDOWS_AFTER_DAMAGE}: so many healthy windows end the damage",
            fieldPath=".remediation.skipBatches.probe",
        )
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
            f"has(self.reduce) || !(self.metric in {_texts(KNOWN_VECTORS)})",
            "is a vector: add reduce, which turns it into one number",
            fieldPath=".metric",
        ),
        validation(
            f"!has(self.reduce) || !(self.metric in {_texts(KNOWN_SCALARS)})",
            "must be left out: the metric is a scalar",
            fieldPath=".reduce",
        ),
    )


def _exactly_one(fields: tuple[str, ...]) -> str:
    return f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(given, given).size() == 1"


def _texts(values: tuple[str, ...]) -> str:
    return f"[{', '.join(repr(value) for value in values)}]"
