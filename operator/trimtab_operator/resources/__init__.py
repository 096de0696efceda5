"""The custom resources: pydantic models, and the CustomResourceDefinitions generated from them; pure."""

from trimtab_operator.resources.definitions import API_VERSION, GROUP, VERSION, custom_resource_definitions, to_yaml
from trimtab_operator.resources.guard_incident import (
    GuardIncidentSpec,
    GuardIncidentStatus,
    IncidentPlan,
    Trigger,
    incident_name,
)
from trimtab_operator.resources.guard_policy import GuardPolicyStatus
from trimtab_operator.resources.journal_anchor import JournalAnchorSpec, anchor_spec, parse_journal_anchor
from trimtab_operator.resources.parsing import parse_training_job_spec, to_wire
from trimtab_operator.resources.run_request import (
    RunRequestArguments,
    RunRequestSpec,
    RunRequestStatus,
    parse_run_request_spec,
)
from trimtab_operator.resources.training_job import MAX_NAME, TrainingJobSpec, TrainingJobStatus
from trimtab_operator.resources.values import parse_duration

__all__ = [
    "API_VERSION",
    "GROUP",
    "MAX_NAME",
    "VERSION",
    "GuardIncidentSpec",
    "GuardIncidentStatus",
    "GuardPolicyStatus",
    "IncidentPlan",
    "JournalAnchorSpec",
    "RunRequestArguments",
    "RunRequestSpec",
    "RunRequestStatus",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "Trigger",
    "anchor_spec",
    "custom_resource_definitions",
    "incident_name",
    "parse_duration",
    "parse_journal_anchor",
    "parse_run_request_spec",
    "parse_training_job_spec",
    "to_wire",
    "to_yaml",
]
