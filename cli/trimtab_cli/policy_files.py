"""Guard policy manifests in YAML: every error with its line and path, and the policies of files without one. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trimtab_contract.metrics import KNOWN_SCALARS, KNOWN_VECTORS
from trimtab_operator.resources import API_VERSION
from trimtab_policies.errors import FieldError, InvalidPolicy
from trimtab_policies.policy import AcceptedPolicy, nearest_name, parse_policy
from trimtab_policies.validation import nearest, shown

from trimtab_cli.yaml_documents import Document, PolicyFinding, content_of, documents, line_of, value_at

NAMESPACED, CLUSTER_WIDE = "GuardPolicy", "ClusterGuardPolicy"
KINDS = (NAMESPACED, CLUSTER_WIDE)
TEST_SUFFIXES = (".test.yaml", ".test.yml")
_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_OBJECT_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
_NAMESPACE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")

__all__ = ["KINDS", "TEST_SUFFIXES", "PolicyFinding", "check_policies", "line_of", "read_policies"]


def check_policies(file: str, text: str | PolicyFinding) -> tuple[int, tuple[PolicyFinding, ...]]:
    """How many documents the text holds, and every error in them."""
    documents_read, _, findings = _read(file, text)
    return documents_read, findings


def read_policies(file: str, text: str | PolicyFinding) -> tuple[tuple[AcceptedPolicy, ...], tuple[PolicyFinding, ...]]:
    """The policies of a file, in order, and every error in it; a policy with an error is left out."""
    _, policies, findings = _read(file, text)
    return policies, findings


def doubtful_metrics(file: str, text: str | PolicyFinding) -> tuple[str, ...]:
    """A sentence for each metric that nothing here publishes and whose name is much like one that is published.

    That is no error: a loop of one's own may publish any name.
    """
    rules = [(policy, rule) for policy in read_policies(file, text)[0] for rule in policy.spec.rules]
    named = [(policy, rule.name, rule.metric) for policy, rule in rules if rule.metric]
    return tuple(
        f"{file}: policy {policy.name}, rule {rule}: the reference trainer publishes no {metric}; did you mean {near}?"
        for policy, rule, metric in named
        if metric not in KNOWN_SCALARS and metric not in KNOWN_VECTORS and (near := nearest_name(metric))
    )


def _read(file: str, text: str | PolicyFinding) -> tuple[int, tuple[AcceptedPolicy, ...], tuple[PolicyFinding, ...]]:
    if isinstance(text, PolicyFinding):
        return 0, (), (text,)
    if file.endswith(TEST_SUFFIXES):
        message = f"holds tests of policies and no policy; run `trimtab policy test {file}`"
        return 0, (), (PolicyFinding(file, 0, "", message),)
    found, findings = documents(file, text)
    policies: list[AcceptedPolicy] = []
    names: set[tuple[object, ...]] = set()
    for document in found:
        policy, errors = _policy(file, document)
        findings += errors
        if policy is not None:
            name = (policy.kind, policy.namespace, policy.name)
            if name in names:
                message = f"is that of another {policy.kind} in this file, which this one would replace"
                findings.append(document.finding("metadata.name", message))
            names.add(name)
        if policy is not None and not errors:
            policies.append(policy)
    if not found and not findings:
        findings.append(PolicyFinding(file, 1, "", f"holds no {' or '.join(KINDS)}"))
    return len(found), tuple(policies), tuple(findings)


def _policy(file: str, document: Document) -> tuple[AcceptedPolicy | None, list[PolicyFinding]]:
    content, findings = content_of(file, document)
    if findings and content is None:
        return None, findings
    if not isinstance(content, Mapping):
        message = (
            f"is no manifest: it must be an object with apiVersion, kind, metadata and spec; it is {shown(content)}"
        )
        return None, [*findings, document.finding("", message)]
    manifest = cast("Mapping[Any, Any]", content)
    findings += [document.finding(path, message) for path, message in _frame_errors(manifest)]
    if manifest.get("kind") not in KINDS:
        return None, findings
    try:
        spec = parse_policy(manifest.get("spec"))
    except InvalidPolicy as error:
        findings += [document.finding(one.path, one.message + _suggestion(manifest, one)) for one in error.errors]
        return None, findings
    metadata = _mapping(manifest.get("metadata"))
    namespace = metadata.get("namespace")
    policy = AcceptedPolicy.of(
        spec,
        kind=str(manifest["kind"]),
        namespace=namespace if isinstance(namespace, str) else None,
        name=str(metadata.get("name")),
        uid="",
        generation=0,
    )
    return policy, findings


def _frame_errors(manifest: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong around the spec."""
    kind = manifest.get("kind")
    if manifest.get("apiVersion") != API_VERSION:
        yield "apiVersion", f"must be {API_VERSION}; it is {shown(manifest.get('apiVersion'))}"
    if kind not in KINDS:
        hint = "; it looks like tests of policies: name the file NAME.test.yaml" if "cases" in manifest else ""
        allowed = f"must be {' or '.join(KINDS)}, for this command checks nothing else"
        yield "kind", f"{allowed}; it is {shown(kind)}{nearest(kind, KINDS)}{hint}"
        return
    metadata = manifest.get("metadata")
    name, namespace = _mapping(metadata).get("name"), _mapping(metadata).get("namespace")
    if not isinstance(name, str) or not _OBJECT_NAME.match(name):
        message = "must be a Kubernetes name: at most 253 lower-case letters, digits, hyphens and dots"
        yield "metadata.name", f"{message}; it is {shown(name)}"
    if kind == CLUSTER_WIDE and namespace is not None:
        yield (
            "metadata.namespace",
            f"must be left out: a {CLUSTER_WIDE} belongs to no namespace; it is {shown(namespace)}",
        )
    elif namespace is not None and (not isinstance(namespace, str) or not _NAMESPACE_NAME.match(namespace)):
        message = "must be a Kubernetes name: at most 63 lower-case letters, digits and hyphens"
        yield "metadata.namespace", f"{message}; it is {shown(namespace)}"
    for key in manifest:
        if key not in _FIELDS:
            known = ", ".join(_FIELDS)
            yield str(key), f"is not a field this version knows; remove it or correct its name; known are {known}"


def _suggestion(manifest: Mapping[Any, Any], error: FieldError) -> str:
    """For a metric that is misspelt, the nearest known name."""
    misspelt = error.path.endswith(".metric") and error.message.startswith("must match")
    value = value_at(manifest, error.path) if misspelt else None
    near = nearest_name(value) if isinstance(value, str) else None
    return f"; did you mean {near}?" if near else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
