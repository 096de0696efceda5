"""The CustomResourceDefinitions, and the CEL rules that span more than one field."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trimtab_operator.resources.guard_incident import GuardIncidentSpec, GuardIncidentStatus
from trimtab_operator.resources.guard_policy import policy_spec_schema, policy_status_schema
from trimtab_operator.resources.journal_anchor import JournalAnchorSpec
from trimtab_operator.resources.run_request import RunRequestSpec, RunRequestStatus
from trimtab_operator.resources.schema import Schema, structural_schema
from trimtab_operator.resources.training_job import (
    MAX_NAME,
    NAME_PATTERN,
    POSITION_FIELDS,
    SAMPLE_FIELDS,
    TrainingJobSpec,
    TrainingJobStatus,
)
from trimtab_operator.resources.values import validation

GROUP = "trimtab.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; with a `priority` only under `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def render(self) -> dict[str, Any]:
        """As the CustomResourceDefinition spells it."""
        column = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return column | ({"priority": self.priority} if self.priority else {})


@dataclass(frozen=True, slots=True)
class _Kind:
    kind: str
    plural: str
    short: str
    description: str
    spec: Callable[[], Schema]
    columns: tuple[Column, ...]
    status: Callable[[], Schema] | None = None
    rules: tuple[Mapping[str, str], ...] = ()
    scope: str = "Namespaced"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

_POLICY_COLUMNS = (
    Column("Mode", ".spec.mode"),
    Column("Accepted", ".status.conditions[?(@.type=='Accepted')].status"),
    Column("Message", ".status.message", priority=1),
    _AGE,
)

_AT_REST = "(oldSelf.spec.suspend || oldSelf.?status.?phase.orValue('Pending') in ['Pending', 'Failed'])"
"""No world is running on the old specification, as far as the status tells."""

_NOT_STARTED = "oldSelf.?status.?attempt.orValue(0) == 0"
_NO_CHECKPOINT_YET = "!oldSelf.?status.?checkpoint.hasValue()"


def _unchanged(path: str) -> str:
    return f"self.{path} == oldSelf.{path}"


def _unchanged_if_given(path: str) -> str:
    """Equality where any part of the path below `spec` may be absent; optional chaining has no cost estimate."""
    new, old = _given("self", path), _given("oldSelf", path)
    return f"(({new}) ? ({old}) && {_unchanged(path)} : !({old}))"


def _given(side: str, path: str) -> str:
    """Whether every part of a path below `spec` is there."""
    parts = path.split(".")
    return " && ".join(f"has({side}.{'.'.join(parts[: end + 1])})" for end in range(1, len(parts)))


def _same_sources(field: str, default: str) -> str:
    """Whether the sources of a mixture have the same values of a field, one by one."""
    path = "spec.trainer.config.data.sources"
    new, old = _given("self", path), _given("oldSelf", path)
    value = f"has(source.{field}) ? source.{field} : {default}"
    same = " == ".join(f"{side}.{path}.map(source, {value})" for side in ("self", "oldSelf"))
    return f"(({new}) ? ({old}) && {same} : !({old}))"


def _training_job_rules() -> tuple[Mapping[str, str], ...]:
    needs_rest = "can change only while spec.suspend is true, or the job is Pending or Failed: set suspend first"
    fixed = "cannot change once the run has a checkpoint: start a new TrainingJob"
    begun = "cannot change once the run has started: start a new TrainingJob"
    rules = [
        validation(
            f"self.metadata.name.size() <= {MAX_NAME}",
            f"metadata.name may have at most {MAX_NAME} characters: pods append attempt and index to it",
        ),
        validation(
            f"self.metadata.name.matches('{NAME_PATTERN}')",
            "metadata.name must begin with a letter and hold only lower-case letters, digits and hyphens",
        ),
        validation(f"{_unchanged('spec.trainer')} || {_AT_REST}", f"trainer {needs_rest}", fieldPath=".spec.trainer"),
        validation(
            f"{_unchanged('spec.podTemplate')} || {_AT_REST}",
            f"podTemplate {needs_rest}",
            fieldPath=".spec.podTemplate",
        ),
        validation(
            f"{_unchanged('spec.checkpoint.uri')} || ({_NO_CHECKPOINT_YET} && {_AT_REST})",
            f"uri {fixed}",
            fieldPath=".spec.checkpoint.uri",
        ),
        validation(
            f"{_unchanged_if_given('spec.resumeFrom')} || {_NOT_STARTED}",
            f"resumeFrom {begun}",
            fieldPath=".spec.resumeFrom",
        ),
    ]
    rules += [
        validation(
            f"{_unchanged_if_given(f'spec.trainer.config.{field}')} || {_NO_CHECKPOINT_YET}",
            f"config.{field} {fixed}",
            fieldPath=".spec.trainer.config",
        )
        for field in (*POSITION_FIELDS, *SAMPLE_FIELDS)
    ]
    # Three rules, for one that compares all of a source would be refused for its cost.
    rules += [
        validation(
            f"{_same_sources(field, default)} || {_NO_CHECKPOINT_YET}",
            f"config.data.sources: number, order and {field} of sources {fixed}; their paths and names may change",
            fieldPath=".spec.trainer.config",
        )
        for field, default in (("weight", "1.0"), ("kind", "'bytes'"), ("textField", "'text'"))
    ]
    return tuple(rules)


_KINDS = (
    _Kind(
        kind="TrainingJob",
        plural="trainingjobs",
        short="tj",
        description="A training run that is watched, rolled back and resumed by itself.",
        spec=lambda: structural_schema(TrainingJobSpec),
        status=lambda: structural_schema(TrainingJobStatus),
        columns=(
            Column("Phase", ".status.phase"),
            Column("Step", ".status.step", "integer"),
            Column("Loss", ".status.loss"),
            Column("Attempt", ".status.attempt", "integer"),
            Column("Rollbacks", ".status.rollbacks", "integer"),
            Column("Checkpoint", ".status.checkpoint"),
            Column("Restarts", ".status.restarts", "integer", priority=1),
            Column("Incident", ".status.incident", priority=1),
            Column("Message", ".status.message", priority=1),
            _AGE,
        ),
        rules=_training_job_rules(),
    ),
    _Kind(
        kind="GuardPolicy",
        plural="guardpolicies",
        short="gp",
        description="Rules that judge training runs of the same namespace, and what to do when one fires.",
        spec=policy_spec_schema,
        status=policy_status_schema,
        columns=_POLICY_COLUMNS,
    ),
    _Kind(
        kind="ClusterGuardPolicy",
        plural="clusterguardpolicies",
        short="cgp",
        description="Rules that judge training runs of any namespace, and what to do when one fires.",
        spec=policy_spec_schema,
        status=policy_status_schema,
        columns=_POLICY_COLUMNS,
        scope="Cluster",
    ),
    _Kind(
        kind="GuardIncident",
        plural="guardincidents",
        short="gi",
        description="One incident of one run: what fired, what was found and planned, and how it ended.",
        spec=lambda: structural_schema(GuardIncidentSpec),
        status=lambda: structural_schema(GuardIncidentStatus),
        columns=(
            Column("Job", ".spec.job.name"),
            Column("Rule", ".spec.trigger.rule"),
            Column("By", ".spec.trigger.request.by"),
            Column("Step", ".spec.trigger.firstBadStep", "integer"),
            Column("Phase", ".status.phase"),
            Column("Target", ".status.target", "integer"),
            Column("Skip", ".status.skip"),
            Column("Finding", ".status.finding"),
            Column("Outcome", ".status.outcome"),
            Column("Plan", ".status.approval.planHash", priority=1),
            Column("Message", ".status.message", priority=1),
            _AGE,
        ),
    ),
    _Kind(
        kind="RunRequest",
        plural="runrequests",
        short="rr",
        description="What a person asks of a run: to hold, go on, go back, skip, stop; or of its plan. Answered once.",
        spec=lambda: structural_schema(RunRequestSpec),
        status=lambda: structural_schema(RunRequestStatus),
        columns=(
            Column("Job", ".spec.job"),
            Column("Action", ".spec.action"),
            Column("By", ".spec.by"),
            Column("State", ".status.state"),
            Column("Reason", ".spec.reason", priority=1),
            Column("Message", ".status.message", priority=1),
            _AGE,
        ),
    ),
    _Kind(
        kind="JournalAnchor",
        plural="journalanchors",
        short="ja",
        description="The newest record of a run's journal as known outside its bucket; the operator alone writes it.",
        spec=lambda: structural_schema(JournalAnchorSpec),
        columns=(
            Column("Job", ".spec.job.name"),
            Column("Record", ".spec.seq", "integer"),
            Column("Ended", ".spec.ended", "boolean"),
            Column("Hash", ".spec.hash", priority=1),
            Column("Key", ".spec.signature.keyId", priority=1),
            _AGE,
        ),
    ),
)


def custom_resource_definitions() -> list[dict[str, Any]]:
    """One CustomResourceDefinition per kind."""
    return [_definition(kind) for kind in _KINDS]


def to_yaml(definition: Mapping[str, Any]) -> str:
    """YAML in the order of the dict."""
    # Equal parts of a schema are written out, not shared by anchors, which not every tool follows.
    plain = json.loads(json.dumps(definition))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)  # pyright: ignore[reportUnknownMemberType] - the stubs leave one parameter untyped


def _definition(kind: _Kind) -> dict[str, Any]:
    schema: Schema = {
        "type": "object",
        "description": kind.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # A bound on the name keeps the cost of rules that read it finite.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": kind.spec(),
            **({"status": kind.status()} if kind.status else {}),
        },
    }
    if kind.rules:
        schema["x-kubernetes-validations"] = [dict(rule) for rule in kind.rules]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Removing the chart must not remove people's jobs with their kind.
        "metadata": {"name": f"{kind.plural}.{GROUP}", "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["trimtab"],
            },
            "scope": kind.scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [column.render() for column in kind.columns],
                    **({"subresources": {"status": {}}} if kind.status else {}),
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
