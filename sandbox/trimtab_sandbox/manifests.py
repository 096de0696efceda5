"""The objects that a sandbox's cluster starts with."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab_sandbox import redis_server
from trimtab_sandbox.containerd import MOUNTED_RUNTIME, PLAIN_RUNTIME
from trimtab_sandbox.credentials import AccessKey, Credentials
from trimtab_sandbox.settings import BRIDGE_ADDRESS, REDIS_PORT, REDIS_USER, S3_PORT, SYSTEM_NAMESPACE

Manifest = Mapping[str, object]

REDIS_SECRET_NAME = "trimtab-redis"  # noqa: S105 -- the name of an object
AUDIT_SECRET_NAME = "trimtab-audit-s3"  # noqa: S105 -- the name of an object
TRAINING_NAMESPACE, TRAINING_SECRET_NAME = "default", "s3"


def _outside_service(name: str, port: int) -> tuple[Manifest, Manifest]:
    """A Service without selector, and the EndpointSlice that leads it to the bridge's address."""
    metadata = {"name": name, "namespace": SYSTEM_NAMESPACE}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"ports": [{"name": name, "port": port, "protocol": "TCP"}]},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata | {"labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [BRIDGE_ADDRESS], "conditions": {"ready": True}}],
        "ports": [{"name": name, "port": port, "protocol": "TCP"}],
    }
    return service, endpoints


def _secret(namespace: str, name: str, values: Mapping[str, str]) -> Manifest:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(values)}


def _access_key_secret(namespace: str, name: str, key: AccessKey) -> Manifest:
    return _secret(namespace, name, {"AWS_ACCESS_KEY_ID": key.key_id, "AWS_SECRET_ACCESS_KEY": key.secret})


def _dns_access() -> tuple[Manifest, Manifest]:
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "services"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    group, name = "rbac.authorization.k8s.io", "system:coredns"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }
    return role, binding


def namespace() -> Manifest:
    """The operator's namespace, which must exist before what is in it."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}


def objects(credentials: Credentials) -> list[Manifest]:
    """Everything else: access of DNS, the runtimes, the two services and the secrets."""
    runtimes = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        for name in (MOUNTED_RUNTIME, PLAIN_RUNTIME)
    ]
    redis_host = f"redis.{SYSTEM_NAMESPACE}.svc.cluster.local"
    redis = {
        "username": REDIS_USER,
        "password": credentials.redis_password,
        "host": redis_host,
        "port": str(REDIS_PORT),
        "url": redis_server.url(credentials).replace(BRIDGE_ADDRESS, redis_host),
    }
    return [
        *_dns_access(),
        *runtimes,
        *_outside_service("redis", REDIS_PORT),
        *_outside_service("s3", S3_PORT),
        _secret(SYSTEM_NAMESPACE, REDIS_SECRET_NAME, redis),
        _access_key_secret(SYSTEM_NAMESPACE, AUDIT_SECRET_NAME, credentials.s3_operator),
        _access_key_secret(TRAINING_NAMESPACE, TRAINING_SECRET_NAME, credentials.s3_training),
    ]
