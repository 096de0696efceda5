"""Test results as JUnit XML, which continuous integration reads."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree as ET

_NOT_XML = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """One test: `failure` where it failed, `error` where it could not be run; both empty where it passed."""

    name: str
    line: int
    failure: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class JUnitSuite:
    """One file of tests."""

    name: str
    cases: tuple[JUnitCase, ...]


def junit_xml(suites: Iterable[JUnitSuite]) -> bytes:
    """The XML document."""
    root = ET.Element("testsuites")
    totals = {"tests": 0, "failures": 0, "errors": 0}
    for suite in suites:
        counts = {
            "tests": len(suite.cases),
            "failures": sum(bool(case.failure) for case in suite.cases),
            "errors": sum(bool(case.error) for case in suite.cases),
        }
        attributes = {name: str(count) for name, count in counts.items()}
        element = ET.SubElement(root, "testsuite", {"name": _clean(suite.name), **attributes})
        for case in suite.cases:
            _case(element, suite, case)
        totals = {name: totals[name] + count for name, count in counts.items()}
    root.attrib.update({name: str(count) for name, count in totals.items()})
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _case(parent: ET.Element, suite: JUnitSuite, case: JUnitCase) -> None:
    attributes = {"classname": suite.name, "name": case.name, "file": suite.name, "line": str(case.line)}
    element = ET.SubElement(parent, "testcase", {name: _clean(value) for name, value in attributes.items()})
    for kind, text in (("failure", case.failure), ("error", case.error)):
        if text:
            ET.SubElement(element, kind, {"message": _clean(text.splitlines()[0])}).text = _clean(text)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
