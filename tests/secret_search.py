"""Every secret of the sandbox's cluster, looked for wherever people read: nobody's shows anywhere."""

import base64
import json
from typing import Any

from training_jobs import Namespace, operator_log
from trimtab_contract.keys import journal_prefix


def assert_no_secret_shows(namespace: Namespace, *jobs: str) -> None:
    """Every password and secret key of this cluster, looked for in logs, events, objects and trails."""
    secrets = _secret_values(namespace)
    assert len(secrets) >= 4
    shown = {"the operator's log": operator_log(namespace.cluster, lines=-1)}
    for job in jobs:
        for pod in namespace.pods(job):
            name = pod["metadata"]["name"]
            shown[f"the log of {name}"] = namespace.cluster.kubectl("logs", name)
        for key in _keys(namespace, journal_prefix(namespace.run(job))):
            body = namespace.s3.get_object(Bucket="trimtab-audit", Key=key)["Body"].read()
            shown[key] = body.decode()
    kinds = "trainingjobs,guardincidents,guardpolicies,events,configmaps,services,jobs,pods"
    shown["the objects"] = namespace.cluster.kubectl("get", kinds, "-o", "json")
    leaks = [place for place, text in shown.items() if any(secret in text for secret in secrets)]
    assert leaks == []


def _secret_values(namespace: Namespace) -> set[str]:
    kubectl = namespace.cluster.kubectl
    found: list[dict[str, Any]] = json.loads(kubectl("get", "secrets", "-o", "json"))["items"]
    found += json.loads(kubectl("-n", "trimtab-system", "get", "secrets", "-o", "json"))["items"]
    data: list[dict[str, str]] = [secret.get("data") or {} for secret in found if secret["type"] == "Opaque"]
    return {
        base64.b64decode(value).decode()
        for entries in data
        for key, value in entries.items()
        if "SECRET" in key or "password" in key.lower() or key == "url"
    }


def _keys(namespace: Namespace, prefix: str) -> list[str]:
    pages = namespace.s3.get_paginator("list_objects_v2").paginate(Bucket="trimtab-audit", Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]
