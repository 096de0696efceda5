"""`*.test.yaml` on disk: found, read with the policies that they test, every error with its file and line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from trimtab_policies.errors import InvalidPolicyTest
from trimtab_policies.policy import AcceptedPolicy
from trimtab_policies.policytest import Case, parse_suite, policy_names

from trimtab_cli.errors import UsageError
from trimtab_cli.policy_files import TEST_SUFFIXES, read_policies
from trimtab_cli.text_files import read_text
from trimtab_cli.yaml_documents import Document, PolicyFinding, content_of, documents, mapping_pairs, read_as_text


@dataclass(frozen=True, slots=True)
class TestSuite:
    """One test file: its cases and the policies under test, or what is wrong with it."""

    __test__ = False

    file: Path
    policies: tuple[AcceptedPolicy, ...]
    cases: tuple[Case, ...]
    findings: tuple[PolicyFinding, ...]
    document: Document | None

    def line(self, path: str) -> int:
        """The line of a path in the test file."""
        return self.document.finding(path, "").line if self.document else 0


def find_test_files(paths: Iterable[Path]) -> list[Path]:
    """The test files named, and those anywhere in the directories named; raises UsageError."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for suffix in TEST_SUFFIXES for one in path.rglob(f"*{suffix}"))
            if not inside:
                message = f"{path} holds no {' or '.join(f'*{suffix}' for suffix in TEST_SUFFIXES)}."
                raise UsageError(message)
            found += inside
        elif not path.exists():
            message = f"{path} does not exist."
            raise UsageError(message)
        elif not path.name.endswith(TEST_SUFFIXES):
            message = f"{path} is no test file: name it NAME.test.yaml, beside the policy NAME.yaml that it tests."
            raise UsageError(message)
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def read_test_file(file: Path) -> TestSuite:
    """Read a test file and its policies; what is wrong with either is in the findings."""
    name = str(file)
    text = read_text(file)
    if isinstance(text, PolicyFinding):
        return TestSuite(file, (), (), (text,), None)
    found, findings = documents(name, text)
    if not findings and len(found) != 1:
        message = f"must hold one document with `cases`; it holds {len(found)}"
        findings = [PolicyFinding(name, 1, "", message)]
    if findings:
        return TestSuite(file, (), (), tuple(findings), None)
    [document] = found
    _take_series_for_text(document.node)
    content, findings = content_of(name, document)
    if findings:
        return TestSuite(file, (), (), tuple(findings), document)
    policies, findings = _policies(file, document, content)
    if findings:
        return TestSuite(file, (), (), tuple(findings), document)
    try:
        return TestSuite(file, policies, parse_suite(content, policies), (), document)
    except InvalidPolicyTest as error:
        wrong = tuple(document.finding(one.path, one.message) for one in error.errors)
        return TestSuite(file, policies, (), wrong, document)


def _policies(
    file: Path, document: Document, content: object
) -> tuple[tuple[AcceptedPolicy, ...], list[PolicyFinding]]:
    """The policies of the files named, by default of the sibling."""
    named = policy_names(content)
    paths = [(f"policies[{index}]", file.parent / one) for index, one in enumerate(named)]
    if not named:
        suffix = next(one for one in TEST_SUFFIXES if file.name.endswith(one))
        paths = [("", file.with_name(file.name.removesuffix(suffix) + suffix.removeprefix(".test")))]
    policies: list[AcceptedPolicy] = []
    findings: list[PolicyFinding] = []
    for path, policy_file in paths:
        if not policy_file.is_file():
            message = f"there is no policy file {policy_file}; name those under test as a list in `policies`"
            findings.append(document.finding(path or "policies", message))
            continue
        read, wrong = read_policies(str(policy_file), read_text(policy_file))
        policies += read
        findings += wrong
    findings += _repeated_names(document, policies)
    return tuple(policies), findings


def _repeated_names(document: Document, policies: Sequence[AcceptedPolicy]) -> list[PolicyFinding]:
    names = [policy.name for policy in policies]
    repeated = sorted({name for name in names if names.count(name) > 1})
    return [
        document.finding("policies", f"two policies are called {name}; rename one to tell their rules apart")
        for name in repeated
    ]


def _take_series_for_text(node: yaml.Node) -> None:
    """A series is text even where YAML would see a number: `0x10` is ten zeros."""
    waiting, seen = [node], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            waiting += one.value
        for key, value in mapping_pairs(one):
            if key.value != "series":
                waiting.append(value)
                continue
            for _, values in mapping_pairs(value):
                _take_values_for_text(values)


def _take_values_for_text(node: yaml.Node) -> None:
    if isinstance(node, yaml.ScalarNode):
        read_as_text(node)
    for key, value in mapping_pairs(node):
        if key.value in ("base", "elements"):
            read_as_text(value)
