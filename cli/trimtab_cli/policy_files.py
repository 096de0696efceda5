"""GuardPolicy manifests in YAML: every error with its line and path. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import yaml
from trimtab_operator.resources import API_VERSION
from trimtab_policies.errors import InvalidPolicy
from trimtab_policies.policy import nearest_name, parse_policy

KIND = "GuardPolicy"
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_OBJECT_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """One error. `line` counts from 1; 0 where the file has no lines to point at."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


def check_policies(file: str, text: str | PolicyFinding) -> tuple[int, tuple[PolicyFinding, ...]]:
    """How many policies the text holds, and every error in them."""
    if isinstance(text, PolicyFinding):
        return 0, (text,)
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]  # pyright: ignore[reportUnknownMemberType, reportUnnecessaryComparison] - the stubs know neither the type nor empty documents
    except yaml.YAMLError as error:
        return 0, (_syntax(file, error),)
    findings: list[PolicyFinding] = []
    for node in nodes:
        findings += _document(file, node)
    if not nodes:
        findings.append(PolicyFinding(file, 1, "", f"holds no {KIND}"))
    return len(nodes), tuple(findings)


def _syntax(file: str, error: yaml.YAMLError) -> PolicyFinding:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return PolicyFinding(file, mark.line + 1 if mark else 0, "", f"is not YAML: {problem}")


def _document(file: str, node: yaml.Node) -> Iterator[PolicyFinding]:
    def finding(path: str, message: str) -> PolicyFinding:
        return PolicyFinding(file, line_of(node, path), path, message)

    repeated = list(_repeated_keys(node))
    yield from (PolicyFinding(file, line, path, "is given twice; remove one") for path, line in repeated)
    try:
        content: object = _construct(node)
    except yaml.YAMLError as error:
        yield _syntax(file, error)
        return
    if not isinstance(content, dict):
        yield finding("", "is no manifest: it must be an object with apiVersion, kind, metadata and spec")
        return
    manifest = cast("dict[str, Any]", content)
    if manifest.get("apiVersion") != API_VERSION:
        yield finding("apiVersion", f"must be {API_VERSION}")
    if manifest.get("kind") != KIND:
        yield finding("kind", f"must be {KIND}; this command checks nothing else")
        return
    metadata = manifest.get("metadata")
    name: object = cast("dict[str, Any]", metadata).get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not _OBJECT_NAME.match(name):
        yield finding("metadata.name", "must be a Kubernetes name: lower-case letters, digits, hyphens and dots")
    for key in manifest.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        yield finding(str(key), "is not a field this version knows; remove it or correct its name")
    try:
        parse_policy(manifest.get("spec"))
    except InvalidPolicy as error:
        for one in error.errors:
            yield finding(one.path, one.message + _suggestion(manifest, one.path))


def _construct(node: yaml.Node) -> object:
    loader = yaml.SafeLoader("")
    try:
        return cast("Any", loader).construct_document(node)
    finally:
        loader.dispose()  # pyright: ignore[reportUnknownMemberType] - the stubs leave it untyped


def _suggestion(manifest: dict[str, Any], path: str) -> str:
    """For a metric that is misspelt, the nearest known name."""
    if not path.endswith(".metric"):
        return ""
    value: Any = manifest
    for key, index in _PART.findall(path):
        try:
            value = value[int(index)] if index else value[key]
        except (KeyError, IndexError, TypeError):
            return ""
    near = nearest_name(value) if isinstance(value, str) else None
    return f"; did you mean {near}?" if near else ""


def line_of(node: yaml.Node, path: str) -> int:
    """The line (from 1) of the field at a path such as `spec.rules[2].spike.sigma`, or of its nearest parent."""
    line = node.start_mark.line + 1
    for key, index in _PART.findall(path):
        if index and isinstance(node, yaml.SequenceNode):
            items = cast("list[yaml.Node]", node.value)
            if int(index) >= len(items):
                break
            node = items[int(index)]
            line = node.start_mark.line + 1
        elif key and isinstance(node, yaml.MappingNode):
            pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
            pair = next((one for one in pairs if one[0].value == key), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        else:
            break
    return line


def _repeated_keys(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int]]:
    """YAML takes the last of two equal keys silently."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(cast("list[yaml.Node]", node.value)):
            yield from _repeated_keys(item, f"{path}[{index}]")
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            here = f"{path}.{key.value}" if path else str(key.value)
            if str(key.value) in seen:
                yield here, key.start_mark.line + 1
            seen.add(str(key.value))
            yield from _repeated_keys(value, here)
