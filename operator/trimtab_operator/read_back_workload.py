"""From an intent to read checkpoints back to the Job that does it; pure.

A small pod of the trainer's image, which reads and hashes and needs neither Redis, nor data, nor a GPU. Like everything
of a run it goes with its TrainingJob.
"""

from collections.abc import Mapping

from trimtab_contract.read_back import JOB_VARIABLE, ORDER_VARIABLE, encode_order

from trimtab_operator.resources.training_job import PodTemplate
from trimtab_operator.run_state import ReadBackOrder
from trimtab_operator.workload import (
    CONTAINER_SECURITY,
    JOB_LABEL,
    JOB_UID_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    QUEUE_LABEL_PREFIX,
    KubernetesObject,
    TrainingJobView,
    WorkloadDefaults,
    avoiding,
    from_secret,
    owned_head,
    pod_security,
    user_value,
)

READ_BACK_LABEL = "trimtab.dev/read-back"
"""The name of the Job. Its pods carry no label that a world's do, so that nothing takes them for a trainer."""
CONTAINER_NAME = "verifier"
COMMAND = ("python", "-m", "trimtab_trainer.verification")
PODS_LOST = 1
"""How many pods may be lost, to an eviction as a rule, before the Job has failed."""
GRACE_SECONDS = 600
"""How much longer than its deadline a Job is waited for, where a queue of the cluster does not let it begin."""
MAKING_SECONDS = 300
"""How long after its intent a Job is made; later it may have been there, and have gone by its own time."""
KEPT_SECONDS = 900
"""How long a Job stays that has ended: longer than one is made, so that none is made twice."""
SHOWN_NAME, SHOWN_UID = 36, 8

_RESOURCES: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}
"""One process that holds a megabyte of a checkpoint at a time, and its manifest."""

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
_READING = frozenset((*_PROXIES, *(name.lower() for name in _PROXIES), *_CERTIFICATES))
"""What of `spec.trainer.env` says how S3 is reached; the rest is the trainer's business."""

_SMALL_VOLUMES = frozenset({"configMap", "secret", "projected", "downwardAPI", "emptyDir", "hostPath", "image"})
"""Kinds of volumes that may hold certificates or programs. Others hold data, and may be mounted by one node only."""


def read_back_name(job: TrainingJobView, order: ReadBackOrder) -> str:
    """The name of the Job of an intent: always the same one, and never that of a world, which ends with a number."""
    return f"{job.name[:SHOWN_NAME]}-verify-{job.uid[:SHOWN_UID]}-r{order.number}"


def read_back_selector(job: TrainingJobView, order: ReadBackOrder) -> str:
    """The label selector of the Job's pods."""
    return f"{JOB_UID_LABEL}={job.uid},{READ_BACK_LABEL}={read_back_name(job, order)}"


def patience_seconds(order: ReadBackOrder) -> int:
    """How long after its intent a Job is waited for that has not ended."""
    return order.seconds + GRACE_SECONDS


def read_back_job(job: TrainingJobView, defaults: WorkloadDefaults, order: ReadBackOrder) -> KubernetesObject:
    """The Job of an intent. It carries no label of a queue: what is queued there are GPUs, and it needs none."""
    template = job.spec.pod_template
    labels = _labels(job, order)
    given = {name: value for name, value in (template.labels or {}).items() if not name.startswith(QUEUE_LABEL_PREFIX)}
    return {
        **owned_head("batch/v1", "Job", job, read_back_name(job, order), {**labels, JOB_LABEL: job.name}),
        "spec": {
            "backoffLimit": PODS_LOST,
            "activeDeadlineSeconds": order.seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {"labels": {**given, **labels}, "annotations": dict(template.annotations or {})},
                "spec": {**_pod_spec(job, defaults, order), **avoiding(template.affinity or {}, order.avoid)},
            },
        },
    }


def _labels(job: TrainingJobView, order: ReadBackOrder) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "trimtab-verifier",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/component": "verifier",
        MANAGED_BY_LABEL: MANAGED_BY,
        JOB_UID_LABEL: job.uid,
        READ_BACK_LABEL: read_back_name(job, order),
    }


def _pod_spec(job: TrainingJobView, defaults: WorkloadDefaults, order: ReadBackOrder) -> KubernetesObject:
    template = job.spec.pod_template
    volumes = [dict(one) for one in template.volumes if _SMALL_VOLUMES & one.keys()]
    carried = {one["name"] for one in volumes}
    mounts = [dict(one) for one in template.volume_mounts if one.get("name") in carried]
    if not any(str(one.get("mountPath", "")).rstrip("/") == "/tmp" for one in mounts):  # noqa: S108 - a volume of the pod's own
        volumes.append({"name": "trimtab-tmp", "emptyDir": {}})
        mounts.append({"name": "trimtab-tmp", "mountPath": "/tmp"})  # noqa: S108 - likewise
    container: KubernetesObject = {
        "name": CONTAINER_NAME,
        "image": job.spec.trainer.image or defaults.trainer_image,
        "command": list(COMMAND),
        "env": _environment(job, order),
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        "volumeMounts": mounts,
        "terminationMessagePolicy": "File",
        "securityContext": CONTAINER_SECURITY,
    }
    if template.image_pull_policy:
        container["imagePullPolicy"] = template.image_pull_policy
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_security(template),
        **_placement(template),
        "containers": [container],
        "volumes": volumes,
    }


def _placement(template: PodTemplate) -> KubernetesObject:
    """Where the pod may run: where the trainer's may, but without its precedence, and by the usual scheduler."""
    fields = {
        "nodeSelector": dict(template.node_selector or {}),
        "tolerations": [dict(toleration) for toleration in template.tolerations],
        "affinity": dict(template.affinity or {}),
        "runtimeClassName": template.runtime_class_name,
        "serviceAccountName": template.service_account_name,
        "imagePullSecrets": [{"name": secret.name} for secret in template.image_pull_secrets],
    }
    return {name: value for name, value in fields.items() if value}


def _environment(job: TrainingJobView, order: ReadBackOrder) -> list[KubernetesObject]:
    storage = job.spec.checkpoint
    own: dict[str, KubernetesObject] = {
        "HOME": {"value": "/tmp"},  # noqa: S108 - the only place that can be written to
        "PYTHONUNBUFFERED": {"value": "1"},
        JOB_VARIABLE: {"value": read_back_name(job, order)},
        ORDER_VARIABLE: {"value": encode_order(order.checkpoints)},
        "TRIMTAB_CHECKPOINT_URI": {"value": storage.uri},
        "TRIMTAB_S3_ENDPOINT": {"value": storage.endpoint},
    }
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        own[key] = from_secret(storage.credentials_secret_ref.name, key)
    users = {one.name: user_value(one) for one in job.spec.trainer.env if one.name in _READING}
    return [{"name": name, **value} for name, value in {**own, **users}.items()]
