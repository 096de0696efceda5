"""The documents of a YAML text, with the line of every field, and what YAML itself would pass over in silence. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import yaml

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"
_DEEPEST = 100
"""Lists and mappings in one another: far more than any schema here has, far fewer than Python's stack takes."""


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


class _TooDeep(Exception):
    """The document is nested deeper than `_DEEPEST`."""

    def __init__(self, line: int) -> None:
        self.line = line
        super().__init__(line)


class _BoundedLoader(yaml.SafeLoader):
    """Refuses what is nested too deeply itself: how much of a stack is left is another thing in every process."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """One node, with all below it; raises _TooDeep."""
        if self.depth >= _DEEPEST:
            raise _TooDeep(cast("Any", self).peek_event().start_mark.line + 1)
        self.depth += 1
        try:
            return cast("Any", super()).compose_node(parent, index)
        finally:
            self.depth -= 1


# YAML 1.1 wants a point and a sign, and takes `1e3` for a text; kubectl, which has 1.2, takes it for a number.
cast("Any", _BoundedLoader).add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class Document:
    """One document: its node, which knows the lines, and its content."""

    def __init__(self, file: str, node: yaml.Node) -> None:
        self.node = node
        self._file = file

    def content(self) -> object:
        """The document as Python objects; raises yaml.YAMLError and ValueError (a number or date that is none)."""
        loader = yaml.SafeLoader("")
        try:
            return cast("Any", loader).construct_document(self.node)
        finally:
            loader.dispose()  # pyright: ignore[reportUnknownMemberType] - the stubs leave it untyped

    def finding(self, path: str, message: str) -> PolicyFinding:
        """An error at the line of a path, or of its nearest parent."""
        return PolicyFinding(self._file, line_of(self.node, path), path, message)

    def repeated_keys(self) -> list[PolicyFinding]:
        """Keys that are given twice: YAML takes the last one and says nothing."""
        return [
            PolicyFinding(self._file, line, path, "is given twice; remove one")
            for path, line in _repeated_keys(self.node, "", set())
        ]


def documents(file: str, text: str) -> tuple[list[Document], list[PolicyFinding]]:
    """The documents up to the first place that is not YAML, and what is wrong there. Empty documents are left out."""
    found: list[Document] = []
    try:
        nodes = yaml.compose_all(text, Loader=_BoundedLoader)  # pyright: ignore[reportUnknownMemberType] - the stubs leave it untyped
        found.extend(Document(file, node) for node in nodes if node.tag != _NULL_TAG)
    except yaml.YAMLError as error:
        return found, [not_yaml(file, error)]
    except _TooDeep as error:
        message = f"is nested too deeply to be read: {_DEEPEST} lists and mappings in one another are allowed"
        return found, [PolicyFinding(file, error.line, "", message)]
    return found, []


def content_of(file: str, document: Document) -> tuple[object, list[PolicyFinding]]:
    """A document's content, and what is wrong with the YAML of it; the content counts only where nothing is."""
    findings = document.repeated_keys()
    try:
        return document.content(), findings
    except yaml.YAMLError as error:
        return None, [*findings, not_yaml(file, error)]
    except (ValueError, OverflowError) as error:
        message = f"has a number or a date that cannot be read: {str(error).partition(':')[0]}"
        return None, [*findings, PolicyFinding(file, document.node.start_mark.line + 1, "", message)]


def not_yaml(file: str, error: yaml.YAMLError) -> PolicyFinding:
    """A syntax error, at its line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return PolicyFinding(file, mark.line + 1 if mark else 0, "", f"is not YAML: {problem}")


def read_as_text(node: yaml.Node) -> None:
    """Take a scalar, or the scalars in a mapping or list, for text: `0x10` is no hexadecimal number."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, yaml.ScalarNode):
            one.tag = _TEXT_TAG
        elif isinstance(one, yaml.SequenceNode):
            waiting += cast("list[yaml.Node]", one.value)
        elif isinstance(one, yaml.MappingNode):
            waiting += [value for _, value in mapping_pairs(one)]


def mapping_pairs(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    """Keys and values of a mapping; none of any other node."""
    return cast("list[tuple[yaml.Node, yaml.Node]]", node.value) if isinstance(node, yaml.MappingNode) else []


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
            pair = next((one for one in mapping_pairs(node) if one[0].value == key), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        else:
            break
    return line


def value_at(content: object, path: str) -> object:
    """The value at a path; None where there is none."""
    value: Any = content
    for key, index in _PART.findall(path):
        try:
            value = value[int(index)] if index else value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _repeated_keys(node: yaml.Node, path: str, above: set[int]) -> Iterator[tuple[str, int]]:
    if id(node) in above:
        # An alias that holds itself, or a part that was looked at where it was first written.
        return
    above.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(cast("list[yaml.Node]", node.value)):
            yield from _repeated_keys(item, f"{path}[{index}]", above)
    seen: set[str] = set()
    for key, value in mapping_pairs(node):
        here = f"{path}.{key.value}" if path else str(key.value)
        if str(key.value) in seen:
            yield here, key.start_mark.line + 1
        seen.add(str(key.value))
        yield from _repeated_keys(value, here, above)
