"""Two jobs at once: the trouble of one never touches the other, and nobody's secrets show anywhere."""

import base64
import json
from typing import Any

import pytest
from surviving_history import assert_each_window_once, losses, worlds
from training_jobs import Namespace, guard_policy, operator_log, prepare_data, training_job
from trimtab_contract.keys import journal_prefix

pytestmark = pytest.mark.node

STEPS = 260


def test_a_damaged_job_leaves_its_neighbour_as_it_would_be_alone(namespace: Namespace) -> None:
    """The healthy one is trained twice: beside a damaged one, and alone; its losses are the same, bit for bit."""
    damaged = training_job("damaged", prepare_data(damage=[(180, 185)]), steps=STEPS)
    namespace.apply(guard_policy(), damaged, training_job("healthy", prepare_data(), steps=STEPS))
    namespace.wait_phase("damaged", "Completed")
    namespace.wait_phase("healthy", "Completed")

    assert len(namespace.trail("damaged").of("IncidentOpened")) == 1
    trail = namespace.trail("healthy")
    assert trail.state.attempt == 1
    assert not trail.state.incident_names
    assert not trail.state.rollback_times
    directives = [(one.after or {})["directive"] for one in trail.records if "directive" in (one.after or {})]
    assert [one["action"] for one in directives] == ["Run", "Finish"]
    assert worlds(namespace, "healthy") == {"1"}
    assert_each_window_once(namespace, "healthy", STEPS)
    assert [one["metadata"]["name"] for one in namespace.items("guardincident")] == ["damaged-a1-s181"]

    namespace.apply(training_job("alone", prepare_data(), steps=STEPS))
    namespace.wait_phase("alone", "Completed")
    assert losses(namespace, "alone") == losses(namespace, "healthy")

    _assert_no_secret_shows(namespace, "damaged", "healthy", "alone")


def _assert_no_secret_shows(namespace: Namespace, *jobs: str) -> None:
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
        if "SECRET" in key or "password" in key.lower()
    }


def _keys(namespace: Namespace, prefix: str) -> list[str]:
    pages = namespace.s3.get_paginator("list_objects_v2").paginate(Bucket="trimtab-audit", Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]
