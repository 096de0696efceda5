"""From a TrainingJob to the Kubernetes objects of one world; pure.

A world is one Indexed Job and its pods, `<name>-<attempt>`, with a headless Service and a ConfigMap of the same name.
The Secret with the run's Redis password, `<name>-redis-<uid>`, is shared by all worlds of the run. Nothing here
carries a finalizer: everything goes with its owner. Create in the order of `WorldObjects.in_order`.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import yaml
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.keys import RunId, redis_user

from trimtab_operator.resources import API_VERSION, TrainingJobSpec, parse_duration, parse_training_job_spec
from trimtab_operator.resources.training_job import GPU_SUFFIX, EnvironmentVariable, PodTemplate

KubernetesObject = dict[str, Any]

JOB_LABEL = "trimtab.dev/job"
JOB_UID_LABEL = "trimtab.dev/job-uid"
ATTEMPT_LABEL = "trimtab.dev/attempt"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "trimtab"
CONTAINER_NAME = "trainer"
"""Of the trainer's container, whose termination message tells how it ended."""

CONTENT_SHOWN = 12
"""Digits of a SHA-256 that tell the contents of one world's ConfigMaps apart."""
CONFIG_DIRECTORY = "/etc/trimtab"
CONFIG_FILE = "config.yaml"
PASSWORD_KEY = "password"  # noqa: S105 - the name of a key, not a password
MASTER_PORT = 29500
NONROOT = 65532
SHUTDOWN_RESERVE_SECONDS = 5
"""torchrun kills its workers this long before the kubelet kills torchrun, so that it can still report."""

LAUNCHER_VARIABLE = "TRIMTAB_LAUNCHER"
"""Of a trainer's image: the words to start in place of `torchrun`."""

_REFERENCE_TRAINER = ("-m", "trimtab_trainer")
QUEUE_LABEL_PREFIX = "kueue.x-k8s.io/"
_COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass(frozen=True, slots=True)
class TrainingJobView:
    """What the operator needs of a TrainingJob object."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: TrainingJobSpec
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    created: str = ""
    """When, as the API server writes it: such times compare as texts."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Read an object of the API server; raises InvalidResource."""
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            spec=parse_training_job_spec(body.get("spec")),
            labels=metadata.get("labels") or {},
            created=str(metadata.get("creationTimestamp") or ""),
        )

    @property
    def run(self) -> RunId:
        """The run's identity."""
        return RunId(self.namespace, self.name, self.uid)


@dataclass(frozen=True, slots=True)
class WorkloadDefaults:
    """What the operator adds to every world: the image used when a job names none, and where pods find Redis."""

    trainer_image: str
    redis_url: str


@dataclass(frozen=True, slots=True)
class WorldObjects:
    """The objects of one world."""

    secret: KubernetesObject
    config_map: KubernetesObject
    service: KubernetesObject
    job: KubernetesObject

    def in_order(self) -> tuple[KubernetesObject, ...]:
        """What the pods need first, the Job last."""
        return (self.secret, self.config_map, self.service, self.job)


def world_name(job: str, attempt: int) -> str:
    """The name of a world's Job and Service; its pods' host names append `-<index>`."""
    return f"{job}-{attempt}"


def config_map_name(job: TrainingJobView, attempt: int) -> str:
    """The name of a world's ConfigMap; an earlier TrainingJob's of the same name has another, and so has other content.

    A kubelet may still serve the content it knew under a name when an object of that name is made anew; and a world
    whose Job was refused has its ConfigMap already when the job is corrected.
    """
    content = trainer_config_text(job.spec.trainer.config).encode()
    return f"{world_name(job.name, attempt)}-{job.uid}-{sha256_hex(content)[:CONTENT_SHOWN]}"


def redis_secret_name(job: TrainingJobView) -> str:
    """The name of the Secret with the run's Redis password; an earlier TrainingJob of the same name has another."""
    return f"{job.name}-redis-{job.uid}"


def world_selector(job: TrainingJobView, attempt: int) -> str:
    """The label selector of one world's Job and pods, and of no earlier TrainingJob's of the same name."""
    return ",".join(f"{label}={value}" for label, value in _world_labels(job, attempt).items())


def _world_labels(job: TrainingJobView, attempt: int) -> dict[str, str]:
    return {JOB_LABEL: job.name, JOB_UID_LABEL: job.uid, ATTEMPT_LABEL: str(attempt)}


def processes_per_node(spec: TrainingJobSpec) -> int:
    """Processes that torchrun starts in each pod: `auto` means one per GPU asked for, else 1."""
    trainer = spec.trainer
    if trainer.num_proc_per_node != "auto":
        return trainer.num_proc_per_node
    resources = trainer.resources_per_node
    wanted = {} if resources is None else {**(resources.requests or {}), **(resources.limits or {})}
    gpus = sum(int(quantity) for name, quantity in wanted.items() if name.endswith(GPU_SUFFIX))
    return max(gpus, 1)


def world_objects(
    job: TrainingJobView,
    defaults: WorkloadDefaults,
    attempt: int,
    redis_password: str,
    avoid: Sequence[str] = (),
    source: str = "",
) -> WorldObjects:
    """The objects of the world that starts with `attempt`; its pods prefer other nodes than those of `avoid`.

    `source` is the run that this one continues, empty where it began from its seed.
    """
    secret = redis_secret(job, redis_password)
    config = trainer_config_text(job.spec.trainer.config)
    name, labels = world_name(job.name, attempt), _labels(job, attempt)
    config_map = {
        **owned_head("v1", "ConfigMap", job, config_map_name(job, attempt), labels),
        "immutable": True,
        "data": {CONFIG_FILE: config},
    }
    service = {
        **owned_head("v1", "Service", job, name, labels),
        "spec": {
            "clusterIP": "None",
            # The ranks look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": _world_labels(job, attempt),
            "ports": [{"name": "rendezvous", "port": MASTER_PORT, "targetPort": MASTER_PORT, "protocol": "TCP"}],
        },
    }
    return WorldObjects(secret, config_map, service, _job(job, defaults, attempt, avoid, source))


def trainer_config_text(config: Mapping[str, Any]) -> str:
    """`spec.trainer.config` as the trainer finds it in its file; checkpoints carry the SHA-256 of its UTF-8 bytes."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType] - the stubs leave one parameter untyped


def redis_secret(job: TrainingJobView, password: str) -> KubernetesObject:
    """The Secret with the run's Redis password; made once, before the first world."""
    return {
        **owned_head("v1", "Secret", job, redis_secret_name(job), _labels(job)),
        "type": "Opaque",
        "immutable": True,
        "data": {PASSWORD_KEY: base64.b64encode(password.encode()).decode()},
    }


def owned_head(
    api_version: str, kind: str, job: TrainingJobView, name: str, labels: Mapping[str, str]
) -> KubernetesObject:
    """What every object of ours begins with: it belongs to the TrainingJob, and goes with it."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": dict(labels),
            "ownerReferences": [owner],
        },
    }


def _labels(job: TrainingJobView, attempt: int | None = None) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "trimtab-trainer",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/component": "trainer",
        MANAGED_BY_LABEL: MANAGED_BY,
        "training.kubeflow.org/job-name": job.name,
        JOB_LABEL: job.name,
        JOB_UID_LABEL: job.uid,
    }
    return labels if attempt is None else {**labels, **_world_labels(job, attempt)}


def _job(
    job: TrainingJobView, defaults: WorkloadDefaults, attempt: int, avoid: Sequence[str], source: str
) -> KubernetesObject:
    spec, template = job.spec, job.spec.pod_template
    labels = _labels(job, attempt)
    queue = {name: value for name, value in job.labels.items() if name.startswith(QUEUE_LABEL_PREFIX)}
    return {
        **owned_head("batch/v1", "Job", job, world_name(job.name, attempt), {**queue, **labels}),
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.trainer.num_nodes,
            "parallelism": spec.trainer.num_nodes,
            # One failed pod ends the world; the operator starts the next one, which backs off for no time.
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": parse_duration(spec.ttl_after_finished),
            "template": {
                "metadata": {
                    "labels": {**(template.labels or {}), **labels},
                    "annotations": dict(template.annotations or {}),
                },
                "spec": {**_pod_spec(job, defaults, attempt, source), **avoiding(template.affinity or {}, avoid)},
            },
        },
    }


def _pod_spec(job: TrainingJobView, defaults: WorkloadDefaults, attempt: int, source: str) -> KubernetesObject:
    template = job.spec.pod_template
    mounts = [dict(mount) for mount in template.volume_mounts]
    taken = {str(mount.get("mountPath", "")).rstrip("/") for mount in mounts}
    own = [volume for volume in _own_volumes(config_map_name(job, attempt)) if volume.path not in taken]
    resources = job.spec.trainer.resources_per_node
    container: KubernetesObject = {
        "name": CONTAINER_NAME,
        "image": job.spec.trainer.image or defaults.trainer_image,
        "command": ["/bin/sh", "-c", _launch(job, attempt), "torchrun"],
        "args": list(job.spec.trainer.command or _REFERENCE_TRAINER),
        "env": _environment(job, defaults, attempt, source),
        "volumeMounts": [*(volume.mount for volume in own), *mounts],
        "terminationMessagePolicy": "File",
        "securityContext": CONTAINER_SECURITY,
    }
    if template.image_pull_policy:
        container["imagePullPolicy"] = template.image_pull_policy
    if resources is not None:
        container["resources"] = resources.model_dump(mode="json", exclude_none=True)
    return {
        "restartPolicy": "Never",
        "subdomain": world_name(job.name, attempt),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": pod_security(template),
        **_optional_pod_fields(template),
        "containers": [container],
        "volumes": [*(volume.volume for volume in own), *(dict(volume) for volume in template.volumes)],
    }


CONTAINER_SECURITY: KubernetesObject = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Of every container of ours."""


def pod_security(template: PodTemplate) -> KubernetesObject:
    """The security context of every pod of ours, with what the job says of it."""
    return {
        "runAsNonRoot": True,
        "runAsUser": NONROOT,
        "runAsGroup": NONROOT,
        "fsGroup": NONROOT,
        "seccompProfile": {"type": "RuntimeDefault"},
        **(template.security_context or {}),
    }


def _optional_pod_fields(template: PodTemplate) -> KubernetesObject:
    fields = {
        "nodeSelector": dict(template.node_selector or {}),
        "tolerations": [dict(toleration) for toleration in template.tolerations],
        "affinity": dict(template.affinity or {}),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
        "serviceAccountName": template.service_account_name,
        "imagePullSecrets": [{"name": secret.name} for secret in template.image_pull_secrets],
    }
    return {name: value for name, value in fields.items() if value}


AVOIDED_WEIGHT = 100
"""The largest weight that a preference can have."""


def avoiding(affinity: Mapping[str, Any], nodes: Sequence[str]) -> KubernetesObject:
    """The job's own affinity and, preferred and never required, any node but those; nothing where there are none.

    By the node's name, which a label need not repeat; the API server takes one value for each such expression.
    """
    if not nodes:
        return {}
    own: KubernetesObject = dict(affinity.get("nodeAffinity") or {})
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    elsewhere = {"weight": AVOIDED_WEIGHT, "preference": {"matchFields": others}}
    return {"affinity": {**affinity, "nodeAffinity": {**own, preferred: [*(own.get(preferred) or ()), elsewhere]}}}


@dataclass(frozen=True, slots=True)
class _Volume:
    name: str
    path: str
    source: Mapping[str, Any]
    read_only: bool = False

    @property
    def volume(self) -> KubernetesObject:
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> KubernetesObject:
        return {"name": self.name, "mountPath": self.path} | ({"readOnly": True} if self.read_only else {})


def _own_volumes(config_map: str) -> tuple[_Volume, ...]:
    return (
        _Volume("trimtab-config", CONFIG_DIRECTORY, {"configMap": {"name": config_map}}, read_only=True),
        _Volume("trimtab-tmp", "/tmp", {"emptyDir": {}}),  # noqa: S108 - a volume of the pod's own
        _Volume("trimtab-shm", "/dev/shm", {"emptyDir": {"medium": "Memory"}}),  # noqa: S108 - likewise
    )


def _launch(job: TrainingJobView, attempt: int) -> str:
    """The shell line that becomes torchrun; what torchrun launches follows as the shell's arguments.

    An image may name a program of its own that takes torchrun's arguments, as ours does for the sake of its last words.
    """
    world, spec = world_name(job.name, attempt), job.spec
    grace = spec.pod_template.termination_grace_period_seconds - SHUTDOWN_RESERVE_SECONDS
    return (
        f"exec ${{{LAUNCHER_VARIABLE}:-torchrun}} --nnodes {spec.trainer.num_nodes} --node-rank $JOB_COMPLETION_INDEX"
        f" --nproc-per-node {processes_per_node(spec)} --master-addr {world}-0.{world} --master-port {MASTER_PORT}"
        f' --max-restarts 0 --shutdown-timeout {grace} "$@"'
    )


def _environment(job: TrainingJobView, defaults: WorkloadDefaults, attempt: int, source: str) -> list[KubernetesObject]:
    spec, world = job.spec, world_name(job.name, attempt)
    master = f"{world}-0.{world}"
    credentials = spec.checkpoint.credentials_secret_ref.name
    plain = {
        "HOME": "/tmp",  # noqa: S108 - the only place that can be written to
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "PET_NNODES": str(spec.trainer.num_nodes),
        "PET_NPROC_PER_NODE": str(processes_per_node(spec)),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(MASTER_PORT),
        "TRIMTAB_RUN": str(job.run),
        "TRIMTAB_ATTEMPT": str(attempt),
        "TRIMTAB_REDIS_URL": defaults.redis_url,
        "TRIMTAB_REDIS_USERNAME": redis_user(job.run),
        "TRIMTAB_CHECKPOINT_URI": spec.checkpoint.uri,
        "TRIMTAB_CHECKPOINT_EVERY": str(spec.checkpoint.every_steps),
        "TRIMTAB_S3_ENDPOINT": spec.checkpoint.endpoint,
        "TRIMTAB_PROGRESS_DEADLINE": str(parse_duration(spec.progress_deadline)),
    }
    if source:
        plain["TRIMTAB_RESUME_FROM"] = source
    own: dict[str, KubernetesObject] = {name: {"value": value} for name, value in plain.items()}
    own["PET_NODE_RANK"] = {"valueFrom": {"fieldRef": {"fieldPath": _COMPLETION_INDEX}}}
    own["TRIMTAB_REDIS_PASSWORD"] = from_secret(redis_secret_name(job), PASSWORD_KEY)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        own[key] = from_secret(credentials, key)
    users = {variable.name: user_value(variable) for variable in spec.trainer.env}
    return [{"name": name, **value} for name, value in {**own, **users}.items()]


def user_value(variable: EnvironmentVariable) -> KubernetesObject:
    """What a variable of `spec.trainer.env` gets."""
    if variable.value_from is None:
        return {"value": variable.value or ""}
    return from_secret(variable.value_from.secret_key_ref.name, variable.value_from.secret_key_ref.key)


def from_secret(name: str, key: str) -> KubernetesObject:
    """The value of a variable that a Secret holds."""
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
