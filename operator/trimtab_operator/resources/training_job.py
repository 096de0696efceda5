"""TrainingJob: what a training engineer applies, and what the operator says about it."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trimtab_operator.resources.values import (
    AnnotationMap,
    Conditions,
    Count,
    Duration,
    Hash,
    LabelMap,
    LongText,
    Name,
    NumberText,
    ObjectReference,
    Opaque,
    Quantity,
    Resource,
    Text,
    Timestamp,
    Uid,
    Word,
    list_map,
    validation,
)
from trimtab_operator.run_state import UNKNOWN_PHASE, RunPhase

MAX_NAME = 52
"""Longest name of a TrainingJob: `<name>-<attempt>-<index>` is a host name of at most 63 characters."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A TrainingJob's name begins the names of Services and host names, which allow less than object names do."""

RESERVED_PREFIXES = ("TRIMTAB_", "PET_", "AWS_", "MASTER_", "TORCHELASTIC_")
"""Beginnings of environment variable names that the operator sets."""


GPU_SUFFIX = "/gpu"
"""End of the resource names that stand for GPUs: `nvidia.com/gpu`, `amd.com/gpu`."""


_RUN_PART = "[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"


def _is_reserved(name: str) -> bool:
    return name.startswith(RESERVED_PREFIXES)


class SecretKeyReference(Resource):
    """One key of a Secret in the same namespace."""

    name: Name
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class EnvironmentSource(Resource):
    """Where a variable's value comes from."""

    secret_key_ref: SecretKeyReference


class EnvironmentVariable(Resource):
    """One environment variable of every trainer process; exactly one of `value` and `valueFrom`."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] | None = None
    value_from: EnvironmentSource | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                validation("has(self.value) != has(self.valueFrom)", "set exactly one of value and valueFrom"),
                validation(
                    " && ".join(f"!self.name.startsWith('{prefix}')" for prefix in RESERVED_PREFIXES),
                    f"is set by the operator: names beginning with {', '.join(RESERVED_PREFIXES)} are reserved",
                    fieldPath=".name",
                ),
            ]
        }
    )

    @model_validator(mode="after")
    def _check(self) -> "EnvironmentVariable":
        if (self.value is None) == (self.value_from is None):
            message = "set exactly one of value and valueFrom"
            raise ValueError(message)
        if _is_reserved(self.name):
            message = f"{self.name} is set by the operator: choose another name"
            raise ValueError(message)
        return self


class ResourcesPerNode(Resource):
    """Requests and limits of the one trainer container of each pod; nothing is requested unless said here."""

    limits: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    requests: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None

    @model_validator(mode="after")
    def _check(self) -> "ResourcesPerNode":
        for name, quantity in {**(self.requests or {}), **(self.limits or {})}.items():
            if name.endswith(GPU_SUFFIX) and not str(quantity).isdecimal():
                message = f"{name} must be a whole number"
                raise ValueError(message)
        return self


_WHOLE_NUMBER = {"type": "integer", "format": "int64", "minimum": 0}
_KIND = {"type": "string", "maxLength": 16}
_TEXT_FIELD = {"type": "string", "maxLength": 64}
_CONFIG_SCHEMA: dict[str, Any] = {
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "seed": _WHOLE_NUMBER,
        "globalBatch": {**_WHOLE_NUMBER, "minimum": 1},
        "data": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {
                "order": {"type": "string", "maxLength": 16, "enum": ["sequential", "shuffled"]},
                "seed": _WHOLE_NUMBER,
                "kind": _KIND,
                "textField": _TEXT_FIELD,
                "sources": {
                    "type": "array",
                    "maxItems": 32,
                    "items": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                        "properties": {"weight": {"type": "number"}, "kind": _KIND, "textField": _TEXT_FIELD},
                    },
                },
            },
        },
        "model": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"sequence": {**_WHOLE_NUMBER, "minimum": 1}},
        },
    },
}
"""The trainer checks its own configuration; only what must not change is typed, because CEL cannot see the rest."""

POSITION_FIELDS = ("seed", "globalBatch", "data.order", "data.seed")
"""Fields of `trainer.config` that give a data position its meaning: fixed from the first checkpoint on."""

SAMPLE_FIELDS = ("data.kind", "data.textField", "model.sequence")
"""Those that say what a sample of the only source is: likewise."""


class Trainer(Resource):
    """The program that trains, and how many processes of it."""

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")] | None = None
    """Default: the operator's trainer image."""
    command: (
        Annotated[tuple[Annotated[str, Field(max_length=4096)], ...], Field(min_length=1, max_length=64)] | None
    ) = None
    """What torchrun launches on every rank: a script and its arguments, or `-m` and a module. Default: the
    reference trainer."""
    num_nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pods of a world."""
    num_proc_per_node: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1, le=64)],
        Field(
            json_schema_extra={
                "x-kubernetes-int-or-string": True,
                "x-kubernetes-validations": [
                    validation(
                        "type(self) == string ? self == 'auto' : (self >= 1 && self <= 64)",
                        "must be auto or a number from 1 to 64",
                    )
                ],
            }
        ),
    ] = "auto"
    """Processes per pod; `auto` is the number of GPUs in `resourcesPerNode`, else 1."""
    resources_per_node: ResourcesPerNode | None = None
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64, json_schema_extra=list_map("name"))] = ()
    config: dict[str, Any] = Field(default={}, json_schema_extra=_CONFIG_SCHEMA)
    """The trainer's own configuration, checked by the trainer. What gives a data position its meaning cannot
    change after the first checkpoint: seeds, global batch, order, sample length, and of the sources number, order,
    weights and kinds."""


class PodTemplate(Resource):
    """What every trainer pod carries besides the trainer itself."""

    labels: LabelMap | None = None
    annotations: AnnotationMap | None = None
    node_selector: LabelMap | None = None
    tolerations: Annotated[tuple[Opaque, ...], Field(max_length=32)] = ()
    affinity: Opaque | None = None
    volumes: Annotated[tuple[Opaque, ...], Field(max_length=32)] = ()
    volume_mounts: Annotated[tuple[Opaque, ...], Field(max_length=32)] = ()
    priority_class_name: Name | None = None
    runtime_class_name: Name | None = None
    scheduler_name: Word | None = None
    service_account_name: Name | None = None
    termination_grace_period_seconds: Annotated[int, Field(ge=10, le=3600)] = 60
    """Time to save together after SIGTERM."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: Annotated[tuple[ObjectReference, ...], Field(max_length=8)] = ()
    security_context: Opaque | None = None
    """Pod-level; its fields replace the operator's own (non-root, user 65532)."""


class CheckpointStorage(Resource):
    """Where checkpoints go, and how often."""

    uri: Annotated[str, Field(max_length=512, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?$")]
    """`s3://bucket/prefix`; fixed from the first checkpoint on."""
    endpoint: Annotated[str, Field(max_length=512, pattern=r"^https?://[^/\s]+/?$")] = "https://s3.amazonaws.com"
    """Address of the S3 service."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    certify_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 300
    """Judged steps with every guard green until a checkpoint counts as certified."""
    keep_last: Annotated[int, Field(ge=1, le=10_000)] = 3
    """So many of the newest checkpoints are kept, besides all that a rollback may go back to; others are deleted."""
    keep_every: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Milestones: the first checkpoint at or behind each multiple of so many steps is kept for good."""
    credentials_secret_ref: ObjectReference
    """A Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""


class ResumeSource(Resource):
    """The checkpoint of another run that this one continues."""

    run: Annotated[str, Field(max_length=384, pattern=rf"^{_RUN_PART}/{_RUN_PART}/{_RUN_PART}$")]
    """`<namespace>/<name>/<uid>` of its TrainingJob, in this cluster or another; `checkpoint.uri` must be the same."""
    step: Annotated[int, Field(ge=1, le=1_000_000_000)]
    """The last step that is kept; this run trains the one behind it first."""
    manifest_sha256: Annotated[Hash | None, Field(alias="manifestSHA256")] = None
    """SHA-256 of the checkpoint's manifest.json; required unless the journal of that run is in this audit bucket."""


class PolicyReference(Resource):
    """A guard policy: one of the same namespace, or one of the cluster's."""

    kind: Literal["GuardPolicy", "ClusterGuardPolicy"] = "GuardPolicy"
    name: Name


class Guard(Resource):
    """Which policies judge the run, and whether they may act."""

    policies: Annotated[
        tuple[PolicyReference, ...], Field(max_length=8, json_schema_extra=list_map("kind", "name"))
    ] = (PolicyReference(kind="ClusterGuardPolicy", name="default"),)
    mode: Literal["Observe", "Enforce"] = "Enforce"
    """`Observe`: judge and record, never act."""


class Budget(Resource):
    """How often the run may be helped before a person is asked."""

    max_rollbacks: Annotated[int, Field(ge=0, le=8)] = 3
    """Rollbacks within `window`."""
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 10
    """Worlds after the first, except after eviction, preemption, suspension and remediation."""
    window: Duration = "24h"


class TrainingJobSpec(Resource):
    """A training run that the operator keeps steady."""

    suspend: bool = False
    """True: no pods; the run continues from its newest checkpoint later."""
    trainer: Trainer = Trainer()
    pod_template: PodTemplate = PodTemplate()
    checkpoint: CheckpointStorage
    resume_from: ResumeSource | None = None
    """What the run continues; without it, it begins from its seed. Fixed from the first world on."""
    guard: Guard = Guard()
    budget: Budget = Budget()
    startup_deadline: Duration = "10m"
    """From the start of a world to its first word."""
    progress_deadline: Duration = "10m"
    """Without progress for this long a world hangs and is replaced."""
    ttl_after_finished: Duration = "168h"
    """Finished Job objects and their pods are deleted after this; never the TrainingJob or its checkpoints."""


class AcceptedPolicyStatus(Resource):
    """The policy text that judges the run now."""

    kind: Word
    name: Name
    uid: Uid
    generation: Count
    hash: Hash


class JournalHead(Resource):
    """The newest journal record the status is derived from."""

    seq: Count
    hash: Hash


class TrainingJobStatus(Resource):
    """What the operator last knew; a cache of the journal for people."""

    observed_generation: Count | None = None
    phase: (
        Annotated[str, Field(json_schema_extra={"enum": [*(phase.value for phase in RunPhase), UNKNOWN_PHASE]})] | None
    ) = None
    step: Count | None = None
    loss: NumberText | None = None
    attempt: Count | None = None
    world: Count | None = None
    rollbacks: Count | None = None
    restarts: Count | None = None
    checkpoint: Text | None = None
    """Step and state of the newest checkpoint of the surviving history, such as `320 Verified`."""
    incident: Word | None = None
    """The open GuardIncident."""
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None
    message: LongText | None = None
    conditions: Conditions | None = None
    policies: (
        Annotated[tuple[AcceptedPolicyStatus, ...], Field(max_length=8, json_schema_extra=list_map("kind", "name"))]
        | None
    ) = None
    journal: JournalHead | None = None
