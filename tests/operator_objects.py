"""Valid objects to start from; tests change one thing."""

import copy
from collections.abc import Mapping
from typing import Any

from trimtab_operator.resources import API_VERSION

SHA = "0" * 64


def training_job(name: str = "demo", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A TrainingJob that the API server accepts."""
    base: dict[str, Any] = {
        "trainer": {"image": "example/trainer:1", "config": {"model": {"width": 8}, "data": {"path": "/data"}}},
        "checkpoint": {"uri": "s3://bucket/prefix", "credentialsSecretRef": {"name": "s3"}},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged(base, spec),
    }


def guard_policy(name: str = "demo", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A GuardPolicy with one rule per detector."""
    base: dict[str, Any] = {
        "rules": [
            {"name": "loss-spike", "metric": "loss", "spike": {"sigma": 4}, "forRecords": 3, "action": "Rollback"},
            {"name": "non-finite", "metric": "nonfinite", "range": {"max": 0}, "action": "Rollback"},
        ]
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "GuardPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged(base, spec),
    }


def guard_incident(namespace: str = "default", name: str = "demo-a1-s320", **spec: Any) -> dict[str, Any]:
    """A GuardIncident as it is created."""
    base: dict[str, Any] = {
        "job": {"name": "demo", "uid": "u-1"},
        "trigger": {
            "policy": {"kind": "GuardPolicy", "name": "demo", "uid": "u-2", "generation": 1, "hash": SHA},
            "rule": "loss-spike",
            "ruleText": {"metric": "loss", "spike": {"sigma": 4}},
            "metric": "loss",
            "observed": "11.5",
            "action": "Rollback",
            "attempt": 1,
            "firstBadStep": 320,
            "firedStep": 322,
            "flagged": {"first": 319, "last": 321},
        },
        "plans": [incident_plan(1)],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "GuardIncident",
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged(base, spec),
    }


def run_request(namespace: str = "default", name: str = "demo-resume", **spec: Any) -> dict[str, Any]:
    """A RunRequest of the tests' administrator."""
    base = {"job": "demo", "action": "Resume", "reason": "the spike is known", "by": "admin"}
    return {
        "apiVersion": API_VERSION,
        "kind": "RunRequest",
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged(base, spec),
    }


def incident_plan(number: int, step: int = 200) -> dict[str, Any]:
    """One plan of an incident."""
    return {"number": number, "target": {"step": step, "key": "run/checkpoints/x/manifest.json", "sha256": SHA}}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` merged into its objects; lists and plain values are replaced."""
    result = copy.deepcopy(dict(base))
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(name), dict):
            result[name] = merged(result[name], value)
        else:
            result[name] = copy.deepcopy(value)
    return result
